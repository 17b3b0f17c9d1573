# pyright: reportUnknownMemberType=false
# Off in this file only: torch leaves what registers shapes unannotated.
"""The CPU backend for layers that are traced: what reads counts on the host is one operator.

Axes    M rows   A input width   B output width

Its grouped linears loop over groups, by how many rows each has; a tracer would have to know. As an
operator of torch.library, like those of a device, they are left whole and called when the graph
runs.
"""

from typing import assert_never

import torch
from torch import Tensor

from moe_runtime.backends import cpu_linear
from moe_runtime.backends.cpu import CpuBackend
from moe_runtime.backends.protocol import Activating
from moe_runtime.contracts.groups import GroupCounts
from moe_runtime.contracts.linears import (
    DenseLinear,
    Fp8Linear,
    Int4A16Linear,
    Int4Linear,
    Int8Linear,
    Linear,
    Mx4Linear,
    Mx8Linear,
)
from moe_runtime.contracts.rows import (
    Fp8Rows,
    Int8Rows,
    Mx4Rows,
    Mx8Rows,
    PlainRows,
    RowForm,
    Rows,
)

__all__ = ["TracedCpuBackend"]

_LINEARS: dict[str, type[Linear]] = {
    kind.__name__: kind
    for kind in (
        DenseLinear,
        Fp8Linear,
        Int4A16Linear,
        Int4Linear,
        Int8Linear,
        Mx4Linear,
        Mx8Linear,
    )
}


@torch.library.custom_op("moe_runtime::grouped_linear", mutates_args=())
def _grouped_linear(
    rows: list[Tensor],
    form: str,
    linear: list[Tensor],
    stored: str,
    counts_S: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    made = _rows_of(RowForm(form), rows, dtype)
    return cpu_linear.grouped_linear(made, _LINEARS[stored](*linear), GroupCounts(counts_S))


@_grouped_linear.register_fake
def _shape_of(
    rows: list[Tensor],
    form: str,
    linear: list[Tensor],
    stored: str,
    counts_S: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    del form, counts_S
    width = cpu_linear.output_width(_LINEARS[stored](*linear))
    return rows[0].new_empty((rows[0].shape[0], width), dtype=dtype)


class TracedCpuBackend(CpuBackend):
    """Meets `Backend`: what `CpuBackend` computes."""

    def activate(
        self,
        activation: Activating,
        gate_up_MF: Tensor,
        form: RowForm,
        counts: GroupCounts,
        *,
        is_swiglu: bool,
    ) -> Rows:
        """Return the activation of all rows at once: a tracer does not know how many there are."""
        if form is RowForm.PLAIN:
            return PlainRows(activation(gate_up_MF))
        return super().activate(activation, gate_up_MF, form, counts, is_swiglu=is_swiglu)

    def grouped_linear(self, rows: Rows, linear: Linear, counts: GroupCounts) -> Tensor:
        """Return each row times the transposed matrix of its group."""
        return _grouped_linear(
            list(rows.parts()),
            rows.form.value,
            list(linear.named().values()),
            type(linear).__name__,
            counts.counts_S,
            rows.dtype,
        )


def _rows_of(form: RowForm, parts: list[Tensor], dtype: torch.dtype) -> Rows:
    match form:
        case RowForm.PLAIN:
            return PlainRows(parts[0])
        case RowForm.INT8:
            return Int8Rows(parts[0], parts[1], dtype)
        case RowForm.FP8:
            return Fp8Rows(parts[0], parts[1], dtype)
        case RowForm.MXFP8:
            return Mx8Rows(parts[0], parts[1], dtype)
        case RowForm.MXFP4:
            return Mx4Rows(parts[0], parts[1], dtype)
    assert_never(form)
