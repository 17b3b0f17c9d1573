"""Plans asked for at a controller's machine."""

from random import Random
from typing import Protocol

from eplb_service.sim.controller import SimController
from eplb_service.sim.machine_desk import MachineDesk
from eplb_service.sim.planner import SimPlanner
from eplb_service.sim.story import Story

FEW = 1000
"""Steps of life of a wave that may expire in a run."""
RUDE = 0.1
"""Chance that a plan is asked for although one runs, or somebody is missing."""
PLANNER_FAULT = 0.05


class Planned(Protocol):
    """What of a world has to do with plans."""

    planner: SimPlanner | None
    story: Story
    rng: Random
    is_calm: bool


def ask_for_plan(
    world: Planned, controller: SimController, desk: MachineDesk, *, num_steps: int
) -> bool:
    """Have a plan drawn and asked for; now and then one that may not start."""
    assert world.planner is not None
    rng, is_calm = world.rng, world.is_calm
    is_rude = not is_calm and rng.random() < RUDE
    if desk.state is None or not controller.is_alive:
        return False
    if not controller.may_start and not is_rude:
        return False
    plan = world.planner.draw(desk.state, fault=0.0 if is_calm else PLANNER_FAULT)
    if isinstance(plan, str):
        world.story.tell(f"controller {controller.number}: {plan}")
        return False
    world.story.tell(
        f"controller {controller.number} asks for plan {plan.plan_id} by {plan.policy} from "
        f"{plan.base_epoch}, {len(plan.waves)} waves"
    )
    if num_steps < FEW:
        desk.be_patient(rng.choice((4, 8, 30)))
    desk.expire_within(num_steps)
    desk.ask(plan)
    return True
