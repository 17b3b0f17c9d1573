"""Step times of two ranks with an agent that has nothing to do, over those without."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.demo import measures
from benchmarks.demo.control import ControllerProcess, SettingsTree
from benchmarks.demo.model import AGREE_EVERY
from benchmarks.demo.ranks import Ranks
from benchmarks.demo.records import AgentSetup
from benchmarks.demo.supervisor import Segment, await_ready, run_segment
from benchmarks.figures import Figure
from benchmarks.traffic import Schedule
from moe_runtime.runtime import SlotLayout

__all__ = ["measure"]

_LAYOUT = SlotLayout((34, 34))
"""As many ranks as the smallest machine has cores, so that a step is not a matter of waiting."""
_SETTINGS: SettingsTree = {
    "server": {"port": 0, "metrics_port": 0},
    "planning": {"is_automatic": False},
    "protocol": {"agree_every": AGREE_EVERY},
}
_BLOCK = 200
_NUM_PAIRS = 3
_SKIPPED = 20
"""Steps at the start of a block that only warm it up."""


def measure() -> list[Figure]:
    """Serve blocks with and without agents in turn, back to back, and compare step times."""
    schedule = Schedule(("c4",), _BLOCK, interval_s=0.0)
    with (
        tempfile.TemporaryDirectory(prefix="eplb-forward-") as folder,
        Ranks(_LAYOUT, staging_rows=4) as ranks,
        ControllerProcess(
            Path(folder), Path(folder) / "controller.log", _SETTINGS, on_ray=False
        ) as controller,
    ):
        await_ready(ranks)
        agent = AgentSetup(controller.endpoint, "forward")
        pairs = [
            (_block(ranks, schedule, None), _block(ranks, schedule, agent))
            for _ in range(_NUM_PAIRS)
        ]
    without = np.concatenate([pair[0] for pair in pairs])
    beside = np.concatenate([pair[1] for pair in pairs])
    return list(_figures(without, beside))


def _block(ranks: Ranks, schedule: Schedule, agent: AgentSetup | None) -> npt.NDArray[np.float64]:
    """Return [T] seconds of each step."""
    segment = Segment(schedule, 0, _BLOCK, agent, is_shown=False)
    ledger = run_segment(ranks, segment, list)
    return measures.step_seconds(ledger.seconds_NT)[_SKIPPED:]


def _figures(without: npt.NDArray[np.float64], beside: npt.NDArray[np.float64]) -> Iterator[Figure]:
    for name, share, limit in (("median", 0.5, 1.25), ("p99", 0.99, None)):
        alone, served = (float(np.quantile(steps, share)) for steps in (without, beside))
        yield Figure(f"step {name} without an agent", 1e3 * alone, "ms")
        yield Figure(f"step {name} with an idle agent", 1e3 * served, "ms")
        yield Figure(f"step {name}, with over without", served / alone, "", limit)
