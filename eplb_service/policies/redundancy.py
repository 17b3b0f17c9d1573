"""How many slots a deployment should have: what further ones buy on load that was recorded.

Axes    L MoE layers   E logical experts   N ranks
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eplb_service.domain.errors import InvalidSettings
from eplb_service.domain.heat import (
    even_slot_load,
    imbalance,
    mean_with_data,
    rank_load,
    worst_with_data,
)
from eplb_service.domain.ids import FloatArray
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import Placement, initial_placement
from eplb_service.policies.connected import connected
from eplb_service.policies.greedy import greedy
from eplb_service.policies.replicas import num_components
from eplb_service.policies.request import PolicyRequest, even_split
from eplb_service.policies.split import exact_split, split_imbalance


@dataclass(frozen=True, slots=True)
class Redundancy:
    """What so many slots come to; imbalance as means over layers with data."""

    num_slots: int
    can_connect: bool
    """Whether there are spare slots enough to join all ranks by replicated experts."""
    components: float
    """Of the replica graph, mean over layers; 1 where shares can level all ranks."""
    even: float
    """Imbalance under an even split, packed for the first window, over all windows."""
    shares: float
    """Imbalance under the best split of the first window, joined for it."""
    later: float
    """The same placement in the windows after it, shares drawn anew, nothing moved."""
    worst: float
    """The highest imbalance of any layer and window under the best split."""
    gain_per_slot: float
    """Of `later`, against the row before, by slot added; NaN in the first row."""


def advise(windows: Sequence[FloatArray], num_ranks: int, slots: Sequence[int]) -> list[Redundancy]:
    """Plan for the first window with each number of slots, and hold the plan in all windows.

    windows    [L, E] tokens each, one or more, alike in shape
    slots      rising; at least E and at most N x E of them

    Slots are spread over the ranks as evenly as they go. Where one window is all there is, it
    is also the later one. Raises InvalidSettings or InvalidTable where this makes no sense.
    """
    if not windows or num_ranks < 1 or list(slots) != sorted(set(slots)):
        raise InvalidSettings(
            f"{len(windows)} windows, {num_ranks} ranks, slots {list(slots)}; expected one or "
            "more windows and ranks, and rising numbers of slots"
        )
    num_experts = windows[0].shape[1]
    found: list[Redundancy] = []
    for count in slots:
        if not num_experts <= count <= num_ranks * num_experts:
            raise InvalidSettings(
                f"{count} slots for {num_experts} experts on {num_ranks} ranks; expected "
                f"{num_experts} to {num_ranks * num_experts}, an expert once on a rank"
            )
        layout = SlotLayout(tuple((count + rank) // num_ranks for rank in range(num_ranks)))
        found.append(_with_slots(windows, layout, found[-1] if found else None))
    return found


def suggested(num_experts: int, num_ranks: int, most_per_rank: int) -> list[int]:
    """List numbers of slots worth a look: none spare, enough to join all ranks, each round more.

    >>> suggested(num_experts=8, num_ranks=4, most_per_rank=2)
    [8, 11, 12, 16]
    """
    rounds = [num_experts + num_ranks * n for n in range(most_per_rank + 1)]
    counts = {*rounds, num_experts + num_ranks - 1}
    return sorted(count for count in counts if count <= num_ranks * num_experts)


def _with_slots(
    windows: Sequence[FloatArray], layout: SlotLayout, before: Redundancy | None
) -> Redundancy:
    joined = _drawn(windows[0], layout, is_joined=True)
    packed = _drawn(windows[0], layout, is_joined=False)
    peaks = [split_imbalance(heat, joined, exact_split(heat, joined)) for heat in windows]
    even = [imbalance(rank_load(even_slot_load(heat, packed), packed)) for heat in windows]
    later = mean_with_data(np.concatenate(peaks[1:] or peaks))
    gain = float("nan")
    if before is not None:
        gain = (before.later - later) / (layout.num_slots - before.num_slots)
    highest = np.concatenate(peaks)
    return Redundancy(
        num_slots=layout.num_slots,
        can_connect=layout.num_slots - joined.num_experts >= layout.num_ranks - 1,
        components=float(num_components(joined).mean()),
        even=mean_with_data(np.concatenate(even)),
        shares=mean_with_data(peaks[0]),
        later=later,
        worst=worst_with_data(highest),
        gain_per_slot=gain,
    )


def _drawn(heat: FloatArray, layout: SlotLayout, *, is_joined: bool) -> Placement:
    num_layers, num_experts = heat.shape
    flat = initial_placement(num_layers=num_layers, num_experts=num_experts, layout=layout)
    split = even_split(layout.num_ranks)
    request = PolicyRequest(heat, flat, split, tuple(range(num_layers)))
    return connected(request) if is_joined else greedy(request)
