"""By which of its two paths a router chooses on an Ascend device."""

from moe_runtime.backends.npu_gating import scores_by
from moe_runtime.contracts.gating import SelectorSettings
from moe_runtime.routing.kinds import OnInputRouting, Routing, ZeroExpertRouting
from moe_runtime.routing.router import GatingPath

__all__ = ["ascend_path"]


def ascend_path(routing: Routing, *, has_operator: bool) -> GatingPath:
    """Choose by the device's operator where it has one that scores as the routing asks."""
    by = routing.by if isinstance(routing, OnInputRouting) else routing
    by = by.among if isinstance(by, ZeroExpertRouting) else by
    fits = has_operator and isinstance(by, SelectorSettings) and scores_by(by)
    return GatingPath.FUSED_WHERE_LEGAL if fits else GatingPath.REFERENCE
