"""The fused gating operation by npu_moe_gating_top_k.

Axes    T tokens   E experts   K experts per token
"""

import torch
from torch import Tensor

from moe_runtime.backends.npu_door import NpuDoor
from moe_runtime.backends.scoring import weigh
from moe_runtime.contracts.gating import Choice, Scoring, SelectorSettings
from moe_runtime.contracts.ids import LogicalIds
from moe_runtime.contracts.npu_errors import NpuKernelMissing

__all__ = ["gate", "scores_by"]

_EPS = 1e-20
_SMALLEST_GROUP = 2
"""The operator takes groups of more experts than this."""


def scores_by(settings: SelectorSettings) -> bool:
    """Tell whether the operator scores and judges as the settings ask."""
    size = settings.num_experts // settings.num_groups
    if settings.num_groups > 1 and size <= _SMALLEST_GROUP:
        return False
    match settings.scoring:
        case Scoring.SOFTMAX:
            return True
        case Scoring.SIGMOID:
            return settings.renormalise
        case Scoring.SQRT_SOFTPLUS:
            return False


def gate(
    door: NpuDoor, logits_TE: Tensor, settings: SelectorSettings, correction_E: Tensor | None
) -> Choice:
    """Choose experts and weigh them, in float32.

    The operator brings sigmoid weights to a sum of one itself, always, and softmax weights
    never; those are brought to it here if asked, and the factor is applied once, after that.

    Raises NpuKernelMissing for what the operator does not score by.
    """
    softmax = settings.scoring is Scoring.SOFTMAX
    if settings.scoring is Scoring.SQRT_SOFTPLUS:
        raise NpuKernelMissing(
            "fused gating by sqrtsoftplus",
            reason="npu_moe_gating_top_k scores by softmax and sigmoid; route by the reference",
        )
    if not softmax and not settings.renormalise:
        raise NpuKernelMissing(
            "fused gating by sigmoid without renormalising",
            reason="npu_moe_gating_top_k always renormalises sigmoid; route by the reference",
        )
    weights_TK, ids_TK, _ = door.call(
        "npu_moe_gating_top_k",
        x=logits_TE.to(torch.float32),
        k=settings.top_k,
        bias=None if correction_E is None else correction_E.to(torch.float32),
        k_group=settings.kept_groups,
        group_count=settings.num_groups,
        group_select_mode=0 if correction_E is None else 1,
        renorm=0,
        norm_type=0 if softmax else 1,
        out_flag=False,
        routed_scaling_factor=1.0,
        eps=_EPS,
    )
    renormalise = softmax and settings.renormalise
    weights_TK = weigh(weights_TK, renormalise=renormalise, factor=settings.factor)
    return Choice(LogicalIds(ids_TK.to(torch.int64)), weights_TK)
