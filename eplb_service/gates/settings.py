"""The limits that gates go by."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GateSettings:
    """Limits on when a plan may run and how large it may be."""

    trigger: float = 1.15
    """Imbalance (peak over mean) that the worst layer must exceed."""
    min_gain: float = 0.05
    """Share of the summed peaks of the changed layers that a plan must take away."""
    min_coverage: float = 0.9
    """Share of ranks that must have reported."""
    min_steps: int = 10
    """Steps that the window must enclose."""
    min_tokens_per_rank: float = 10.0
    """Routed token copies per rank, in the mean over layers with load."""
    max_moves: int = 4096
    """Slots that one plan may give another expert."""
    max_bytes: int = 256 * 2**30
    """Bytes that ranks may send each other for one plan."""
    cool_down_s: float = 60.0
    """Seconds from the end of one plan to the start of the next."""
    horizon_steps: float = 3000.0
    """Steps in which a plan must pay back the time that it costs: how long load stays alike."""
    max_heat_age_s: float = 120.0
    """Seconds since the newest report that a plan rests on."""
