"""What a plan wins and what it loses, in time. Pure."""

from dataclasses import dataclass

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
        """Seconds until a plan is in use whose busiest rank moves so much; 0: not measured.

        >>> Timing(0.040, 0.012, 0.9, bytes_per_s=1e9).transfer_of(5 * 10**8)
        0.5
        """
        return busiest_bytes / self.bytes_per_s if self.bytes_per_s > 0 else 0.0


def payback_steps(timing: Timing, *, before: float, after: float, transfer_s: float = 0.0) -> float:
    """Steps until the time won equals the time lost; infinite where nothing is won.

    transfer_s    seconds from a plan's start until it is in use, in which nothing is won

    >>> round(payback_steps(Timing(0.040, 0.012, 0.9), before=1.40, after=1.05))
    300
    """
    if not before > 0 or not after < before:
        return float("inf")
    won_s = won_seconds(timing, before=before, after=after)
    if won_s <= 0:
        return 0.0 if timing.stall_s <= 0 else float("inf")
    waited = transfer_s / timing.step_s if timing.step_s > 0 else 0.0
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
