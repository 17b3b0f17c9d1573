"""The backend on Ascend NPUs, by torch_npu's operators and, between them, by torch's own.

Axes    M rows   S groups   A input width   B output width   Z width of a row
        T tokens   K experts per token   E experts

Never run on an NPU by this project: what was checked, and how far, is in the README.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from moe_runtime.backends import npu_gating, npu_linear, npu_quantise
from moe_runtime.backends.npu_door import NpuDoor
from moe_runtime.backends.protocol import Activating
from moe_runtime.contracts.gating import Choice, SelectorSettings
from moe_runtime.contracts.groups import GroupCounts
from moe_runtime.contracts.linears import DenseLinear, Linear
from moe_runtime.contracts.npu_errors import NpuCallRefused, NpuKernelMissing
from moe_runtime.contracts.rows import PlainRows, RowForm, Rows

__all__ = ["NpuBackend", "NpuBackend310"]

_LANES_310 = 16
"""Outputs of a grouped linear come in whole ones of these on a 310P."""


@dataclass(frozen=True, slots=True)
class NpuBackend:
    """Meets `backends.protocol.Backend`."""

    door: NpuDoor
    fuses: bool = False
    """Whether activation and quantisation are one operator, as on A2 and A3."""

    def top_k(self, scores_TE: Tensor, k: int) -> Tensor:
        """Return the best k of each row, best first, ties to the lower id."""
        return torch.sort(scores_TE, dim=1, descending=True, stable=True).indices[:, :k]

    def gate(
        self, logits_TE: Tensor, settings: SelectorSettings, correction_E: Tensor | None
    ) -> Choice:
        """Choose experts and weigh them by npu_moe_gating_top_k; raises NpuKernelMissing."""
        return npu_gating.gate(self.door, logits_TE, settings, correction_E)

    def order_by_group(self, groups_M: Tensor) -> Tensor:
        """Return the rows sorted by group number, each group in its old order."""
        return torch.sort(groups_M, stable=True).indices

    def count_groups(self, groups_M: Tensor, num_groups: int) -> GroupCounts:
        """Return how many rows each group has."""
        none = torch.zeros(num_groups, dtype=torch.int64, device=groups_M.device)
        return GroupCounts(none.index_add(0, groups_M, torch.ones_like(groups_M)))

    def quantise(self, x_MZ: Tensor, form: RowForm) -> Rows:
        """Return rows in a form, each from itself alone."""
        return npu_quantise.quantise(self.door, x_MZ, form)

    def grouped_linear(self, rows: Rows, linear: Linear, counts: GroupCounts) -> Tensor:
        """Return [M, B] in the rows' dtype; rows beyond all groups get anything.

        Raises UnreadableRows and NpuKernelMissing.
        """
        return npu_linear.grouped_linear(self.door, rows, linear, counts)

    def activate(
        self,
        activation: Activating,
        gate_up_MF: Tensor,
        form: RowForm,
        counts: GroupCounts,
        *,
        is_swiglu: bool,
    ) -> Rows:
        """Return the activation in a form, by npu_dequant_swiglu_quant where that takes it.

        Else by torch's own operators, of all rows at once.
        """
        if self.fuses and is_swiglu and npu_quantise.takes_swiglu(gate_up_MF, form):
            return npu_quantise.swiglu_to_int8(self.door, gate_up_MF, counts)
        return self.quantise(activation(gate_up_MF), form)

    def weighted_sum(self, rows_MZ: Tensor, index_TK: Tensor, weights_TK: Tensor) -> Tensor:
        """Return [T, Z] by npu_moe_token_unpermute.

        The operator takes as many rows as pairs, each named once, so pairs get their rows first;
        one without a row gets zeros, whatever any row contains.
        """
        num_tokens, k = index_TK.shape
        if not rows_MZ.shape[0]:
            rows_MZ = rows_MZ.new_zeros((1, rows_MZ.shape[1]))
        index = index_TK.reshape(-1)
        named = index >= 0
        of_pairs = rows_MZ[torch.where(named, index, 0)]
        of_pairs = of_pairs.masked_fill(~named[:, None], 0)
        weights = torch.where(index_TK >= 0, weights_TK, 0).to(rows_MZ.dtype)
        if not num_tokens:
            return rows_MZ.new_zeros((0, rows_MZ.shape[1]))
        (summed_TZ,) = self.door.call(
            "npu_moe_token_unpermute",
            permuted_tokens=of_pairs,
            sorted_indices=torch.arange(num_tokens * k, dtype=torch.int32, device=index.device),
            probs=weights,
            padded_mode=False,
            restore_shape=None,
        )
        return summed_TZ


@dataclass(frozen=True, slots=True)
class NpuBackend310(NpuBackend):
    """The variant for a 310P, where operators take less; rows are in float16 there.

    It counts rows in 32 bits, which `npu_expand` widens on every device.
    """

    def gate(
        self, logits_TE: Tensor, settings: SelectorSettings, correction_E: Tensor | None
    ) -> Choice:
        """Refuse: the operator is not documented for a 310P, whose layers use the reference."""
        del logits_TE, settings, correction_E
        raise NpuKernelMissing("fused gating", reason="npu_moe_gating_top_k is not for a 310P")

    def grouped_linear(self, rows: Rows, linear: Linear, counts: GroupCounts) -> Tensor:
        """Return [M, B] for plain float16 rows; raises NpuCallRefused and NpuKernelMissing."""
        if not (isinstance(rows, PlainRows) and isinstance(linear, DenseLinear)):
            raise NpuKernelMissing(
                f"{rows.form.value} rows by {type(linear).__name__}",
                reason="npu_grouped_matmul reads float16 alone on a 310P",
            )
        width = linear.w_SBA.shape[1]
        if rows.dtype != torch.float16 or width % _LANES_310:
            raise NpuCallRefused(
                "npu_grouped_matmul",
                "weight",
                got=f"{width} wide of {rows.dtype}",
                expected=f"a multiple of {_LANES_310}, of float16, on a 310P",
            )
        return npu_linear.grouped_linear(self.door, rows, linear, counts)
