"""One example of every kind of routing, small enough for tests, and stacks that use them.

Axes    T tokens   D width   E experts   K experts per token
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from moe_runtime.backends.cpu import CpuBackend
from moe_runtime.contracts.gating import Choice
from moe_runtime.routing.kinds import HashTable, RouterTensors
from moe_runtime.routing.router import GatingPath, RouterInput, bind
from moe_runtime.runtime import (
    NO_TOKEN_IDS,
    Activation,
    Chosen,
    CustomRouting,
    HashRouting,
    LatentShape,
    NoTokenIds,
    OnInputRouting,
    Routing,
    Scoring,
    SelectorSettings,
    StackShape,
    SwiGLU,
    TokenIds,
    ZeroExpertRouting,
)

__all__ = [
    "HASHED",
    "KINDS",
    "TABLE",
    "VOCABULARY",
    "Kind",
    "choose",
    "sigmoid_top_k",
    "stack_of",
    "token_ids",
]

VOCABULARY = 17
SQRT = Scoring.SQRT_SOFTPLUS


def sigmoid_top_k(x_TD: Tensor, logits_TE: Tensor, *, top_k: int) -> Chosen:
    """Choose as Llama 4 does: the best logits, each weighed by its own sigmoid."""
    assert x_TD.shape[0] == logits_TE.shape[0]
    best = logits_TE.topk(top_k, dim=1)
    return Chosen(best.indices.to(torch.int32), best.values.sigmoid())


@dataclass(frozen=True, slots=True)
class Kind:
    """A routing and whether a correction bias goes with it."""

    routing: Routing
    corrected: bool = False


def _scored(
    scoring: Scoring, *, renormalise: bool = True, groups: tuple[int, int] = (1, 1)
) -> Kind:
    settings = SelectorSettings(
        num_experts=8,
        top_k=3,
        scoring=scoring,
        renormalise=renormalise,
        factor=2.5,
        num_groups=groups[0],
        kept_groups=groups[1],
    )
    return Kind(settings)


def _hashed(*, top_k: int = 3, renormalise: bool = True) -> HashRouting:
    return HashRouting(
        num_experts=8,
        top_k=top_k,
        vocabulary=VOCABULARY,
        scoring=SQRT,
        renormalise=renormalise,
        factor=2.5,
    )


def _among(scoring: Scoring, *, top_k: int, num_experts: int = 8) -> SelectorSettings:
    return SelectorSettings(
        num_experts=num_experts, top_k=top_k, scoring=scoring, renormalise=False, factor=2.5
    )


KINDS = {
    "softmax": _scored(Scoring.SOFTMAX),
    "softmax as it is": _scored(Scoring.SOFTMAX, renormalise=False),
    "softmax in groups": _scored(Scoring.SOFTMAX, groups=(4, 2)),
    "sigmoid corrected": Kind(_scored(Scoring.SIGMOID).routing, corrected=True),
    "sigmoid corrected in groups": Kind(
        _scored(Scoring.SIGMOID, groups=(4, 2)).routing, corrected=True
    ),
    "sigmoid as it is": _scored(Scoring.SIGMOID, renormalise=False),
    "sqrtsoftplus": _scored(SQRT),
    "sqrtsoftplus in groups": Kind(_scored(SQRT, groups=(4, 2)).routing, corrected=True),
    "sqrtsoftplus as it is": _scored(SQRT, renormalise=False),
    "hashed": Kind(_hashed()),
    "hashed as it is": Kind(_hashed(renormalise=False)),
    "custom": Kind(CustomRouting(num_experts=8, top_k=3, function=sigmoid_top_k, factor=2.5)),
    "zero experts": Kind(
        ZeroExpertRouting(_among(Scoring.SOFTMAX, top_k=4, num_experts=14), 6), corrected=True
    ),
    "custom on input": Kind(
        OnInputRouting(CustomRouting(num_experts=8, top_k=1, function=sigmoid_top_k, factor=2.5))
    ),
    "sigmoid on input": Kind(OnInputRouting(_among(Scoring.SIGMOID, top_k=1)), corrected=True),
    "hashed on input": Kind(OnInputRouting(_hashed(top_k=1, renormalise=False))),
}


def stack_of(
    kind: Kind,
    *,
    activation: Activation = SwiGLU(),  # noqa: B008  frozen, so one may serve all calls
    num_layers: int = 2,
    latent: LatentShape | None = None,
) -> StackShape:
    """Return a small stack that routes this way."""
    return StackShape(
        num_layers=num_layers,
        width=16,
        intermediate=8,
        selector=kind.routing,
        activation=activation,
        latent=latent,
        num_shared=1,
        corrected=kind.corrected,
    )


def token_ids(shape: StackShape, num_tokens: int, *, seed: int) -> TokenIds | NoTokenIds:
    """Return random ids where the stack asks for them."""
    by = shape.selector.by if isinstance(shape.selector, OnInputRouting) else shape.selector
    if not isinstance(by, HashRouting):
        return NO_TOKEN_IDS
    draw = torch.Generator().manual_seed(seed)
    return TokenIds(torch.randint(VOCABULARY, (num_tokens,), generator=draw))


HASHED = HashRouting(num_experts=4, top_k=2, vocabulary=3, scoring=SQRT, factor=2.0)
TABLE = HashTable(torch.tensor([[0, 1], [3, 2], [2, 0]], dtype=torch.int32))


def choose(
    routing: Routing,
    tensors: RouterTensors,
    logits: list[list[float]],
    ids: NoTokenIds | TokenIds = NO_TOKEN_IDS,
) -> Choice:
    logits_TX = torch.tensor(logits, dtype=torch.float64).reshape(-1, routing.num_candidates)
    router = bind(routing, tensors, path=GatingPath.FUSED_WHERE_LEGAL)
    x_TD = torch.zeros((logits_TX.shape[0], 3), dtype=torch.float64)
    return router.choose(RouterInput(x_TD, logits_TX, ids), CpuBackend())
