"""What a report must be, to be believed: each check refuses with a reason of one word.

Axes    L MoE layers   S columns of the report   E logical experts
"""

from collections.abc import Callable
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from eplb_service.domain.errors import InvalidReport
from eplb_service.domain.ids import CountArray
from eplb_service.domain.placement import EMPTY
from eplb_service.domain.report import NO_SENT, LoadReport, SentCounts, StepCounts
from eplb_service.load.group import Group, WindowTerms


def check_rank(rank: int, group: Group) -> None:
    """Refuse a rank outside the group."""
    if not 0 <= rank < group.num_ranks:
        raise InvalidReport(
            f"a report came from rank {rank}; expected 0 to {group.num_ranks - 1}",
            reason="unknown_rank",
        )


def check_origin(report: LoadReport, rank: int, group: Group) -> None:
    """Refuse counts made under another placement."""
    if report.epoch != group.epoch:
        raise InvalidReport(
            f"rank {rank} reported under epoch {report.epoch}, but epoch {group.epoch} is served; "
            "the counts were not used",
            reason="foreign_epoch",
        )
    if report.placement != group.digest:
        raise InvalidReport(
            f"rank {rank} counted under placement {report.placement:016x}, but "
            f"{group.digest:016x} is served at epoch {group.epoch}",
            reason="foreign_placement",
        )


def check_content(report: LoadReport, rank: int, group: Group, known: SentCounts = NO_SENT) -> None:
    """Refuse wrong shapes, values that are no counts, and a sum that is not tokens x top_k.

    known    sent counts whose experts were found right under this placement
    """
    _check_shapes(report, rank, group)
    _check_counts(report.received, rank, ("layer", "slot"), group)
    _check_counts(report.sent_total, rank, ("layer",), group)
    _check_steps(report, rank)
    _check_empty_slots(report, rank, group)
    _check_sent(report, rank, group, known)
    expected = report.steps.tokens * group.top_k
    wrong = np.flatnonzero(report.sent_total != expected)
    if wrong.size:
        layer = int(wrong[0])
        raise InvalidReport(
            f"rank {rank} layer {layer}: {report.sent_total[layer]} token copies sent, expected "
            f"{expected} ({report.steps.tokens} tokens x top-{group.top_k}); "
            f"{wrong.size} layers differ",
            reason="sent_total",
        )


def check_order(report: LoadReport, last: LoadReport | None, rank: int, terms: WindowTerms) -> None:
    """Refuse steps that are not cut as agreed, or come twice, and counters that run backwards."""
    if report.step % terms.report_steps and not report.is_closing:
        raise InvalidReport(
            f"rank {rank} reported at step {report.step}; expected a multiple of "
            f"{terms.report_steps}, so that the reports of all ranks enclose the same steps",
            reason="misaligned",
        )
    if last is None or report.reset > last.reset:
        return
    if report.reset < last.reset or report.step < last.step:
        raise InvalidReport(
            f"rank {rank} reported step {report.step} of reset {report.reset} after step "
            f"{last.step} of reset {last.reset}; the newer one is kept",
            reason="stale",
        )
    if report.step == last.step and not report.is_closing:
        raise InvalidReport(
            f"rank {rank} reported step {report.step} twice; the first report is kept",
            reason="duplicate",
        )
    is_lower = report.received < last.received
    if is_lower.any():
        backwards = np.argwhere(is_lower)
        raise InvalidReport(
            f"rank {rank} layer {backwards[0][0]} slot {backwards[0][1]}: the counter at step "
            f"{report.step} is below that at step {last.step} without a reset; an integer that "
            "wrapped does that",
            reason="backwards",
        )

    for (name, before), (_, after) in zip(_told(last.steps), _told(report.steps), strict=True):
        if after < before:
            raise InvalidReport(
                f"rank {rank}: {name} fell from {before} to {after} without a reset",
                reason="backwards",
            )


def _told(steps: StepCounts) -> tuple[tuple[str, float], ...]:
    """Name all that is counted beside the load."""
    return (
        ("real", steps.real),
        ("dummy", steps.dummy),
        ("warmup", steps.warmup),
        ("profile", steps.profile),
        ("tokens", steps.tokens),
        ("padding_rows", steps.padding_rows),
        ("overflow_tokens", steps.overflow_tokens),
        ("step_seconds", steps.step_seconds),
        ("expert_seconds", steps.expert_seconds),
    )


def _check_steps(report: LoadReport, rank: int) -> None:
    numbered = (("step", report.step), ("reset", report.reset))
    for name, value in (*numbered, *_told(report.steps)):
        if not isfinite(value) or value < 0:
            raise InvalidReport(
                f"rank {rank}: {name} is {value}; expected a number of zero or more; "
                "the last good report is kept",
                reason="negative" if value < 0 and isfinite(value) else "nan",
            )


def _check_shapes(report: LoadReport, rank: int, group: Group) -> None:
    num_layers, columns = group.placement.num_layers, group.num_columns(rank)
    if report.received.shape != (num_layers, columns):
        raise InvalidReport(
            f"rank {rank} reported counts of shape {list(report.received.shape)}; expected "
            f"[{num_layers}, {columns}] for {num_layers} layers and {columns} slots",
            reason="shape",
        )
    if report.sent_total.shape != (num_layers,):
        raise InvalidReport(
            f"rank {rank} reported sent totals of shape {list(report.sent_total.shape)}; expected "
            f"[{num_layers}]",
            reason="shape",
        )


Check = Callable[[NDArray[np.generic]], NDArray[np.bool_]]


def _check_counts(
    values: NDArray[np.generic], rank: int, axes: tuple[str, ...], group: Group
) -> None:
    """Refuse NaN, infinities, fractions, negative counts and absurd ones, with their place."""
    if not values.size:
        return
    if values.dtype.kind == "f":
        bad, reason = ~np.isfinite(values.astype(np.float64)), "nan"
        if not bad.any():
            bad, reason = np.ones(values.shape, dtype=np.bool_), "dtype"
    elif values.dtype != np.int64:
        bad, reason = np.ones(values.shape, dtype=np.bool_), "dtype"
    elif values.min() >= 0 and values.max() <= group.most_tokens:
        return
    else:
        bad, reason = _out_of_range(values.astype(np.int64, copy=False), group.most_tokens)
    at = np.argwhere(bad)[0].tolist()
    place = " ".join(f"{axis} {number}" for axis, number in zip(axes, at, strict=True))
    raise InvalidReport(
        f"rank {rank} {place}: {values[tuple(at)]} as {values.dtype} is no count ({reason}); "
        f"expected int64 of 0 to {group.most_tokens}; the last good report is kept",
        reason=reason,
    )


def _out_of_range(counts: CountArray, most: int) -> tuple[NDArray[np.bool_], str]:
    if counts.size and counts.min() < 0:
        return counts < 0, "negative"
    return counts > most, "overflow"


def _check_empty_slots(report: LoadReport, rank: int, group: Group) -> None:
    if not group.has_empty:
        return
    empty = group.placement.phy2log[:, group.columns(rank)] == EMPTY
    loaded = np.argwhere(empty & (report.received > 0))
    if loaded.size:
        layer, slot = loaded[0].tolist()
        raise InvalidReport(
            f"rank {rank} layer {layer} slot {slot} is declared empty but counted "
            f"{report.received[layer, slot]} tokens",
            reason="empty_slot",
        )


def _check_sent(report: LoadReport, rank: int, group: Group, known: SentCounts) -> None:
    sent = report.sent
    columns = (sent.layers, sent.experts, sent.tokens)
    if len({column.shape for column in columns}) > 1 or sent.tokens.ndim != 1:
        shapes = ", ".join(str(list(column.shape)) for column in columns)
        raise InvalidReport(
            f"rank {rank} reported layers, experts and counts of sent tokens of shapes {shapes}; "
            "expected one axis and as many of each",
            reason="shape",
        )
    if not all(column.dtype.kind in "iu" for column in columns):
        types = ", ".join(str(column.dtype) for column in columns)
        raise InvalidReport(
            f"rank {rank} reported layers, experts and counts of sent tokens as {types}; "
            "expected whole numbers",
            reason="dtype",
        )
    if not sent.tokens.size:
        return
    if sent.layers is not known.layers or sent.experts is not known.experts:
        _check_experts(report, rank, group)
    _check_counts(sent.tokens, rank, ("sent entry",), group)


def _check_experts(report: LoadReport, rank: int, group: Group) -> None:
    """Refuse sent tokens of unknown experts, and of one expert twice."""
    sent = report.sent
    placement = group.placement
    known = (sent.layers >= 0) & (sent.layers < placement.num_layers)
    known &= (sent.experts >= 0) & (sent.experts < placement.num_experts)
    if not known.all():
        at = int(np.flatnonzero(~known)[0])
        raise InvalidReport(
            f"rank {rank} reported tokens sent to expert {sent.experts[at]} of layer "
            f"{sent.layers[at]}; there are {placement.num_experts} experts in "
            f"{placement.num_layers} layers",
            reason="unknown_expert",
        )
    numbers = sent.layers.astype(np.int64) * placement.num_experts + sent.experts
    if (numbers[1:] > numbers[:-1]).all():
        return
    ordered = np.sort(numbers)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if twice.size:
        layer, expert = divmod(int(twice[0]), placement.num_experts)
        raise InvalidReport(
            f"rank {rank} reported tokens sent to expert {expert} of layer {layer} twice; "
            "expected one count of each",
            reason="duplicate_expert",
        )
