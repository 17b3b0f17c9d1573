"""The backend on Ascend NPUs, by torch_npu's operators and, between them, by torch's own.

Axes    M rows   S groups   A input width   B output width   Z width of a row
        T tokens   K experts per token   E experts

Never run on an NPU by this project: what was checked, and how far, is in the README.
"""

from dataclasses import dataclass
from typing import assert_never

import torch
from torch import Tensor

from moe_runtime.backends.npu_door import NpuDoor
from moe_runtime.backends.scoring import weigh
from moe_runtime.contracts.errors import ShapeMismatch, UnreadableRows
from moe_runtime.contracts.gating import Choice, Scoring, SelectorSettings
from moe_runtime.contracts.groups import GroupCounts
from moe_runtime.contracts.ids import LogicalIds
from moe_runtime.contracts.linears import DenseLinear, Int8Linear, Linear
from moe_runtime.contracts.npu_errors import NpuKernelMissing
from moe_runtime.contracts.rows import Int8Rows, PlainRows, RowForm, Rows

__all__ = ["Expanded", "NpuBackend"]

_EPS = 1e-20


@dataclass(frozen=True, slots=True, eq=False)
class Expanded:
    """Rows copied once for each pair, sorted by group."""

    rows: Rows
    """[T K]; beyond the counts they mean nothing."""
    counts: GroupCounts
    index_TK: Tensor
    """int64 [T, K] row of each pair, -1 for one that has none."""


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
        """Choose experts and weigh them by npu_moe_gating_top_k, in float32.

        The operator brings sigmoid weights to a sum of one itself, always, and softmax weights
        never; those are brought to it here if asked, and the factor is applied once, after that.

        Raises NpuKernelMissing for what the operator does not score by.
        """
        softmax = settings.scoring is Scoring.SOFTMAX
        if settings.scoring is Scoring.SQRT_SOFTPLUS:
            raise NpuKernelMissing(
                "fused gating by sqrtsoftplus",
                reason="npu_moe_gating_top_k scores by softmax and sigmoid; route by the reference",
            )
        if not softmax and not settings.renormalise:
            raise NpuKernelMissing(
                "fused gating by sigmoid without renormalising",
                reason="npu_moe_gating_top_k always renormalises sigmoid; route by the reference",
            )
        weights_TK, ids_TK, _ = self.door.call(
            "npu_moe_gating_top_k",
            x=logits_TE.to(torch.float32),
            k=settings.top_k,
            bias=None if correction_E is None else correction_E.to(torch.float32),
            k_group=settings.kept_groups,
            group_count=settings.num_groups,
            group_select_mode=0 if correction_E is None else 1,
            renorm=0,
            norm_type=0 if softmax else 1,
            out_flag=False,
            routed_scaling_factor=1.0,
            eps=_EPS,
        )
        renormalise = softmax and settings.renormalise
        weights_TK = weigh(weights_TK, renormalise=renormalise, factor=settings.factor)
        return Choice(LogicalIds(ids_TK.to(torch.int64)), weights_TK)

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

    def expand(self, rows: Rows, groups_TK: Tensor, num_groups: int) -> Expanded:
        """Copy rows to their groups by npu_moe_init_routing_v2, with their scales.

        groups_TK    group of each pair; a pair outside 0 to num_groups - 1 gets no row

        Raises NpuKernelMissing.
        """
        match rows:
            case PlainRows(x_TZ):
                scale = None
            case Int8Rows(x_TZ, scale):
                pass
            case _:
                raise NpuKernelMissing(f"rows in the form {rows.form.value}", reason="not built")
        num_tokens, k = groups_TK.shape
        if not num_tokens * k:
            raise ShapeMismatch("groups_TK", got=groups_TK.shape, expected="a pair or more")
        outside = (groups_TK < 0) | (groups_TK >= num_groups)
        x_MZ, index_M, counts_S, scale_M = self.door.call(
            "npu_moe_init_routing_v2",
            x=x_TZ,
            expert_idx=torch.where(outside, num_groups, groups_TK).to(torch.int32),
            scale=scale,
            offset=None,
            active_num=num_tokens * k,
            expert_capacity=-1,
            # One group more than there are takes the pairs that get no row.
            expert_num=num_groups + 1,
            drop_pad_mode=0,
            expert_tokens_num_type=1,
            expert_tokens_num_flag=True,
            quant_mode=-1,
            active_expert_range=[0, num_groups],
            row_idx_type=0,
            x_dtype=None,
        )
        expanded = PlainRows(x_MZ) if scale is None else rows.of((x_MZ, scale_M))
        index_TK = index_M.to(torch.int64).view(num_tokens, k)
        return Expanded(expanded, GroupCounts(counts_S), index_TK)
