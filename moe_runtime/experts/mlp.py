"""Gate and up, activation, down: for grouped experts, and for one dense expert.

Axes    M rows   T tokens   Z width   D model width   F = 2 I   I expert width
"""

from typing import TypeVar

from torch import Tensor

from moe_runtime.backends.protocol import Backend
from moe_runtime.contracts.errors import UnreadableRows
from moe_runtime.contracts.rows import PlainRows, QuantisedRows
from moe_runtime.contracts.stages import Computed, Dispatched
from moe_runtime.contracts.weights import DenseWeights
from moe_runtime.experts.activations import Activation

__all__ = ["compute_dense", "compute_grouped"]

C = TypeVar("C")


def compute_grouped(
    dispatched: Dispatched[C],
    weights: DenseWeights,
    *,
    activation: Activation,
    backend: Backend,
) -> Computed[C]:
    """Run every row through the expert of its slot; raises UnreadableRows for quantised ones."""
    match dispatched.rows:
        case PlainRows(rows_MZ):
            pass
        case QuantisedRows(values_MW, _):
            raise UnreadableRows(f"quantised to {values_MW.dtype}", weights="unquantised")
    gate_up_MF = backend.grouped_matmul(rows_MZ, weights.w13_SFZ, dispatched.counts)
    hidden_MI = activation(gate_up_MF)
    out_MZ = backend.grouped_matmul(hidden_MI, weights.w2_SZI, dispatched.counts)
    return Computed(out_MZ, dispatched.carry)


def compute_dense(x_TD: Tensor, w13_FD: Tensor, w2_DI: Tensor, activation: Activation) -> Tensor:
    """Run every row through one expert: [T, D]."""
    return activation(x_TD @ w13_FD.t()) @ w2_DI.t()
