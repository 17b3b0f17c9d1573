"""The reference selector.

Axes    T tokens   E experts   G groups   K experts per token

    s = softmax(x) or sigmoid(x)                   in float32 or better
    c = s + correction                             used to choose, never as a weight
    groups by best c (or, with a correction, by the sum of their two best c);
    dropped groups get -inf, so a negative c in a kept group still beats them
    ids = best k of c, ties to the lower id
    w = s[ids]; renormalised by sum + eps if asked; times the factor, once

The semantics are those of DeepSeek-V3's gate (its `noaux_tc`). `_normalise` is the
only owner of the factor. What is legal follows from the number of experts alone,
never from the width of the tokens.
"""

from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from moe_runtime.backends.protocol import Backend
from moe_runtime.contracts.errors import ImpossibleRouting, ShapeMismatch
from moe_runtime.contracts.ids import LogicalIds

__all__ = ["Choice", "Scoring", "SelectorSettings", "select"]

_EPS = 1e-20
"""Keeps a row of all-zero scores from dividing by zero."""


class Scoring(Enum):
    """How logits become scores."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorSettings:
    """How a layer chooses. Raises ImpossibleRouting if no input could satisfy it."""

    num_experts: int
    top_k: int
    scoring: Scoring
    renormalise: bool = True
    factor: float = 1.0
    """Multiplies the weights, after renormalising."""
    num_groups: int = 1
    kept_groups: int = 1

    def __post_init__(self) -> None:
        e, k, g, kept = self.num_experts, self.top_k, self.num_groups, self.kept_groups
        if not 1 <= k <= e:
            raise ImpossibleRouting(f"cannot choose {k} of {e} experts; top_k must be 1 to {e}")
        if g < 1 or e % g:
            raise ImpossibleRouting(f"{e} experts do not divide into {g} groups of equal size")
        if not 1 <= kept <= g:
            raise ImpossibleRouting(f"cannot keep {kept} of {g} groups")
        if k > kept * (e // g):
            raise ImpossibleRouting(
                f"{kept} groups of {e // g} experts hold {kept * (e // g)} experts, "
                f"fewer than the {k} to choose"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The experts of each token and their weights, in the dtype the scores were computed in."""

    experts: LogicalIds
    weights_TK: Tensor


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
    _check(logits_TE, settings, correction_E)
    scores_TE = _score(logits_TE, settings.scoring)
    judged_TE = scores_TE if correction_E is None else scores_TE + correction_E.to(scores_TE.dtype)
    if settings.kept_groups < settings.num_groups:
        num_judged = 1 if correction_E is None else 2
        judged_TE = _drop_groups(judged_TE, settings, num_judged=num_judged, backend=backend)
    ids_TK = backend.top_k(judged_TE, settings.top_k)
    weights_TK = _normalise(scores_TE.gather(1, ids_TK), settings)
    return Choice(LogicalIds(ids_TK), weights_TK)


def _check(logits_TE: Tensor, settings: SelectorSettings, correction_E: Tensor | None) -> None:
    e = settings.num_experts
    if logits_TE.ndim != 2 or logits_TE.shape[1] != e:
        raise ShapeMismatch("logits", got=logits_TE.shape, expected=f"(T, {e})")
    if correction_E is not None:
        if correction_E.shape != (e,):
            raise ShapeMismatch("correction", got=correction_E.shape, expected=f"({e},)")
        if settings.kept_groups < settings.num_groups and e // settings.num_groups < 2:
            raise ImpossibleRouting(
                f"with a correction a group is judged by its two best experts, but {e} experts "
                f"in {settings.num_groups} groups leave one in each"
            )


def _score(logits_TE: Tensor, scoring: Scoring) -> Tensor:
    logits = logits_TE.to(torch.promote_types(logits_TE.dtype, torch.float32))
    match scoring:
        case Scoring.SOFTMAX:
            return torch.softmax(logits, dim=1)
        case Scoring.SIGMOID:
            return torch.sigmoid(logits)


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


def _normalise(weights_TK: Tensor, settings: SelectorSettings) -> Tensor:
    """Bring weights to a sum of one if asked, then apply the factor; nobody else applies it."""
    if settings.renormalise:
        weights_TK = weights_TK / (weights_TK.sum(dim=1, keepdim=True) + _EPS)
    return weights_TK * settings.factor
