"""Gate and up, activation, down: for grouped experts, and for one dense expert.

Axes    M rows   T tokens   Z width   D model width   F = 2 I   I expert width
"""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from moe_runtime.backends.protocol import Backend
from moe_runtime.contracts.errors import UnreadableRows
from moe_runtime.contracts.groups import GroupCounts
from moe_runtime.contracts.rows import PlainRows, RowForm, Rows
from moe_runtime.contracts.stages import Computed, Dispatched
from moe_runtime.contracts.weights import BiasedWeights, ReadableWeights
from moe_runtime.experts.activations import Activation, SwiGLU, is_limited
from moe_runtime.experts.lora import Adapted, Unadapted

__all__ = ["activated", "compute_dense", "compute_grouped"]

C = TypeVar("C")
UNADAPTED = Unadapted()


def _nothing() -> None:
    """Nobody waits for anything."""


def compute_grouped(
    dispatched: Dispatched[C],
    weights: ReadableWeights,
    *,
    activation: Activation,
    backend: Backend,
    before_down: Callable[[], None] = _nothing,
    lora: Unadapted | Adapted = UNADAPTED,
) -> Computed[C]:
    """Run every row through the expert of its slot.

    before_down    called just before the second product, once rows are ready for it
    lora           what adapters add to both products

    Rows that dispatch did not quantise are quantised here, to the same bytes. Raises
    UnreadableRows for rows in a form that the weights' format does not read.
    """
    counts = dispatched.counts
    rows = _in_form(dispatched.rows, weights.rows, backend)
    x_MZ = _numbers(rows)
    match weights:
        case BiasedWeights(inner, bias13_SF, bias2_SZ):
            gate_up_MF = lora.gate_up(x_MZ, backend.grouped_linear(rows, inner.w13, counts))
            gate_up_MF = gate_up_MF + _of_groups(bias13_SF, counts, len(gate_up_MF))
            hidden = activated(activation, gate_up_MF, weights.rows, counts, backend=backend)
            before_down()
            out_MZ = lora.down(_numbers(hidden), backend.grouped_linear(hidden, inner.w2, counts))
            return Computed(out_MZ + _of_groups(bias2_SZ, counts, len(out_MZ)), dispatched.carry)
        case _:
            gate_up_MF = lora.gate_up(x_MZ, backend.grouped_linear(rows, weights.w13, counts))
            hidden = activated(activation, gate_up_MF, weights.rows, counts, backend=backend)
            before_down()
            out_MZ = lora.down(_numbers(hidden), backend.grouped_linear(hidden, weights.w2, counts))
            return Computed(out_MZ, dispatched.carry)


def activated(
    activation: Activation,
    gate_up_MF: Tensor,
    form: RowForm,
    counts: GroupCounts,
    *,
    backend: Backend,
) -> Rows:
    """Return [M, I] in the form that is projected down."""
    is_swiglu = isinstance(activation, SwiGLU) and not is_limited(activation)
    return backend.activate(activation, gate_up_MF, form, counts, is_swiglu=is_swiglu)


def _numbers(rows: Rows) -> Tensor:
    return rows.x_MZ if isinstance(rows, PlainRows) else rows.parts()[0]


def _in_form(rows: Rows, form: RowForm, backend: Backend) -> Rows:
    if rows.form is form:
        return rows
    if isinstance(rows, PlainRows):
        return backend.quantise(rows.x_MZ, form)
    raise UnreadableRows(f"in the form {rows.form.value}", weights=f"for the form {form.value}")


def _of_groups(numbers_SB: Tensor, counts: GroupCounts, num_rows: int) -> Tensor:
    """Return [M, B]: for each row the numbers of its group; zeros for rows beyond all groups."""
    of_rows = torch.repeat_interleave(numbers_SB, counts.counts_S, dim=0)
    return pad(of_rows, (0, 0, 0, num_rows - of_rows.shape[0]))


def compute_dense(x_TD: Tensor, w13_FD: Tensor, w2_DI: Tensor, activation: Activation) -> Tensor:
    """Run every row through one expert: [T, D]."""
    return activation(x_TD @ w13_FD.t()) @ w2_DI.t()
