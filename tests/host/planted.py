"""Policies that do what no policy should, planted where a plan is drawn."""

import os
import sys
import time
from dataclasses import dataclass, replace

from eplb_service.controller import planning
from eplb_service.controller.planning import ByPolicy, PlanningInput
from eplb_service.domain.placement import Placement
from eplb_service.policies.catalog import Listed, suited
from eplb_service.policies.request import PolicyRequest
from tests.planning.tasks import layers_of, task_of

EXIT_CODE = 23


def hang(request: PolicyRequest) -> Placement:
    """Say so, and never return."""
    del request
    sys.stdout.write(f"{os.getpid()} hangs\n")
    sys.stdout.flush()
    while True:
        time.sleep(3600)


def fail(request: PolicyRequest) -> Placement:
    """Raise what nobody expects."""
    del request
    raise ZeroDivisionError("a policy's own mistake")


def die(request: PolicyRequest) -> Placement:
    """Take the whole process away."""
    del request
    os._exit(EXIT_CODE)


PLANTED = {
    draw.__name__: Listed(draw.__name__, draw, needs_heat=False, about="")
    for draw in (hang, fail, die)
}


@dataclass(frozen=True)
class Planting(ByPolicy):
    """A goal that brings its policy along: wherever it is unpickled, the catalog knows it."""

    def __reduce__(self) -> tuple[object, ...]:
        return plant, (self.policy,)


def plant(name: str) -> ByPolicy:
    """Make the planted policies known in this process."""
    planning.suited = _suited
    return ByPolicy(name, None, seed=0, is_forced=True)


def _suited(
    name: str, request: PolicyRequest, *, is_forced: bool = False, sets_shares: bool = True
) -> tuple[Listed, str]:
    if name in PLANTED:
        return PLANTED[name], ""
    return suited(name, request, is_forced=is_forced, sets_shares=sets_shares)


def hot_task(policy: str = "packing") -> PlanningInput:
    """A small deployment with one hot expert, and a policy to use."""
    current = layers_of([[0, 1, 2], [3, 0, 1]], num_experts=4)
    task = task_of(current, [[60, 20, 40, 20]], "packing")
    if policy not in PLANTED:
        return task
    return replace(task, goal=Planting(policy, None, seed=0, is_forced=True))
