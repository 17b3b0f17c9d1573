"""One policy through all windows of one load, each plan made from its own one before.

Axes    N ranks   L MoE layers   E logical experts
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.placement.judging import Afterwards, Judged, judge, look_again
from benchmarks.placement.scenarios import CountArray, by_source, source_weights
from benchmarks.placement.shapes import Shape
from eplb_service.domain.ids import FloatArray
from eplb_service.domain.placement import Placement, initial_placement
from eplb_service.policies.bounds import Topology
from eplb_service.policies.catalog import Listed, policy_named
from eplb_service.policies.greedy import greedy_by_node
from eplb_service.policies.groups import misfit
from eplb_service.policies.hierarchical import hierarchical
from eplb_service.policies.kernels.library import packed
from eplb_service.policies.request import PolicyRequest, even_split

__all__ = ["Load", "Plan", "Row", "Value", "as_record", "plan_of", "run", "unfit"]

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """The windows of one run; every policy gets the same."""

    shape: Shape
    scenario: str
    seed: int
    tokens: Sequence[CountArray]
    """[L, E] of each window."""

    def sources(self, window: int) -> FloatArray:
        """[N, L, E] tokens of a window by the rank that sends them."""
        weights = source_weights(self.shape.num_ranks, seed=self.seed)
        return by_source(self.tokens[window], weights, seed=self.seed, window=window)


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One window of one policy."""

    load: Load
    policy: str
    window: int
    judged: Judged
    afterwards: Afterwards | None
    """None in the last window, which no other follows."""
    ms: float
    """Time of the plan, on one thread."""
    reference_ms: float
    """Time of greedy replication with longest-first packing of the same heat."""


Plan = Callable[[PolicyRequest], tuple[Placement, float]]
"""Draws a placement, and says how many milliseconds that took on one thread."""


def plan_of(policy: str) -> Plan:
    """Return how a policy of the project plans."""
    listed = policy_named(policy)
    return lambda request: _timed(listed, request)


def run(load: Load, policy: str, plan: Plan) -> Iterator[Row]:
    """Plan every window and judge the plan on it and on the next."""
    shape = load.shape
    held = initial_placement(
        num_layers=shape.num_layers, num_experts=shape.num_experts, layout=shape.layout
    )
    sources = load.sources(0)
    for window in range(len(load.tokens)):
        heat = sources.sum(axis=0)
        request = request_of(shape, held, heat, load.seed)
        drawn, spent = plan(request)
        judged = judge(held, drawn, sources, shape.nodes)
        held, afterwards = drawn, None
        if window + 1 < len(load.tokens):
            sources = load.sources(window + 1)
            afterwards = look_again(held, judged, sources, shape.nodes)
        yield Row(load, policy, window, judged, afterwards, spent, _reference_ms(shape, heat))


def unfit(shape: Shape, policy: str) -> str:
    """Say why a policy cannot plan for a shape; empty where it can."""
    if policy_named(policy).draw not in {hierarchical, greedy_by_node}:
        return ""
    held = initial_placement(num_layers=1, num_experts=shape.num_experts, layout=shape.layout)
    return misfit(request_of(shape, held, np.ones((1, shape.num_experts)), 0))


def as_record(row: Row) -> dict[str, Value]:
    """Return a row for machines, one number under each name; None is no number."""
    following: dict[str, Value] = dict.fromkeys(Afterwards.__dataclass_fields__)
    if row.afterwards is not None:
        following = asdict(row.afterwards)
    record: dict[str, Value] = {
        "shape": row.load.shape.name,
        "scenario": row.load.scenario,
        "seed": row.load.seed,
        "policy": row.policy,
        "window": row.window,
        **asdict(row.judged.changes),
        **asdict(row.judged.balances),
        **following,
        "ms": row.ms,
        "ms_over_reference": row.ms / row.reference_ms,
        "split_over_reference": row.judged.changes.split_ms / row.reference_ms,
    }
    return {name: None if _is_nan(value) else value for name, value in record.items()}


def _is_nan(value: Value) -> bool:
    return isinstance(value, float) and math.isnan(value)


def request_of(shape: Shape, held: Placement, heat: FloatArray, seed: int) -> PolicyRequest:
    """Ask for a plan for heat [L, E] from what is held."""
    return PolicyRequest(
        heat=heat,
        placement=held,
        split=even_split(shape.num_ranks),
        layers=tuple(range(held.num_layers)),
        topology=Topology(shape.nodes, shape.num_groups),
        seed=seed,
    )


def _timed(listed: Listed, request: PolicyRequest) -> tuple[Placement, float]:
    start = time.process_time()
    drawn = listed.draw(request)
    return drawn, 1000 * (time.process_time() - start)


def _reference_ms(shape: Shape, heat: FloatArray) -> float:
    sizes = np.tile(np.array(shape.layout.slots_per_rank), (len(heat), 1))
    start = time.process_time()
    packed(sizes, heat, is_joined=False)
    return max(1000 * (time.process_time() - start), 1e-3)
