"""Ranks that count truthfully, for tests of windows."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from eplb_service.domain.deployment import Counting, CountMeaning, RankProfile
from eplb_service.domain.errors import InvalidReport
from eplb_service.domain.ids import CountArray, Epoch, Revision
from eplb_service.domain.placement import Placement, placement_from_ranks
from eplb_service.domain.report import CountedUnder, LoadReport, Phase, SentCounts, StepCounts
from eplb_service.domain.shares import Ownership
from eplb_service.load.group import Group, WindowTerms
from eplb_service.load.windows import LoadWindows

EPOCH = Epoch(4)
NO_SENT = SentCounts(
    np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64)
)
TERMS = WindowTerms(report_steps=10, interval_steps=20, num_intervals=3)


def profile(
    rank: int,
    placement: Placement,
    *,
    meaning: CountMeaning = CountMeaning.RECEIVED,
    num_counters: int = 1,
    ownership: Ownership = Ownership.OWN,
) -> RankProfile:
    return RankProfile(
        rank=rank,
        num_ranks=placement.layout.num_ranks,
        node=f"node-{rank // 4}",
        supernode="",
        adapter="test",
        counting=Counting(meaning, num_counters),
        ownership=ownership,
        num_slots=placement.layout.slots_per_rank[rank],
        staging_rows=4,
        sets_shares=True,
    )


def group_of(
    placement: Placement,
    *,
    top_k: int = 1,
    meaning: CountMeaning = CountMeaning.RECEIVED,
    num_counters: int = 1,
) -> Group:
    profiles = tuple(
        profile(rank, placement, meaning=meaning, num_counters=num_counters)
        for rank in range(placement.layout.num_ranks)
    )
    return Group(EPOCH, placement, profiles, top_k)


def report(
    received: CountArray | Sequence[Sequence[int]],
    group: Group,
    *,
    step: int,
    tokens: int = 0,
    phase: Phase = Phase.DECODE,
) -> LoadReport:
    """One rank's counters at a step, with totals that agree with the tokens it routed."""
    counts = np.array(received, dtype=np.int64)
    return LoadReport(
        under=CountedUnder(group.epoch, group.digest, Revision(0)),
        phase=phase,
        step=step,
        reset=0,
        is_closing=False,
        received=counts,
        sent_total=np.full(len(counts), tokens * group.top_k, dtype=np.int64),
        sent=NO_SENT,
        steps=steps(tokens=tokens, real=step),
    )


def steps(*, tokens: int = 0, real: int = 0) -> StepCounts:
    return StepCounts(
        real=real,
        dummy=0,
        warmup=0,
        profile=0,
        tokens=tokens,
        padding_rows=0,
        overflow_tokens=0,
        step_seconds=0.04 * real,
        expert_seconds=0.01 * real,
    )


@dataclass
class Fleet:
    """All ranks of a deployment, in step; what is received is what the first rank sends."""

    windows: LoadWindows
    slots: CountArray
    """[L, P] tokens that each slot gets in ten steps."""
    at: dict[int, int] = field(default_factory=dict[int, int])
    start: int = 0

    def cut(self, step: int, *, without: Sequence[int] = ()) -> None:
        """Let every rank but some report at a step."""
        for rank in range(self.windows.group.num_ranks):
            if rank not in without:
                self.windows.add(self.report(rank, step), rank)

    def report(self, rank: int, step: int) -> LoadReport:
        """What a rank has counted since the start."""
        group = self.windows.group
        so_far = self.slots * ((step - self.start) // 10)
        sent = so_far.sum(axis=1)
        assert (sent == sent[0]).all(), "every layer must get as many tokens"
        return report(
            so_far[:, group.placement.layout.slots_of(rank)],
            group,
            step=step,
            tokens=int(sent[0]) // group.top_k if rank == 0 else 0,
        )


def fleet(placement: Placement, slots: Sequence[Sequence[int]]) -> Fleet:
    """Build a deployment whose slots get these tokens in every ten steps."""
    windows = LoadWindows(group_of(placement), TERMS)
    return Fleet(windows, np.array(slots, dtype=np.int64))


def at_reset(number: int, made: LoadReport) -> LoadReport:
    """Return the report under another counting."""
    return replace(made, reset=number)


FOUR = placement_from_ranks([[[0, 1], [2, 3], [4, 5], [6, 0]]], num_experts=7)
SLOTS = [[3, 1, 2, 2, 4, 0, 1, 3]]


def served_under(made: LoadReport, epoch: Epoch) -> LoadReport:
    return replace(made, under=replace(made.under, epoch=epoch))


def refused(reason: str, made: LoadReport, of: LoadWindows, rank: int = 1) -> str:
    with pytest.raises(InvalidReport) as caught:
        of.add(made, rank)
    assert caught.value.reason == reason
    return str(caught.value)


def started() -> Fleet:
    ranks = fleet(FOUR, SLOTS)
    ranks.cut(20)
    ranks.cut(40)
    return ranks
