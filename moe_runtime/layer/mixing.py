"""Shared experts that sit in slots: every token is sent to each of them, beside those it chose.

Axes    T tokens   D model width   K experts per token   M shared experts in slots

They are added after the router, so that it neither chooses nor scales them, nobody captures
them, and a profile step's balance is over routed experts.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from moe_runtime.contracts.ids import LogicalIds, PhysicalIds
from moe_runtime.contracts.stages import Placed
from moe_runtime.experts.shared import ExpertGate, Ungated

__all__ = ["beside", "shared_weights", "with_shared"]


def with_shared(placed: Placed, weights_TM: Tensor, *, slots_M: Tensor, first: int) -> Placed:
    """Send each token to the shared experts too.

    slots_M    the slot that this rank uses for each
    first      id of the first shared expert: E
    """
    experts_M = torch.arange(first, first + slots_M.shape[0], device=slots_M.device)
    return Placed(
        placed.x_TZ,
        PhysicalIds(beside(placed.slots.ids_TK, slots_M)),
        LogicalIds(beside(placed.experts.ids_TK, experts_M)),
        torch.cat((placed.weights_TK, weights_TM), dim=1),
    )


def beside(ids_TK: Tensor, ids_M: Tensor) -> Tensor:
    """Return [T, K + M]: for every token the same M beside its own."""
    return torch.cat((ids_TK, ids_M.expand(ids_TK.shape[0], -1)), dim=1)


def shared_weights(x_TD: Tensor, gates: Sequence[Ungated | ExpertGate]) -> Tensor:
    """Return [T, M]: how much each shared expert counts for each token, which its gate says."""
    return torch.cat([_weight(x_TD, gate) for gate in gates], dim=1)


def _weight(x_TD: Tensor, gate: Ungated | ExpertGate) -> Tensor:
    match gate:
        case Ungated():
            return x_TD.new_ones((x_TD.shape[0], 1))
        case ExpertGate(gate_1D):
            return torch.sigmoid(x_TD @ gate_1D.t())
