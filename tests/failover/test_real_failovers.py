"""A standby takes over from a leader that was killed, and from one that was only stopped."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.failover.house import House


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with closing(House(tmp_path)) as one:
        yield one


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_standby_carries_on_after_a_leader_is_killed_and_after_one_is_stopped(
    house: House,
) -> None:
    for is_killed in (True, False):
        house.fail_over(is_killed=is_killed)
    house.ranks.require_right()
    former = house.standby
    assert former.said().count("not_leader") == 1, "the one that was stopped was not fenced"
