"""How experts are chosen by their scores, and what any way of choosing returns.

Axes    T tokens   E experts to choose from   G groups   K experts per token
"""

import math
from dataclasses import dataclass
from enum import Enum

from torch import Tensor

from moe_runtime.contracts.errors import ImpossibleRouting
from moe_runtime.contracts.ids import LogicalIds

__all__ = ["Choice", "Scoring", "SelectorSettings", "refuse_factor"]


class Scoring(Enum):
    """How logits become scores."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    SQRT_SOFTPLUS = "sqrtsoftplus"
    """sqrt(log(1 + exp(x)))."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorSettings:
    """Routing by scores. Raises ImpossibleRouting if no input could satisfy it."""

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
        refuse_factor(self.factor)
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

    @property
    def num_candidates(self) -> int:
        """Columns of the router's logits."""
        return self.num_experts


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The experts of each token and their weights, in the dtype the scores were computed in."""

    experts: LogicalIds
    weights_TK: Tensor


def refuse_factor(factor: float) -> None:
    """Raise ImpossibleRouting for a factor that weights cannot have."""
    if not (math.isfinite(factor) and factor > 0):
        raise ImpossibleRouting(f"weights cannot be scaled by {factor}, only by more than zero")
