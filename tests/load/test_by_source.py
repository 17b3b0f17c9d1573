"""Who sent what reaches the heat, exactly, and never grows beyond the experts with a choice."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from eplb_service.domain.errors import InvalidReport
from eplb_service.domain.heat import BySource
from eplb_service.domain.ids import CountArray, Epoch
from eplb_service.domain.report import Phase, SentCounts
from eplb_service.load.group import WindowTerms
from eplb_service.load.windows import LoadWindows
from tests.load.reports import FOUR, group_of, report

TERMS = WindowTerms(report_steps=10, interval_steps=10, num_intervals=4)
SENT = np.array(
    [[9, 1, 0, 0, 2, 0, 0], [1, 1, 3, 3, 1, 0, 3], [6, 0, 0, 0, 0, 6, 0], [3, 3, 3, 1, 1, 1, 0]]
)
"""[N, E] tokens that each rank sends in ten steps; expert 0 has a replica on ranks 0 and 3."""
PICKS = [0, 1, 0, 1]
"""Which replica of expert 0 each rank uses."""


def received() -> CountArray:
    """[L, P] what slots get for SENT."""
    slots = np.zeros((1, 8), dtype=np.int64)
    slots[0, [1, 2, 3, 4, 5, 6]] = SENT.sum(axis=0)[1:]
    slots[0, 0] = sum(SENT[rank, 0] for rank in range(4) if PICKS[rank] == 0)
    slots[0, 7] = SENT[:, 0].sum() - slots[0, 0]
    return slots


def told(windows: LoadWindows, step: int, *, with_sent: bool = True, decode: bool = True) -> None:
    """Every rank reports at a step."""
    group, times = windows.group, step // 10
    for rank in range(4):
        counts = received() * times
        made = report(
            counts[:, group.placement.layout.slots_of(rank)],
            group,
            step=step,
            tokens=int(SENT[rank].sum()) * times,
            phase=Phase.DECODE if decode else Phase.PREFILL,
        )
        zero = np.zeros(1, dtype=np.int32)
        sent = SentCounts(zero, zero, np.array([SENT[rank, 0] * times], dtype=np.int64))
        windows.add(replace(made, sent=sent) if with_sent else made, rank)


def counted(*steps: int) -> LoadWindows:
    windows = LoadWindows(group_of(FOUR), TERMS)
    for step in steps:
        told(windows, step)
    return windows


def test_counts_of_each_source_are_those_sent_between_two_cuts() -> None:
    found = counted(10, 20, 30).by_source()
    assert isinstance(found, BySource)
    assert (found.layers.tolist(), found.experts.tolist()) == ([0], [0])
    assert found.tokens.tolist() == (2 * SENT[:, [0]]).tolist()
    assert found.routed.tolist() == (2 * SENT.sum(axis=1)).tolist()
    assert found.num_steps == 20


def test_one_cut_says_nothing_and_a_new_epoch_starts_over() -> None:
    windows = counted(10)
    assert windows.by_source() is None
    told(windows, 20)
    assert windows.by_source() is not None
    windows.begin(Epoch(9), FOUR)
    assert windows.by_source() is None


def test_reports_without_sent_counts_in_between_lose_nothing() -> None:
    windows = LoadWindows(group_of(FOUR), TERMS)
    for step in (10, 20, 30, 40, 50, 60, 70):
        told(windows, step, with_sent=step in (10, 70))
    found = windows.by_source()
    assert found is not None
    assert found.num_steps == 60
    assert found.tokens.tolist() == (6 * SENT[:, [0]]).tolist()


def test_a_phase_has_its_own_sources() -> None:
    windows = LoadWindows(group_of(FOUR), TERMS)
    for step in (10, 20):
        told(windows, step)
    found = windows.by_source(Phase.PREFILL)
    assert found is not None
    assert found.tokens.sum() == found.routed.sum() == 0


def test_spreading_heat_keeps_every_total_and_gives_single_experts_to_all() -> None:
    found = counted(10, 20).by_source()
    assert found is not None
    heat = SENT.sum(axis=0)[None].astype(float) * 5
    spread = found.spread(heat, range(1))
    np.testing.assert_allclose(spread.sum(axis=0), heat)
    np.testing.assert_allclose(spread[:, 0, 0], 5.0 * SENT[:, 0])


def test_whatever_ranks_tell_only_experts_with_a_choice_are_kept() -> None:
    windows = LoadWindows(group_of(FOUR), TERMS)
    for times, step in enumerate((10, 20), start=1):
        for rank in range(4):
            counts = received() * times
            own = counts[:, windows.group.placement.layout.slots_of(rank)]
            tokens = int(SENT[rank].sum()) * times
            experts = np.arange(7, dtype=np.int32)
            sent = SentCounts(np.zeros(7, dtype=np.int32), experts, SENT[rank] * times)
            made = report(own, windows.group, step=step, tokens=tokens)
            windows.add(replace(made, sent=sent), rank)
    found = windows.by_source()
    assert found is not None
    assert found.experts.tolist() == [0]


def tell(windows: LoadWindows, times: int, experts: Sequence[list[int]], lost: int = 0) -> None:
    """Every rank tells of experts of its own choice; of the last one's first, some were lost."""
    for rank, of in enumerate(experts):
        counts = received() * times
        made = report(
            counts[:, windows.group.placement.layout.slots_of(rank)],
            windows.group,
            step=10 * times,
            tokens=int(SENT[rank].sum()) * times,
        )
        layers, tokens = np.zeros(len(of), dtype=np.int32), SENT[rank, of] * times
        tokens[0] -= lost if rank == len(experts) - 1 else 0
        sent = SentCounts(layers, np.array(of, dtype=np.int32), tokens)
        windows.add(replace(made, sent=sent), rank)


def test_ranks_may_tell_of_more_experts_and_in_any_order() -> None:
    windows = LoadWindows(group_of(FOUR), TERMS)
    for times in (1, 2, 3):
        tell(windows, times, ([0], [4, 0], [0, 6, 2], [0]))
    found = windows.by_source()
    assert isinstance(found, BySource)
    assert found.experts.tolist() == [0]
    assert found.tokens.tolist() == (2 * SENT[:, [0]]).tolist()


def test_what_an_expert_lost_is_told_also_where_each_rank_tells_in_its_own_order() -> None:
    windows, experts = LoadWindows(group_of(FOUR), TERMS), ([0, 4], [4, 0], [0, 4], [0, 4])
    tell(windows, 1, experts)
    with pytest.raises(InvalidReport, match="layer 0 expert 0: 18 copies sent, 19 received"):
        tell(windows, 2, experts, lost=1)
