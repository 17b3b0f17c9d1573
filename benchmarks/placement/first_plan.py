"""The first plan of a fresh process: what an operator waits for who asks a planner just started.

Run as a module it is that process: it draws one plan and says what it took.
"""

import json
import subprocess
import sys
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.placement.runs import request_of
from benchmarks.placement.scenarios import Scenario, windows
from benchmarks.placement.shapes import SHAPES
from eplb_service.domain.placement import initial_placement
from eplb_service.policies.catalog import policy_named

__all__ = ["FirstPlan", "first_plan"]


@dataclass(frozen=True, slots=True)
class FirstPlan:
    """Processor seconds of one process."""

    start_s: float
    """From its start to the request: interpreter and imports."""
    plan_s: float
    """The plan itself, compiled loops loaded on the way."""

    @property
    def total_s(self) -> float:
        """All that stands before the first plan; making up a load is left out."""
        return self.start_s + self.plan_s


def first_plan(shape: str, policy: str) -> FirstPlan:
    """Let a fresh process plan window 0 of drift from the flat layout."""
    words = [sys.executable, "-m", __name__, shape, policy]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return FirstPlan(**json.loads(done.stdout))


def _main(shape_name: str, policy: str) -> None:
    start_s = time.process_time()
    shape = SHAPES[shape_name]
    heat = next(windows(Scenario.DRIFT, shape, seed=0, num_windows=1)).sum(axis=0)
    flat = initial_placement(
        num_layers=shape.num_layers, num_experts=shape.num_experts, layout=shape.layout
    )
    request = request_of(shape, flat, heat.astype(np.float64), 0)
    began_s = time.process_time()
    policy_named(policy).draw(request)
    print(json.dumps({"start_s": start_s, "plan_s": time.process_time() - began_s}))


if __name__ == "__main__":
    _main(*sys.argv[1:])
