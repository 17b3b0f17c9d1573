"""The backend on Ascend NPUs, by torch_npu's operators and, between them, by torch's own.

Axes    M rows   S groups   A input width   B output width   Z width of a row
        T tokens   K experts per token   E experts

Never run on an NPU by this project: what was checked, and how far, is in the README.
"""

from dataclasses import dataclass
from typing import assert_never

import torch
from torch import Tensor

from moe_runtime.backends import npu_gating
from moe_runtime.backends.npu_door import NpuDoor
from moe_runtime.contracts.errors import UnreadableRows
from moe_runtime.contracts.gating import Choice, SelectorSettings
from moe_runtime.contracts.groups import GroupCounts
from moe_runtime.contracts.linears import DenseLinear, Int8Linear, Linear
from moe_runtime.contracts.npu_errors import NpuKernelMissing
from moe_runtime.contracts.rows import Int8Rows, PlainRows, RowForm, Rows

__all__ = ["NpuBackend"]


@dataclass(frozen=True, slots=True)
class NpuBackend:
    """Meets `backends.protocol.Backend`."""

    door: NpuDoor

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
        """Return rows in a form, each from itself alone; raises NpuKernelMissing."""
        match form:
            case RowForm.PLAIN:
                return PlainRows(x_MZ)
            case RowForm.INT8:
                q_MZ, scale_M = self.door.call(
                    "npu_dynamic_quant",
                    input=x_MZ,
                    smooth_scales=None,
                    group_index=None,
                    dst_type=torch.int8,
                    quant_mode="pertoken",
                )
                return Int8Rows(q_MZ, scale_M, x_MZ.dtype)
            case RowForm.FP8 | RowForm.MXFP8 | RowForm.MXFP4:
                raise NpuKernelMissing(f"rows in the form {form.value}", reason="not built yet")
        assert_never(form)

    def grouped_linear(self, rows: Rows, linear: Linear, counts: GroupCounts) -> Tensor:
        """Return [M, B] in the rows' dtype; rows beyond all groups get anything.

        Groups go out by where each ends: the operator takes counts only of two or more groups.
        For bfloat16 rows the operator takes scales in bfloat16, so they are rounded to it.

        Raises UnreadableRows and NpuKernelMissing.
        """
        match rows, linear:
            case PlainRows(x_MA), DenseLinear(w_SBA):
                scale, per_token = None, None
            case Int8Rows(x_MA, scale_M), Int8Linear(w_SBA, scale_SB):
                per_token = [scale_M]
                scale = [scale_SB if rows.dtype == torch.float16 else scale_SB.to(torch.bfloat16)]
            case PlainRows() | Int8Rows(), DenseLinear() | Int8Linear():
                raise UnreadableRows(
                    f"in the form {rows.form.value}", weights=f"stored as {type(linear).__name__}"
                )
            case _:
                raise NpuKernelMissing(
                    f"{rows.form.value} rows by {type(linear).__name__}", reason="not built yet"
                )
        (out_MB,) = self.door.call(
            "npu_grouped_matmul",
            x=[x_MA],
            weight=[w_SBA.transpose(1, 2)],
            scale=scale,
            per_token_scale=per_token,
            group_list=counts.to_offsets().ends_S,
            split_item=3,
            group_type=0,
            group_list_type=0,
            act_type=0,
            output_dtype=rows.dtype,
        )
        return out_MB

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
