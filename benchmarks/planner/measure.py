"""Policies on real counts and on a seeded load of Kimi K3's shape.

Axes    L MoE layers   E experts
"""

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.counts import domain_counts
from benchmarks.figures import Figure
from eplb_service.domain.heat import imbalance
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import Placement, initial_placement
from eplb_service.policies.catalog import policy_named
from eplb_service.policies.request import PolicyRequest, predicted_load, split_by_source

__all__ = ["measure"]

_SEED = 20
_K3_LAYERS, _K3_EXPERTS = 92, 896
_BUDGET = 512
"""Moves of one plan at Kimi K3's shape; the service's own default."""


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """One load to plan for."""

    name: str
    tokens: npt.NDArray[np.float64]
    """[L, E]"""
    layout: SlotLayout
    max_moves: int | None


@dataclass(frozen=True, slots=True)
class Drawn:
    """What one policy made of one load."""

    seconds: float
    before: float
    after: float
    moves: int


def measure() -> list[Figure]:
    """Draw with each policy and return the figures; packing is the measure of the others."""
    figures: list[Figure] = []
    for load in _loads():
        packing = _draw("packing", load)
        figures += _figures(load, "packing", packing, imbalance_at_most=1.02)
        changed = _draw("incremental", load)
        figures += _figures(load, "incremental", changed, imbalance_at_most=changed.before)
        name, moves = f"{load.name} incremental", changed.moves / packing.moves
        figures += [
            Figure(f"{name}, moves over packing's", moves, "", 1.0),
            Figure(f"{name}, time over packing's", changed.seconds / packing.seconds, "", 2.0),
        ]
    return figures


def _loads() -> list[Load]:
    draw = np.random.default_rng(_SEED)
    eight = SlotLayout((10,) * 8)
    real = [
        Load(f"olmoe {domain}", domain_counts(domain).astype(np.float64), eight, None)
        for domain in ("c4", "github", "arxiv")
    ]
    skewed = 1e4 * draw.lognormal(0.0, 0.8, size=(_K3_LAYERS, _K3_EXPERTS))
    return [*real, Load("k3 seeded", skewed, SlotLayout((16,) * 64), _BUDGET)]


def _draw(policy: str, load: Load) -> Drawn:
    num_layers, num_experts = load.tokens.shape
    flat = initial_placement(num_layers=num_layers, num_experts=num_experts, layout=load.layout)
    request = PolicyRequest(
        heat=load.tokens,
        placement=flat,
        split=split_by_source(np.ones(load.layout.num_ranks)),
        layers=tuple(range(num_layers)),
        max_moves=load.max_moves,
    )
    started = time.process_time()
    target = policy_named(policy).draw(request)
    seconds = time.process_time() - started
    return Drawn(
        seconds=seconds,
        before=_mean_imbalance(request, flat),
        after=_mean_imbalance(request, target),
        moves=int((flat.phy2log != target.phy2log).sum()),
    )


def _mean_imbalance(request: PolicyRequest, placement: Placement) -> float:
    return float(imbalance(predicted_load(request.heat, placement, request.split)).mean())


def _figures(load: Load, policy: str, drawn: Drawn, *, imbalance_at_most: float) -> list[Figure]:
    name = f"{load.name} {policy}"
    return [
        Figure(f"{name}, time", drawn.seconds, "s"),
        Figure(f"{name}, imbalance from {drawn.before:.3f} to", drawn.after, "", imbalance_at_most),
        Figure(f"{name}, moves", float(drawn.moves), "slots"),
    ]
