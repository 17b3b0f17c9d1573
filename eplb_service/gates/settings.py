"""What the gates go by: every threshold with its unit and default."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GateSettings:
    """Thresholds of all gates; operators may change them while the service runs."""

    trigger_imbalance: float = 1.15
    """Measured imbalance, mean over layers with data, above which a plan is due."""
    trigger_worst_layer: float = 1.5
    """Measured imbalance of a single layer above which a plan is due whatever the mean."""
    min_gain: float = 0.05
    """Least drop of the changed layers' mean imbalance that a plan must promise, as a share."""
    min_steps: int = 20
    """Steps that a window must enclose."""
    min_tokens_per_expert: float = 8.0
    """Mean tokens per expert, over layers with data, that a window must hold."""
    min_coverage: float = 1.0
    """Share of ranks that must have reported."""
    cooldown_s: float = 10.0
    """Seconds from the end of one plan to the start of the next automatic one."""
    hold_back_s: float = 60.0
    """Seconds for which automatic plans leave a layer alone that they have put back; doubles."""
    worse_margin: float = 0.05
    """Share by which imbalance or step time must grow for a plan to count as worse."""
    max_payback_steps: float = 100_000.0
    """Steps within which a plan must win back the time that it costs."""
