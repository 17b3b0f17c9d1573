"""From logits to scores, and from scores to weights: one way for every path of choosing.

Axes    T tokens   E experts to choose from   K experts per token
"""

import torch
from torch import Tensor

from moe_runtime.contracts.gating import Scoring

__all__ = ["score", "weigh"]

_EPS = 1e-20
"""Keeps a row of all-zero scores from dividing by zero."""


def score(logits_TE: Tensor, scoring: Scoring) -> Tensor:
    """Return scores, in float32 or better."""
    logits = logits_TE.to(torch.promote_types(logits_TE.dtype, torch.float32))
    match scoring:
        case Scoring.SOFTMAX:
            return torch.softmax(logits, dim=1)
        case Scoring.SIGMOID:
            return torch.sigmoid(logits)
        case Scoring.SQRT_SOFTPLUS:
            # exp(x) is infinite from x = 89 in float32; logaddexp never forms it.
            return torch.logaddexp(logits, torch.zeros_like(logits)).sqrt()


def weigh(scores_TK: Tensor, *, renormalise: bool, factor: float) -> Tensor:
    """Bring weights to a sum of one if asked, then apply the factor; nobody else applies it."""
    if renormalise:
        scores_TK = scores_TK / (scores_TK.sum(dim=1, keepdim=True) + _EPS)
    return scores_TK * factor
