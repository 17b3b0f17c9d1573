"""Chance drives a world: first with faults of every kind, then without, until it converges."""

from dataclasses import dataclass
from random import Random

from eplb_service.sim.convergence import converge
from eplb_service.sim.faults import Faults
from eplb_service.sim.network import Weather
from eplb_service.sim.stage import Scope
from eplb_service.sim.story import Violation
from eplb_service.sim.waves import random_deployment
from eplb_service.sim.work import Work
from eplb_service.sim.world import World

ROUGH = Weather(lost=0.06, repeated=0.12, old=0.05)
NUM_LINES = 300


@dataclass(frozen=True, slots=True)
class Course:
    """How long a run is faulty, and how bad the network is meanwhile."""

    num_events: int = 400
    weather: Weather = ROUGH
    scope: Scope | None = None
    """None: either, by chance."""


def simulate(rng: Random, course: Course | None = None) -> World:
    """Run one world to its end; raises Violation, with the transcript, where one is found.

    The same state of `rng` gives the same transcript, byte for byte.
    """
    course = course or Course()
    scope = course.scope or rng.choice(tuple(Scope))
    world = World(random_deployment(rng), rng, course.weather, scope)
    try:
        _be_faulty(world, course.num_events)
        converge(world)
    except Exception as broken:
        told = f"{type(broken).__name__}: {broken}"
        raise Violation(f"{world.story.text(last=NUM_LINES)}\n{told}") from broken
    return world


def _be_faulty(world: World, num_events: int) -> None:
    """Let events happen by chance; what cannot happen now is drawn again."""
    table = (*Work(world).table(), *Faults(world).table())
    events = [event for _, event in table]
    weights = [weight for weight, _ in table]
    until = [sum(weights[: at + 1]) for at in range(len(weights))]
    world.start_controller()
    for _ in range(num_events):
        while not world.rng.choices(events, cum_weights=until)[0]():
            pass
