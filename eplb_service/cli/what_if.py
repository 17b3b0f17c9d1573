"""What other placements would do with load that was counted: computed here, changes nothing.

Axes    L MoE layers   E logical experts   N ranks
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan

from eplb_service.domain.heat import (
    even_slot_load,
    imbalance,
    mean_with_data,
    rank_load,
    worst_with_data,
)
from eplb_service.domain.ids import FloatArray
from eplb_service.domain.layout import SlotLayout, uniform_layout
from eplb_service.domain.moves import num_moves
from eplb_service.domain.placement import Placement, initial_placement
from eplb_service.policies.bounds import Topology
from eplb_service.policies.catalog import suited
from eplb_service.policies.request import PolicyRequest, even_split
from eplb_service.policies.split import exact_split, split_imbalance

ENOUGH = 0.01
"""Share of the imbalance that more slots must win to be worth naming."""
MOST_TRIED = 9
"""Redundancies that are looked at where none is named."""


@dataclass(frozen=True, slots=True)
class Evenness:
    """Imbalance of one placement; NaN without load."""

    even: float
    """Mean over layers with load, an expert's tokens divided evenly over its replicas."""
    even_worst: float
    shares: float
    """Mean, tokens divided as levels ranks best."""
    shares_worst: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """One policy with one number of slots."""

    policy: str
    """The one that drew, which is another than was asked for where that does not fit."""
    layout: SlotLayout
    redundancy: int
    before: Evenness
    after: Evenness
    moves: int
    """Slots that get another expert."""
    warning: str


def evenness(heat: FloatArray, placement: Placement) -> Evenness:
    """Measure a placement under heat [L, E]."""
    even = imbalance(rank_load(even_slot_load(heat, placement), placement))
    shares = split_imbalance(heat, placement, exact_split(heat, placement))
    means = mean_with_data(even), mean_with_data(shares)
    worst = worst_with_data(even), worst_with_data(shares)
    return Evenness(means[0], worst[0], means[1], worst[1])


def outcome(
    heat: FloatArray, start: Placement, policy: str, topology: Topology
) -> tuple[Outcome, Placement]:
    """Let a policy plan for heat [L, E] from a placement, and measure what comes out.

    Raises UnknownPolicy, InvalidTable or InvalidSettings.
    """
    request = PolicyRequest(
        heat=heat,
        placement=start,
        split=even_split(start.layout.num_ranks),
        layers=tuple(range(start.num_layers)),
        topology=topology,
    )
    listed, warning = suited(policy, request)
    after = listed.draw(request)
    found = Outcome(
        policy=listed.name,
        layout=start.layout,
        redundancy=start.layout.num_slots - start.num_experts,
        before=evenness(heat, start),
        after=evenness(heat, after),
        moves=num_moves(start, after),
        warning=warning,
    )
    return found, after


def flat_start(heat: FloatArray, *, num_ranks: int, redundancy: int) -> Placement:
    """Lay the experts of heat [L, E] out as engines load them; raises InvalidSettings."""
    layers, experts = heat.shape
    layout = uniform_layout(num_experts=experts, num_ranks=num_ranks, num_redundant=redundancy)
    return initial_placement(num_layers=layers, num_experts=experts, layout=layout)


def redundancies(num_experts: int, num_ranks: int) -> tuple[int, ...]:
    """Numbers of redundant slots that divide over the ranks, least first.

    >>> redundancies(256, 32)
    (0, 32, 64, 96, 128, 160, 192, 224, 256)
    """
    first, most = -num_experts % num_ranks, num_experts * (num_ranks - 1)
    return tuple(range(first, most + 1, num_ranks))[:MOST_TRIED]


def least_enough(found: Sequence[tuple[int, float]]) -> int:
    """Of redundancies with what they reach, the least that no other beats by more than `ENOUGH`.

    >>> least_enough([(0, 1.9), (32, 1.02), (64, 1.015)])
    32
    """
    known = [(redundancy, value) for redundancy, value in found if not isnan(value)]
    if not known:
        return min(redundancy for redundancy, _ in found)
    best = min(value for _, value in known)
    return min(redundancy for redundancy, value in known if value <= best * (1 + ENOUGH))
