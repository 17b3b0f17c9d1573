"""The fused gating operation on CPU: scores, groups, the best k and weights in one call.

Axes    T tokens   E experts   G groups   K experts per token

It goes the way of npu_moe_gating_top_k, which draws the best one after the other, where the
reference sorts; that both end at the same ids and weights is tested, not assumed.
"""

import torch
from torch import Tensor

from moe_runtime.backends.scoring import score, weigh
from moe_runtime.contracts.gating import Choice, SelectorSettings
from moe_runtime.contracts.ids import LogicalIds

__all__ = ["gate"]


def gate(logits_TE: Tensor, settings: SelectorSettings, correction_E: Tensor | None) -> Choice:
    """Choose experts for each token; only where `routing.fused.refusals` finds none."""
    scores_TE = score(logits_TE, settings.scoring)
    judged_TE = scores_TE if correction_E is None else scores_TE + correction_E.to(scores_TE.dtype)
    # What is kept is drawn before what is dropped, also where it stands at -inf.
    lowest = torch.finfo(judged_TE.dtype).min
    candidates_TE = judged_TE.clamp(min=lowest)
    if settings.num_groups > 1:
        by_group = _grouped(judged_TE, settings)
        worth_TG = _worth(by_group, num_judged=1 if correction_E is None else 2)
        kept = _draw(worth_TG.clamp(min=lowest), settings.kept_groups)
        kept_TG = torch.zeros_like(worth_TG, dtype=torch.bool).scatter(1, kept, value=True)
        in_kept = torch.where(kept_TG[:, :, None], _grouped(candidates_TE, settings), -torch.inf)
        candidates_TE = in_kept.view_as(candidates_TE)
    ids_TK = _draw(candidates_TE, settings.top_k)
    weights_TK = weigh(
        scores_TE.gather(1, ids_TK), renormalise=settings.renormalise, factor=settings.factor
    )
    return Choice(LogicalIds(ids_TK), weights_TK)


def _grouped(scores_TE: Tensor, settings: SelectorSettings) -> Tensor:
    group_size = settings.num_experts // settings.num_groups
    return scores_TE.view(scores_TE.shape[0], settings.num_groups, group_size)


def _worth(by_group: Tensor, *, num_judged: int) -> Tensor:
    """Return [T, G]: the best of each group, or the sum of its two best."""
    best = by_group.amax(dim=2)
    if num_judged == 1:
        return best
    first = by_group.argmax(dim=2, keepdim=True)
    return best + by_group.scatter(2, first, -torch.inf).amax(dim=2)


def _draw(judged: Tensor, count: int) -> Tensor:
    """Return the best of each row, one after the other; argmax takes the lowest of equals."""
    left = judged.clone()
    drawn: list[Tensor] = []
    for _ in range(count):
        best = left.argmax(dim=1, keepdim=True)
        left.scatter_(1, best, -torch.inf)
        drawn.append(best)
    return torch.cat(drawn, dim=1)
