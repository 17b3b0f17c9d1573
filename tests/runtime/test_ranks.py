"""The helper that runs rank processes for the other tests."""

import os
import signal
from time import monotonic

import pytest

from tests.runtime.ranks import RanksFailed, run_ranks

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def misbehave(rank: int, how: str) -> int:
    match how if rank == 1 else "answer":
        case "raise":
            raise ValueError("no tea")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            signal.pause()
        case _:
            pass
    return rank * 10


def test_every_ranks_answer_comes_back_in_order() -> None:
    assert run_ranks(misbehave, "no", num_ranks=2) == [0, 10]


@pytest.mark.parametrize(
    ("how", "told"),
    [("raise", "rank 1 raised:\n.*"), ("die", "rank 1 died"), ("hang", "were not done in 3")],
)
def test_a_rank_that_fails_ends_all_of_them_in_time(how: str, told: str) -> None:
    started = monotonic()
    with pytest.raises(RanksFailed, match=told):
        run_ranks(misbehave, how, num_ranks=2, deadline_s=3)
    assert monotonic() - started < 20
