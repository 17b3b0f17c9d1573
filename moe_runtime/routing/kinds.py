"""The kinds of routing, one type each, and the tensors that each brings from the model.

Axes    T tokens   D model width   E routed experts   K experts per token   V token ids
        X experts to choose from: the routed ones, then any zero experts

A kind has the settings that mean something for it and no others: there is no correction for
a table, no renormalising of what a model's own function returns, and no weight on the input
for more than one expert.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from moe_runtime.contracts.errors import ImpossibleRouting
from moe_runtime.contracts.gating import Scoring, SelectorSettings, refuse_factor

__all__ = [
    "Chosen",
    "Corrected",
    "CustomRouting",
    "HashRouting",
    "HashTable",
    "OnInputRouting",
    "RouterTensors",
    "Routing",
    "RoutingFunction",
    "Uncorrected",
    "ZeroExpertRouting",
    "groups_of",
]


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """What a model's own routing function returns."""

    experts_TK: Tensor
    """Integers [T, K], 0..E-1, distinct in each row."""
    weights_TK: Tensor
    """Normalised as the model wants it; not yet scaled by the factor."""


class RoutingFunction(Protocol):
    """A model's own way to choose."""

    def __call__(self, x_TD: Tensor, logits_TE: Tensor, *, top_k: int) -> Chosen:
        """Choose experts for tokens as the router reads them: full width, never quantised."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HashRouting:
    """A table names the experts of each token id; scores only weigh them (DeepSeek-V4)."""

    num_experts: int
    top_k: int
    vocabulary: int
    """V, rows of the table."""
    scoring: Scoring
    renormalise: bool = True
    factor: float = 1.0

    def __post_init__(self) -> None:
        _refuse_top_k(self.top_k, self.num_experts)
        refuse_factor(self.factor)
        if self.vocabulary < 1:
            raise ImpossibleRouting(f"a table of {self.vocabulary} token ids routes no token")

    @property
    def num_candidates(self) -> int:
        """Columns of the router's logits."""
        return self.num_experts


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomRouting:
    """The model's own function chooses and normalises; the factor is still applied here, once."""

    num_experts: int
    top_k: int
    function: RoutingFunction
    factor: float = 1.0

    def __post_init__(self) -> None:
        _refuse_top_k(self.top_k, self.num_experts)
        refuse_factor(self.factor)

    @property
    def num_candidates(self) -> int:
        """Columns of the router's logits."""
        return self.num_experts


@dataclass(frozen=True, slots=True)
class ZeroExpertRouting:
    """Among the experts to choose from, the last ones give a token back as it is (LongCat).

    Raises ImpossibleRouting for groups, which no such model has, and where fewer than top_k
    experts are routed ones, since a profile step sends each token to top_k of those.
    """

    among: SelectorSettings
    """Its num_experts counts routed and zero experts."""
    num_zero: int

    def __post_init__(self) -> None:
        if not 1 <= self.num_zero <= self.among.num_experts - self.among.top_k:
            raise ImpossibleRouting(
                f"{self.num_zero} of {self.among.num_experts} experts cannot be zero experts; with "
                f"top_k {self.among.top_k} it must be 1 to "
                f"{self.among.num_experts - self.among.top_k}"
            )
        if self.among.num_groups > 1:
            raise ImpossibleRouting("zero experts belong to no group, so there must be one group")

    @property
    def num_experts(self) -> int:
        """E, without zero experts."""
        return self.among.num_experts - self.num_zero

    @property
    def num_candidates(self) -> int:
        """Columns of the router's logits."""
        return self.among.num_experts

    @property
    def top_k(self) -> int:
        """Choices of each token, zero experts included."""
        return self.among.top_k


@dataclass(frozen=True, slots=True)
class OnInputRouting:
    """The weight multiplies what the expert reads instead of what it returns (Llama 4).

    Raises ImpossibleRouting unless each token has one expert: a row that is sent to several
    cannot carry the weight of each.
    """

    by: SelectorSettings | HashRouting | CustomRouting

    def __post_init__(self) -> None:
        if self.by.top_k != 1:
            raise ImpossibleRouting(
                f"a weight on the input needs top_k 1, not {self.by.top_k}: one row cannot carry "
                "the weights of several experts"
            )

    @property
    def num_experts(self) -> int:
        """E."""
        return self.by.num_experts

    @property
    def num_candidates(self) -> int:
        """Columns of the router's logits."""
        return self.by.num_candidates

    @property
    def top_k(self) -> int:
        """Always 1."""
        return self.by.top_k


Routing = SelectorSettings | HashRouting | CustomRouting | ZeroExpertRouting | OnInputRouting


def groups_of(routing: Routing) -> int:
    """Groups of experts, in order, of which each token uses a few only; 1 where it may use all."""
    by = routing.by if isinstance(routing, OnInputRouting) else routing
    if not isinstance(by, SelectorSettings) or by.kept_groups == by.num_groups:
        return 1
    return by.num_groups


@dataclass(frozen=True, slots=True)
class Uncorrected:
    """The router has no tensor beside its gate."""


@dataclass(frozen=True, slots=True, eq=False)
class Corrected:
    """A correction bias."""

    correction_X: Tensor
    """Added to the scores to choose, never part of a weight."""


@dataclass(frozen=True, slots=True, eq=False)
class HashTable:
    """The experts of each token id; upstream's `tid2eid`."""

    experts_VK: Tensor
    """Integers [V, K], 0..E-1."""


RouterTensors = Uncorrected | Corrected | HashTable


def _refuse_top_k(top_k: int, num_experts: int) -> None:
    if not 1 <= top_k <= num_experts:
        raise ImpossibleRouting(
            f"cannot choose {top_k} of {num_experts} experts; top_k must be 1 to {num_experts}"
        )
