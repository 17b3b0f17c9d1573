"""What a policy is asked, and how tokens of a replicated expert divide over its replicas.

Axes    L MoE layers   E logical experts   P slots   N ranks
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from eplb_service.domain.errors import InvalidRequest, InvalidSettings, InvalidTable
from eplb_service.domain.ids import FloatArray, frozen
from eplb_service.domain.placement import Placement
from eplb_service.policies.bounds import FLAT, UNBOUNDED, Bounds, Topology
from eplb_service.policies.replicas import require_heat
from eplb_service.policies.terms import PLAIN, Terms


@dataclass(frozen=True, slots=True, eq=False)
class PolicyRequest:
    """Everything that a policy may look at."""

    heat: FloatArray
    """[L, E] tokens per routed expert."""
    placement: Placement
    """What is served now; sound."""
    split: FloatArray
    """[N + 1, N] row c: the share of each of c replicas in slot order; see even_split."""
    layers: tuple[int, ...]
    """Layers that may change."""
    topology: Topology = FLAT
    max_moves: int | None = None
    """Slots that may get another expert; None for as many as needed."""
    seed: int = 0
    """For policies that draw."""
    tolerance: float = 0.01
    """A layer whose imbalance is within 1 + tolerance is balanced and stays."""
    terms: Terms = PLAIN
    """What a rank's load is made of."""
    bounds: Bounds = UNBOUNDED
    """Ranks that take no part, and other hard limits."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """[N] node of each rank; empty where not known."""
        return self.topology.nodes

    @property
    def num_groups(self) -> int:
        """Expert groups of the router; 1 where it has none."""
        return self.topology.num_groups

    def __post_init__(self) -> None:
        """Raises InvalidTable, InvalidRequest or InvalidSettings where it makes no sense.

        So heat that is not finite, or below 0, reaches no policy.
        """
        frozen(self.heat)
        frozen(self.split)
        _check_shapes(self)
        if self.max_moves is not None and self.max_moves < 0:
            raise InvalidSettings(f"a budget of {self.max_moves} moves; expected 0 or more")
        for at, layer in enumerate(self.layers):
            if not 0 <= layer < self.placement.num_layers:
                raise InvalidRequest(
                    f"layer {layer} does not exist; the deployment has MoE layers 0 to "
                    f"{self.placement.num_layers - 1}"
                )
            if layer in self.layers[:at]:
                raise InvalidRequest(f"layer {layer} is named twice; expected every layer once")


def _check_shapes(request: PolicyRequest) -> None:
    placement, num_ranks = request.placement, request.placement.layout.num_ranks
    pairs = (
        ("heat", request.heat, (placement.num_layers, placement.num_experts)),
        ("split", request.split, (num_ranks + 1, num_ranks)),
    )
    for name, array, expected in pairs:
        if array.shape != expected:
            raise InvalidTable(f"{name} has shape {list(array.shape)}; expected {list(expected)}")
        if array.dtype != np.float64:  # compiled loops read it so
            raise InvalidTable(f"{name} has dtype {array.dtype}; expected float64")
    if not np.isfinite(request.split).all() or (request.split < 0).any():
        raise InvalidTable("split has shares below 0 or not finite")
    require_heat(request.heat, placement)
    request.topology.require_fit(num_ranks)
    request.bounds.require_fit(num_ranks)
    if request.terms.speeds and len(request.terms.speeds) != num_ranks:
        raise InvalidTable(
            f"{len(request.terms.speeds)} speeds given; expected {num_ranks}, one per rank"
        )


Policy = Callable[[PolicyRequest], Placement]
"""A pure function: the same request gives the same placement, and nothing it is given changes."""


def even_split(num_ranks: int) -> FloatArray:
    """[N + 1, N] every replica of an expert takes the same share.

    >>> even_split(3)[2].tolist()
    [0.5, 0.5, 0.0]
    """
    counts = np.arange(num_ranks + 1)[:, None]
    return np.where(np.arange(num_ranks) < counts, 1.0 / np.maximum(counts, 1), 0.0)


def split_by_source(sources: FloatArray) -> FloatArray:
    """[N + 1, N] source rank r uses replica r mod count, the rule of domain.shares.

    sources    [N] tokens that each rank routes

    >>> split_by_source(np.ones(3))[2].round(3).tolist()
    [0.667, 0.333, 0.0]
    """
    num_ranks = len(sources)
    table = np.zeros((num_ranks + 1, num_ranks))
    for count in range(1, num_ranks + 1):
        np.add.at(table[count], np.arange(num_ranks) % count, sources / sources.sum())
    return table


def split_by_tensor_rank(sources: FloatArray, *, tensor_ranks: int) -> FloatArray:
    """[N + 1, N] source rank r uses replica (r mod t + r div t + expert) mod count.

    sources         [N] tokens that each rank routes
    tensor_ranks    t, ranks over which the attention of one replica of the model is divided

    The rule of vllm-ascend (generate_log2phy_map in eplb/core/eplb_utils.py) where t is above
    1; to be used with Terms(turn=1), which adds the expert.

    >>> split_by_tensor_rank(np.ones(4), tensor_ranks=2)[3].tolist()
    [0.25, 0.5, 0.25, 0.0]
    """
    num_ranks = len(sources)
    ranks = np.arange(num_ranks)
    table = np.zeros((num_ranks + 1, num_ranks))
    for count in range(1, num_ranks + 1):
        chosen = (ranks % tensor_ranks + ranks // tensor_ranks) % count
        np.add.at(table[count], chosen, sources / sources.sum())
    return table


def slot_shares(placement: Placement, split: FloatArray, terms: Terms = PLAIN) -> FloatArray:
    """[L, P] share of its expert's tokens that each slot takes; 0 for shared and empty slots."""
    layers, slots = np.nonzero(placement.routed())
    key = layers * placement.num_experts + placement.phy2log[layers, slots]
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    sizes = np.diff(np.concatenate((starts, [len(ordered)])))
    nth = np.arange(len(ordered)) - np.repeat(starts, sizes)
    counts = np.repeat(sizes, sizes)
    nth = terms.turned(nth, ordered % placement.num_experts, counts)
    shares = np.zeros(placement.phy2log.shape)
    shares[layers[order], slots[order]] = split[counts, nth]
    return shares


def predicted_load(
    heat: FloatArray, placement: Placement, split: FloatArray, terms: Terms = PLAIN
) -> FloatArray:
    """[L, N] tokens per rank that the split would send it, given the heat [L, E].

    Where the terms say what else counts, the cost of these tokens.
    """
    routed = placement.routed()
    held = np.where(routed, placement.phy2log, 0).astype(np.intp)
    hot = np.take_along_axis(heat, held, axis=1)
    tokens = hot * slot_shares(placement, split, terms) + terms.fixed * (routed & (hot > 0))
    layout = placement.layout
    ranks = [tokens[:, layout.slots_of(rank)].sum(axis=1) for rank in range(layout.num_ranks)]
    return np.stack(ranks, axis=1) * terms.slowness(layout.num_ranks)
