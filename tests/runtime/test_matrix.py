"""Every mode, format, dtype, activation and kind of routing gives what the format stands for.

Every pair of factors' values in `make test`, the full product in `make matrix`; one pool of
processes for each number of ranks.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import combinations

import pytest

from moe_runtime.runtime import GroupPeers, WeightFormat
from tests.runtime.matrix import SIZES, Case, Found, covering, every_case, run_case
from tests.runtime.ranks import run_ranks


@cache
def cover() -> tuple[Case, ...]:
    return tuple(covering(list(every_case())))


NUM_PARTS = 64
"""Of the full product, for each number of ranks; each part is 528 cases from all over it."""


def run_all(_rank: int, cases: Sequence[Case]) -> list[Found]:
    peers = GroupPeers()
    return [run_case(case, peers) for case in cases]


def of_size(cases: Iterable[Case], num_ranks: int) -> list[Case]:
    return [case for case in cases if case.num_ranks == num_ranks]


def judge(cases: Sequence[Case], num_ranks: int, *, deadline_s: float) -> None:
    by_rank = run_ranks(run_all, cases, num_ranks=num_ranks, deadline_s=deadline_s)
    wrong = [
        (case, rank, found)
        for rank, ended in enumerate(by_rank)
        for case, found in zip(cases, ended, strict=True)
        if not (found.off_staged <= 1 and found.off_exact <= 1)
    ]
    assert not wrong, f"{len(wrong)} of {len(cases)} cases are off, the first: {wrong[:3]}"
    blind = [found.wrong_expert for ended in by_rank for found in ended if found.wrong_expert > 0]
    assert min(blind) > 1, "a bound does not tell one expert from another"


@pytest.mark.slow
def test_a_cover_has_every_pair_and_every_format() -> None:
    cases, chosen = list(every_case()), cover()
    assert {case.packing.format for case in chosen} == set(WeightFormat)
    assert len(chosen) < len(cases) / 100
    for one, other in combinations(range(len(cases[0].factors)), 2):
        pairs, covered = (
            {(case.factors[one], case.factors[other]) for case in some} for some in (cases, chosen)
        )
        assert covered == pairs


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", SIZES)
def test_every_pair_of_factors_gives_the_reference_output(num_ranks: int) -> None:
    judge(of_size(cover(), num_ranks), num_ranks, deadline_s=100.0)


@pytest.mark.matrix
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(NUM_PARTS), ids=[f"part{p:02}" for p in range(NUM_PARTS)])
@pytest.mark.parametrize("num_ranks", SIZES)
def test_every_combination_gives_the_reference_output(num_ranks: int, part: int) -> None:
    cases = of_size(every_case(), num_ranks)[part::NUM_PARTS]
    judge(cases, num_ranks, deadline_s=3500.0)
