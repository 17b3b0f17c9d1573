"""Real ranks that know the wrong controller find the right one, and serve under it."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.host.processes import free_port
from tests.system.controller import ControllerProcess, Operator
from tests.system.group import Group
from tests.system.rank import MODEL, NUM_RANKS

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_ranks_follow_the_directory_to_their_controller(tmp_path: Path) -> None:
    ports = [free_port(), free_port()]
    mine, other = (f"127.0.0.1:{port}" for port in ports)
    entries = [
        {"deployments": f"{MODEL}/*", "endpoint": mine},
        {"deployments": "*", "endpoint": other},
    ]
    with ExitStack() as stack:
        for port, endpoint in zip(ports, (mine, other), strict=True):
            folder = tmp_path / str(port)
            folder.mkdir()
            more = {"directory": {"mine": endpoint, "entries": entries}}
            controller = ControllerProcess(folder, port=port, more=more)
            stack.callback(controller.kill)
            controller.start()
        ranks = Group([other] * NUM_RANKS)
        stack.callback(ranks.kill)
        operator = Operator(ports[0])
        stack.callback(operator.close)
        ranks.serve_until(operator.is_calm, within_steps=4000, what="all ranks found it")
        operator.move()
        ranks.serve_until(operator.is_calm, within_steps=4000, what="the plan is over")
        assert operator.status().epoch > 0
        ranks.require_right()
