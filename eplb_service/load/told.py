"""Cuts at which all ranks told what they sent: kept small, since such counts are most of a report.

Axes    L MoE layers   E logical experts   X experts that every report of a cut speaks of
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from eplb_service.domain.heat import fold_slots
from eplb_service.domain.ids import CountArray
from eplb_service.domain.report import NO_SENT, LoadReport, Phase, SentCounts
from eplb_service.load.conservation import received_between
from eplb_service.load.group import Group
from eplb_service.load.window import Cut


@dataclass(frozen=True, slots=True, eq=False)
class SentCut:
    """A cut of all ranks with sent counts, which come seldom."""

    step: int
    cut: Cut
    """Its reports, without those counts."""
    numbers: CountArray
    """[X] layer times E plus expert, ascending."""
    tokens: Mapping[tuple[int, Phase], CountArray]
    """[X] token copies sent, by rank and phase."""


def without_sent(report: LoadReport) -> LoadReport:
    """Return a report without its sent counts; they are hundreds of kilobytes."""
    return replace(report, sent=NO_SENT) if report.sent.tokens.size else report


def with_columns(report: LoadReport, known: SentCounts) -> LoadReport:
    """Return a report that shares the columns of known sent counts, where they are equal."""
    sent = report.sent
    columns = ((sent.layers, known.layers), (sent.experts, known.experts))
    if not sent.tokens.size or not all(
        of.dtype == as_known.dtype and np.array_equal(of, as_known) for of, as_known in columns
    ):
        return report
    return replace(report, sent=SentCounts(known.layers, known.experts, sent.tokens))


def sent_cut(step: int, cut: Cut, group: Group) -> SentCut | None:
    """Take the sent counts out of a cut; None unless all of its reports tell them."""
    if not all(len(report.sent.tokens) for report in cut.values()):
        return None
    told = _numbered(cut, group)
    first, *others = [numbers for numbers, _ in told.values()]
    common = first
    for numbers in others:
        if numbers is not common and not np.array_equal(common, numbers):
            common = np.intersect1d(common, numbers, assume_unique=True)
    tokens = {
        key: tokens if numbers.size == common.size else tokens[np.searchsorted(numbers, common)]
        for key, (numbers, tokens) in told.items()
    }
    kept = {key: without_sent(report) for key, report in cut.items()}
    return SentCut(step, kept, common, tokens)


def common_to(first: SentCut, last: SentCut) -> tuple[CountArray, CountArray, CountArray]:
    """[X] numbers of the experts that both cuts tell of, and where they lie in either."""
    if np.array_equal(first.numbers, last.numbers):
        everywhere = np.arange(first.numbers.size)
        return first.numbers, everywhere, everywhere
    return np.intersect1d(first.numbers, last.numbers, assume_unique=True, return_indices=True)


def lost_to_experts(first: SentCut, last: SentCut, group: Group) -> tuple[str, ...]:
    """Say, by layer and expert, what was lost between two cuts of all ranks with sent counts.

    Only experts that every report of both cuts speaks of are looked at.
    """
    numbers, before, after = common_to(first, last)
    sent = _sum(last, after) - _sum(first, before)
    slots = received_between(first.cut, last.cut, group)
    received = fold_slots(slots, group.placement).reshape(-1)[numbers] * group.num_senders
    found: list[str] = []
    for at in np.flatnonzero(sent != received).tolist():
        layer, expert = divmod(int(numbers[at]), group.placement.num_experts)
        found.append(
            f"layer {layer} expert {expert}: {sent[at]} copies sent, "
            f"{received[at]} received on ranks {_holders(group, layer, expert)}"
        )
    return tuple(found)


def _sum(told: SentCut, at: CountArray) -> CountArray:
    total = np.zeros(told.numbers.size, dtype=np.int64)
    for tokens in told.tokens.values():
        total += tokens
    return total[at]


Told = tuple[CountArray, CountArray]
"""Numbers of the experts that a report tells of, ascending, and their tokens."""


def _numbered(cut: Cut, group: Group) -> dict[tuple[int, Phase], Told]:
    """Number the experts that each report tells of; reports that share columns share numbers."""
    found: dict[tuple[int, Phase], Told] = {}
    shared: tuple[SentCounts, CountArray] | None = None
    for key, report in cut.items():
        sent = report.sent
        if shared and sent.layers is shared[0].layers and sent.experts is shared[0].experts:
            found[key] = shared[1], sent.tokens
            continue
        numbers = sent.layers.astype(np.int64) * group.placement.num_experts + sent.experts
        if (numbers[1:] > numbers[:-1]).all():
            shared = sent, numbers
            found[key] = numbers, sent.tokens
        else:
            order = np.argsort(numbers)
            found[key] = numbers[order], sent.tokens[order]
    return found


def _holders(group: Group, layer: int, expert: int) -> list[int]:
    slots = np.flatnonzero(group.placement.phy2log[layer] == expert)
    return group.placement.layout.rank_of_slot()[slots].tolist()
