"""From a choice to what is sent: where weights are applied, and what is not sent at all.

Axes    T tokens   K experts per token   Z width of the routed part   E routed experts
"""

import torch
from torch import Tensor

from moe_runtime.contracts.gating import Choice, SelectorSettings
from moe_runtime.contracts.ids import NOT_SENT, LogicalIds
from moe_runtime.contracts.stages import Routed, RoutedBesideZero
from moe_runtime.routing.kinds import (
    CustomRouting,
    HashRouting,
    OnInputRouting,
    Routing,
    ZeroExpertRouting,
)

__all__ = ["apply", "force_balance"]


def apply(routing: Routing, choice: Choice, x_TZ: Tensor) -> Routed | RoutedBesideZero:
    """Bring weights to the tokens' dtype and to where the kind of routing wants them.

    x_TZ    tokens as the experts read them
    """
    weights_TK = choice.weights_TK.to(x_TZ.dtype)
    match routing:
        case SelectorSettings() | HashRouting() | CustomRouting():
            return Routed(x_TZ, choice.experts, weights_TK)
        case OnInputRouting():
            return Routed(x_TZ * weights_TK, choice.experts, torch.ones_like(weights_TK))
        case ZeroExpertRouting():
            return _split(x_TZ, choice.experts.ids_TK, weights_TK, routing.num_experts)


def force_balance(choice: Choice, *, num_experts: int, first_row: int) -> Choice:
    """Replace the experts by all experts in turn, and keep the weights.

    For profile runs: every rank's share is then known beforehand, whatever the logits are.

    first_row    number of the first token among those of all ranks, so that ranks go on where
                 the one before them ended
    """
    num_rows, top_k = choice.weights_TK.shape
    start = first_row * top_k
    device = choice.weights_TK.device
    ids = torch.arange(start, start + num_rows * top_k, device=device) % num_experts
    return Choice(LogicalIds(ids.view(num_rows, top_k)), choice.weights_TK)


def _split(x_TZ: Tensor, ids_TK: Tensor, weights_TK: Tensor, num_experts: int) -> RoutedBesideZero:
    is_zero_TK = ids_TK >= num_experts
    routed = Routed(
        x_TZ,
        LogicalIds(torch.where(is_zero_TK, NOT_SENT, ids_TK)),
        torch.where(is_zero_TK, 0, weights_TK),
    )
    return RoutedBesideZero(routed, torch.where(is_zero_TK, weights_TK, 0).sum(dim=1))
