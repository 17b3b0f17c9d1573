"""The specification of every backend: plain torch, deterministic, NaN-safe.

Axes    M rows   S groups   A input width   B output width   Z width of a row
        T tokens   K experts per token   E experts
"""

import torch
from torch import Tensor

from moe_runtime.backends import cpu_gating, cpu_linear, cpu_rows
from moe_runtime.backends.protocol import Activating
from moe_runtime.contracts.gating import Choice, SelectorSettings
from moe_runtime.contracts.groups import GroupCounts
from moe_runtime.contracts.linears import Linear
from moe_runtime.contracts.rows import PlainRows, RowForm, Rows
from moe_runtime.contracts.torch_calls import split_rows

__all__ = ["CpuBackend"]


_CACHED_ROWS = 256
"""Of gate and up, what some hundred KiB hold."""


class CpuBackend:
    """Meets `backends.protocol.Backend`."""

    def top_k(self, scores_TE: Tensor, k: int) -> Tensor:
        """Return the best k of each row, best first, ties to the lower id.

        A stable sort, because the order of ties in torch.topk is not defined.
        """
        return torch.sort(scores_TE, dim=1, descending=True, stable=True).indices[:, :k]

    def gate(
        self, logits_TE: Tensor, settings: SelectorSettings, correction_E: Tensor | None
    ) -> Choice:
        """Choose experts and weigh them, by another way than the reference selector."""
        return cpu_gating.gate(logits_TE, settings, correction_E)

    def order_by_group(self, groups_M: Tensor) -> Tensor:
        """Return the rows sorted by group number, each group in its old order."""
        return torch.sort(groups_M, stable=True).indices

    def count_groups(self, groups_M: Tensor, num_groups: int) -> GroupCounts:
        """Return how many rows each group has."""
        return GroupCounts(torch.bincount(groups_M, minlength=num_groups))

    def quantise(self, x_MZ: Tensor, form: RowForm) -> Rows:
        """Return rows in a form, each from itself alone."""
        return cpu_rows.quantise(x_MZ, form)

    def grouped_linear(self, rows: Rows, linear: Linear, counts: GroupCounts) -> Tensor:
        """Return each row times the transposed matrix of its group; empty groups cost nothing."""
        return cpu_linear.grouped_linear(rows, linear, counts)

    def activate(
        self,
        activation: Activating,
        gate_up_MF: Tensor,
        form: RowForm,
        counts: GroupCounts,
        *,
        is_swiglu: bool,
    ) -> Rows:
        """Return the activation in a form, some rows at a time: all would not stay in any cache.

        Torch's activations differ in their last bits with the shape of a tensor, and where rows are
        quantised after it one of those bits may be worth a whole step. Those are computed wide.
        """
        del counts, is_swiglu
        if form is not RowForm.PLAIN:
            hidden_MI = activation(gate_up_MF.to(torch.float64)).to(gate_up_MF.dtype)
            return self.quantise(hidden_MI, form)
        pieces = [activation(piece) for piece in split_rows(gate_up_MF, _CACHED_ROWS)]
        return PlainRows(pieces[0] if len(pieces) == 1 else torch.cat(pieces))

    def weighted_sum(self, rows_MZ: Tensor, index_TK: Tensor, weights_TK: Tensor) -> Tensor:
        """Return the sum over k of weight times row, where a row is named.

        A pair without a row reads a row of zeros with weight zero, so nothing that was never
        written is ever read, let alone multiplied.
        """
        named_TK = index_TK >= 0
        zero_row = rows_MZ.new_zeros((1, rows_MZ.shape[1]))
        padded = torch.cat((rows_MZ, zero_row))
        index_KT = torch.where(named_TK, index_TK, rows_MZ.shape[0]).t()
        weights_KT = torch.where(named_TK, weights_TK, 0).to(rows_MZ.dtype).t()
        wide = torch.promote_types(rows_MZ.dtype, torch.float32)
        sum_TZ = rows_MZ.new_zeros((index_TK.shape[0], rows_MZ.shape[1]), dtype=wide)
        for index_T, weights_T in zip(index_KT, weights_KT, strict=True):
            # One k at a time: all of [T, K, Z] would not stay in any cache.
            sum_TZ += padded.index_select(0, index_T) * weights_T[:, None]
        return sum_TZ.to(rows_MZ.dtype)
