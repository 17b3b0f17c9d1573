"""What a plan wins and what it loses, in time. Pure.

Axes    L MoE layers   M transfers
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, nan

import numpy as np

from eplb_service.domain.ids import IntArray
from eplb_service.domain.moves import busiest_transfers, crosses_ranks
from eplb_service.domain.placement import Placement
from eplb_service.domain.plan import Moving
from eplb_service.domain.wave import LAYER
from eplb_service.policies.terms import PLAIN, Terms


@dataclass(frozen=True, slots=True)
class Timing:
    """Measured times, to price a plan by."""

    step_s: float
    expert_s: float
    """Expert computation in a step on the slowest rank, all layers."""
    stall_s: float
    """Time that serving is expected to lose to a whole plan of which nothing else is known."""
    lost_per_byte_s: float = 0.0
    """What serving lost by each byte moved so far, in the place of stall_s; 0: not measured."""
    bytes_per_s: float = 0.0
    """What the busiest rank sent, or received, in waves so far; 0: not measured."""
    terms: Terms = PLAIN
    """What the time of a rank is made of, in heat of as many steps as the window's."""

    def stall_of(self, num_bytes: int) -> float:
        """Seconds that serving is expected to lose to a plan that moves so much.

        >>> Timing(0.040, 0.012, 0.9, lost_per_byte_s=1e-9).stall_of(10**8)
        0.1
        """
        return num_bytes * self.lost_per_byte_s if self.lost_per_byte_s > 0 else self.stall_s

    def transfer_of(self, busiest_bytes: int) -> float:
        """Seconds until a plan is in use whose busiest rank moves so much; NaN: not measured.

        >>> Timing(0.040, 0.012, 0.9, bytes_per_s=1e9).transfer_of(5 * 10**8)
        0.5
        """
        return busiest_bytes / self.bytes_per_s if self.bytes_per_s > 0 else nan


def moving(
    waves: Sequence[IntArray], current: Placement, timing: Timing, *, bytes_per_expert: int
) -> Moving:
    """What waves of transfers move, layer by layer, and how long links take for it.

    waves    [M, 4] transfers of each wave, as domain.moves lists them
    """
    num_layers, each = current.num_layers, bytes_per_expert
    moved = np.concatenate([np.zeros((0, 4), np.int32), *waves])
    is_remote = crosses_ranks(moved, current)
    busiest = [
        busiest_transfers(moved[moved[:, LAYER] == layer], current) for layer in range(num_layers)
    ]
    whole = sum(busiest_transfers(transfers, current) for transfers in waves)
    return Moving(
        num_moves=np.bincount(moved[:, LAYER], minlength=num_layers).astype(np.int64),
        num_bytes=np.bincount(moved[is_remote, LAYER], minlength=num_layers) * each,
        seconds=np.array([timing.transfer_of(one * each) for one in busiest]),
        whole_s=timing.transfer_of(whole * each),
    )


def payback_steps(timing: Timing, *, before: float, after: float, transfer_s: float = 0.0) -> float:
    """Steps until the time won equals the time lost; infinite where nothing is won.

    transfer_s    seconds from a plan's start until it is in use, in which nothing is won; NaN where
                  that is not known, and not counted

    >>> round(payback_steps(Timing(0.040, 0.012, 0.9), before=1.40, after=1.05))
    300
    """
    if not before > 0 or not after < before:
        return float("inf")
    won_s = won_seconds(timing, before=before, after=after)
    if won_s <= 0:
        return 0.0 if timing.stall_s <= 0 else float("inf")
    is_known = timing.step_s > 0 and not isnan(transfer_s)
    waited = transfer_s / timing.step_s if is_known else 0.0
    return timing.stall_s / won_s + waited


def won_seconds(timing: Timing, *, before: float, after: float) -> float:
    """Time that a step wins; 0 where nothing is won.

    The slowest rank's expert time scales with the imbalance.

    >>> round(won_seconds(Timing(0.040, 0.012, 0.9), before=1.40, after=1.05), 6)
    0.003
    """
    if not before > 0 or not after < before:
        return 0.0
    return timing.expert_s * (1.0 - after / before)
