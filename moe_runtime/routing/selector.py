"""The reference selector.

Axes    T tokens   E experts   G groups   K experts per token

    s = softmax(x), sigmoid(x) or sqrt(softplus(x))     in float32 or better
    c = s + correction                             used to choose, never as a weight
    groups by best c (or, with a correction, by the sum of their two best c);
    dropped groups get -inf, so a negative c in a kept group still beats them
    ids = best k of c, ties to the lower id
    w = s[ids]; renormalised by sum + eps if asked; times the factor, once

The semantics are those of DeepSeek-V3's gate (its `noaux_tc`). `backends.scoring.weigh` is the
only owner of the factor. What is legal follows from the number of experts alone,
never from the width of the tokens.
"""

import torch
from torch import Tensor

from moe_runtime.backends.protocol import Backend
from moe_runtime.backends.scoring import score, weigh
from moe_runtime.contracts.errors import ImpossibleRouting, ShapeMismatch
from moe_runtime.contracts.gating import Choice, SelectorSettings
from moe_runtime.contracts.ids import LogicalIds

__all__ = ["check_correction", "check_logits", "select"]


def select(
    logits_TE: Tensor,
    settings: SelectorSettings,
    *,
    correction_E: Tensor | None,
    backend: Backend,
) -> Choice:
    """Choose experts for each token.

    correction_E    [E]  added to the scores to choose, or None

    Raises ShapeMismatch, and ImpossibleRouting for a correction with groups of one expert.
    """
    check_logits(logits_TE, settings.num_experts)
    check_correction(settings, correction_E)
    scores_TE = score(logits_TE, settings.scoring)
    judged_TE = scores_TE if correction_E is None else scores_TE + correction_E.to(scores_TE.dtype)
    if settings.kept_groups < settings.num_groups:
        num_judged = 1 if correction_E is None else 2
        judged_TE = _drop_groups(judged_TE, settings, num_judged=num_judged, backend=backend)
    ids_TK = backend.top_k(judged_TE, settings.top_k)
    weights_TK = weigh(
        scores_TE.gather(1, ids_TK), renormalise=settings.renormalise, factor=settings.factor
    )
    return Choice(LogicalIds(ids_TK), weights_TK)


def check_logits(logits_TE: Tensor, num_candidates: int) -> None:
    """Raise ShapeMismatch unless there is a logit for each expert to choose from."""
    if logits_TE.ndim != 2 or logits_TE.shape[1] != num_candidates:
        raise ShapeMismatch("logits", got=logits_TE.shape, expected=f"(T, {num_candidates})")


def check_correction(settings: SelectorSettings, correction_E: Tensor | None) -> None:
    """Raise ShapeMismatch or ImpossibleRouting unless the correction fits the settings."""
    e = settings.num_experts
    if correction_E is None:
        return
    if correction_E.shape != (e,):
        raise ShapeMismatch("correction", got=correction_E.shape, expected=f"({e},)")
    if not correction_E.is_floating_point():
        raise ImpossibleRouting(f"a correction of {correction_E.dtype} is no correction of scores")
    if settings.kept_groups < settings.num_groups and e // settings.num_groups < 2:
        raise ImpossibleRouting(
            f"with a correction a group is judged by its two best experts, but {e} experts "
            f"in {settings.num_groups} groups leave one in each"
        )


def _drop_groups(
    judged_TE: Tensor, settings: SelectorSettings, *, num_judged: int, backend: Backend
) -> Tensor:
    """Leave the kept groups as they are and set all others to -inf."""
    group_size = settings.num_experts // settings.num_groups
    by_group = judged_TE.view(judged_TE.shape[0], settings.num_groups, group_size)
    scores_TG = by_group.topk(num_judged, dim=2).values.sum(dim=2)
    kept = backend.top_k(scores_TG, settings.kept_groups)
    dropped_TG = torch.ones_like(scores_TG, dtype=torch.bool).scatter(1, kept, value=False)
    return by_group.masked_fill(dropped_TG[:, :, None], -torch.inf).view_as(judged_TE)
