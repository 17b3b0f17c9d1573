"""A rank is killed under a real controller; the others serve on, and plans settle on them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from eplb.v1 import admin_pb2

from tests.host.processes import await_so
from tests.runtime.ranks import run_ranks
from tests.system.controller import ControllerProcess, Operator
from tests.system.rank import NUM_RANKS
from tests.system.survivor import DEAD, LATE, LIVING, Cues, Lived, Plot, live_through_a_death

pytestmark = [pytest.mark.processes, pytest.mark.slow]

WITHIN_S = 60.0
LOST = "rank 2 is away, and no other rank holds expert 12 of layer 0, 13 of layer 0"


@pytest.mark.parametrize("is_moving", [False, True], ids=["at rest", "in the middle of a wave"])
def test_f42_the_group_serves_on_without_the_rank_and_the_next_plan_settles(
    tmp_path: Path, *, is_moving: bool
) -> None:
    controller, cues = ControllerProcess(tmp_path), Cues(tmp_path)
    operator = Operator(controller.port)
    try:
        controller.start()
        plot = Plot(f"127.0.0.1:{controller.port}", cues)
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(
                run_ranks,
                live_through_a_death,
                plot,
                num_ranks=NUM_RANKS,
                deadline_s=240.0,
                dying=[DEAD],
            )
            try:
                direct(operator, cues, is_moving=is_moving)
            finally:
                for word in ("die", "load", "stop"):
                    cues.give(word)
            told: list[Lived] = ended.result(timeout=WITHIN_S)
    finally:
        operator.close()
        controller.kill()
    require_served_on(told)


def direct(operator: Operator, cues: Cues, *, is_moving: bool) -> None:
    """Bring the group to its death and beyond."""
    await_status(
        operator,
        lambda now: (
            len(now.ranks) == NUM_RANKS and all(r.step for r in now.ranks) and operator.is_calm()
        ),
        "calm, and stepping",
    )
    if is_moving:
        cues.give("hold")
        operator.move()
        await_status(operator, lambda now: now.ranks[LATE].phase == "accepted", "a wave moves")
    cues.give("die")
    await_status(operator, lambda now: LOST in now.operation.degraded, "degraded, by name")
    assert operator.status().operation.degraded.startswith("degraded: ")
    await_so(
        lambda: any(LOST in text for text in operator.history("failure")),
        within_s=WITHIN_S,
        what="the history tells of it",
    )
    cues.give("load")
    await_status(
        operator,
        lambda now: len(now.ranks) == len(LIVING) and operator.is_calm(),
        "those that live are a group",
    )
    now = operator.status()
    assert not now.operation.degraded
    plan_id, epoch = operator.move(), now.epoch
    await_status(
        operator,
        lambda now: (
            now.epoch > epoch and now.operation.running.phase == "done" and operator.is_calm()
        ),
        f"plan {plan_id} settles on the ranks that live",
    )


def await_status(
    operator: Operator, is_so: Callable[[admin_pb2.DeploymentStatus], bool], what: str
) -> None:
    def look() -> bool:
        try:
            status = operator.status()
        except ValueError:
            return False  # nobody has greeted yet
        return is_so(status)

    await_so(look, within_s=WITHIN_S, what=what)


def require_served_on(told: list[Lived]) -> None:
    assert len(told) == len(LIVING)
    for one in told:
        assert not one.wrong, f"wrong outputs in steps {one.wrong}"
        assert one.steps_before > 0
        assert one.steps_after > 0
        died_at, ended_at = one.epochs
        assert ended_at > died_at
    assert len({one.epochs[1] for one in told}) == 1
