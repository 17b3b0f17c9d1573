"""A layer's router: one kind of routing bound to its tensors, ready to choose.

Axes    T tokens   D model width   X experts to choose from   K experts per token   V token ids
"""

from dataclasses import dataclass
from enum import Enum

from torch import Tensor

from moe_runtime.backends.protocol import Backend
from moe_runtime.backends.scoring import score, weigh
from moe_runtime.contracts.errors import ImpossibleRouting, MissingTokenIds, ShapeMismatch
from moe_runtime.contracts.gating import Choice, SelectorSettings
from moe_runtime.contracts.ids import LogicalIds
from moe_runtime.contracts.tokens import NoTokenIds, TokenIds
from moe_runtime.routing.checks import (
    check_experts,
    check_table,
    check_token_ids,
    check_unchanged,
    check_weights,
    state_of,
)
from moe_runtime.routing.fused import refusals
from moe_runtime.routing.kinds import (
    Corrected,
    CustomRouting,
    HashRouting,
    HashTable,
    OnInputRouting,
    RouterTensors,
    Routing,
    Uncorrected,
    ZeroExpertRouting,
)
from moe_runtime.routing.selector import check_correction, check_logits, select

__all__ = [
    "CustomRouter",
    "GatingPath",
    "HashRouter",
    "Router",
    "RouterInput",
    "ScoreRouter",
    "bind",
]


class GatingPath(Enum):
    """Which implementation chooses by scores."""

    FUSED_WHERE_LEGAL = "fused where legal"
    REFERENCE = "reference"


@dataclass(frozen=True, slots=True, eq=False)
class RouterInput:
    """What a router reads: always unquantised."""

    x_TD: Tensor
    logits_TX: Tensor
    token_ids: NoTokenIds | TokenIds


@dataclass(frozen=True, slots=True, eq=False)
class ScoreRouter:
    """Chooses by scores."""

    settings: SelectorSettings
    correction_X: Tensor | None
    path: GatingPath

    def choose(self, given: RouterInput, backend: Backend) -> Choice:
        """Choose by the backend's fused gating where it is legal, otherwise by the reference."""
        check_logits(given.logits_TX, self.settings.num_experts)
        if self.is_fused():
            return backend.gate(given.logits_TX, self.settings, self.correction_X)
        return select(
            given.logits_TX, self.settings, correction_E=self.correction_X, backend=backend
        )

    def is_fused(self) -> bool:
        """Tell whether the fused gating is used."""
        return self.path is GatingPath.FUSED_WHERE_LEGAL and not refusals(
            self.settings, corrected=self.correction_X is not None
        )


@dataclass(frozen=True, slots=True, eq=False)
class HashRouter:
    """Chooses by token id, weighs by scores."""

    settings: HashRouting
    experts_VK: Tensor

    def choose(self, given: RouterInput, backend: Backend) -> Choice:
        """Look the experts up; raises MissingTokenIds, TokenIdOutOfRange and BadChoice."""
        del backend  # a look-up and a gather are the same everywhere
        check_logits(given.logits_TX, self.settings.num_experts)
        num_rows = given.logits_TX.shape[0]
        match given.token_ids:
            case NoTokenIds():
                if num_rows:
                    raise MissingTokenIds(num_rows=num_rows)
                ids_TK = self.experts_VK[:0]
            case TokenIds(ids_T):
                if ids_T.shape[0] != num_rows:
                    raise ShapeMismatch("token_ids", got=ids_T.shape, expected=f"({num_rows},)")
                check_token_ids(ids_T, vocabulary=self.settings.vocabulary)
                ids_TK = self.experts_VK[ids_T.long()]
        check_experts("the routing table", ids_TK, num_experts=self.settings.num_experts)
        scores_TK = score(given.logits_TX, self.settings.scoring).gather(1, ids_TK)
        weights_TK = weigh(
            scores_TK, renormalise=self.settings.renormalise, factor=self.settings.factor
        )
        return Choice(LogicalIds(ids_TK), weights_TK)


@dataclass(frozen=True, slots=True, eq=False)
class CustomRouter:
    """Lets the model's own function choose."""

    settings: CustomRouting

    def choose(self, given: RouterInput, backend: Backend) -> Choice:
        """Call the function, check what it returns, and scale its weights; raises BadChoice."""
        del backend  # the function is the model's
        settings = self.settings
        check_logits(given.logits_TX, settings.num_experts)
        who = "the model's routing function"
        handed = (given.x_TD, given.logits_TX)
        before = state_of(handed)
        chosen = settings.function(*handed, top_k=settings.top_k)
        check_unchanged(who, handed, before)
        shape = (given.logits_TX.shape[0], settings.top_k)
        check_weights(who, chosen.weights_TK, shape=shape)
        if chosen.experts_TK.shape != shape:
            raise ShapeMismatch(f"{who}'s ids", got=chosen.experts_TK.shape, expected=f"{shape}")
        ids_TK = check_experts(who, chosen.experts_TK, num_experts=settings.num_experts)
        weights_TK = weigh(chosen.weights_TK, renormalise=False, factor=settings.factor)
        return Choice(LogicalIds(ids_TK), weights_TK)


Router = ScoreRouter | HashRouter | CustomRouter


def bind(routing: Routing, tensors: RouterTensors, *, path: GatingPath) -> Router:
    """Return a layer's router; raises ImpossibleRouting for tensors of another kind."""
    match routing, tensors:
        case SelectorSettings(), Uncorrected():
            return ScoreRouter(routing, None, path)
        case SelectorSettings(), Corrected(correction_X):
            check_correction(routing, correction_X)
            if not bool(correction_X.isfinite().all()):
                raise ImpossibleRouting(
                    "the correction has numbers that are not finite, beside which no score counts; "
                    "the layer was not built"
                )
            return ScoreRouter(routing, correction_X, path)
        case ZeroExpertRouting(among), Uncorrected() | Corrected():
            return bind(among, tensors, path=path)
        case OnInputRouting(by), _:
            return bind(by, tensors, path=path)
        case HashRouting(), HashTable(experts_VK):
            return HashRouter(routing, check_table(routing, experts_VK))
        case CustomRouting(), Uncorrected():
            return CustomRouter(routing)
        case _:
            raise ImpossibleRouting(
                f"{type(routing).__name__} cannot use the router tensors {type(tensors).__name__}; "
                "the layer was not built"
            )
