"""A standby takes over from a leader that was killed, and from one that was only stopped."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.failover.house import House
from tests.store.redis_server import RedisServer


@pytest.fixture(params=["sqlite", "redis"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    with ExitStack() as stack:
        url = ""
        if request.param == "redis":
            server = RedisServer(tmp_path)
            stack.callback(server.kill)
            url = server.url
        yield stack.enter_context(closing(House(tmp_path, url)))


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
