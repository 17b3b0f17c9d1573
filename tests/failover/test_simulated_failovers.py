"""Two hundred failovers with a wave in flight: no commit is lost, and none is doubled."""

import pytest

from tests.failover.simulated import add, fail_over

NUM_FAST = 20
NUM_FAILOVERS = 200


def test_a_few_failovers_lose_and_double_no_commit() -> None:
    told = add([fail_over(seed) for seed in range(NUM_FAST)])
    assert (told.lost, told.doubled) == (0, 0)
    assert told.commits >= NUM_FAST
    assert 0 < told.split < NUM_FAST


@pytest.mark.slow
def test_two_hundred_failovers_lose_and_double_no_commit() -> None:
    told = add([fail_over(seed) for seed in range(NUM_FAILOVERS)])
    assert (told.failovers, told.lost, told.doubled) == (NUM_FAILOVERS, 0, 0)
    assert told.commits >= NUM_FAILOVERS
