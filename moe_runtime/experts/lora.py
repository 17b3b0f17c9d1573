"""What adapters add to the linears of routed experts.

Axes    M rows sorted by slot   S local slots   A input width   B output width
        N adapters   E logical experts   R rank of an adapter
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from moe_runtime.backends.protocol import Backend
from moe_runtime.contracts.adapters import NO_ADAPTER, ExpertAdapters
from moe_runtime.contracts.errors import UnreadableRows
from moe_runtime.contracts.groups import GroupCounts
from moe_runtime.contracts.linears import DenseLinear
from moe_runtime.contracts.rows import AdaptedRows, PlainRows, RowForm, Rows

__all__ = ["Adapted", "Unadapted", "adapters_of_rows"]


@dataclass(frozen=True, slots=True)
class Unadapted:
    """The experts are as they are."""

    def gate_up(self, x_MZ: Tensor, y_MF: Tensor) -> Tensor:
        """Return gate and up as they are."""
        del x_MZ
        return y_MF

    def down(self, x_MI: Tensor, y_MZ: Tensor) -> Tensor:
        """Return the results as they are."""
        del x_MI
        return y_MZ


@dataclass(frozen=True, slots=True, eq=False)
class Adapted:
    """The experts of one rank with adapters, for the rows of one call."""

    adapters: ExpertAdapters
    """Of the rows' dtype, in their memory."""
    held_S: npt.NDArray[np.int64]
    """Logical expert in each slot: whose adapters its rows use."""
    adapter_M: Tensor
    counts: GroupCounts
    backend: Backend

    def gate_up(self, x_MZ: Tensor, y_MF: Tensor) -> Tensor:
        """Return gate and up with what each row's adapter adds."""
        return self._add(x_MZ, y_MF, self.adapters.a13_NERZ, self.adapters.b13_NEFR)

    def down(self, x_MI: Tensor, y_MZ: Tensor) -> Tensor:
        """Return the results with what each row's adapter adds."""
        return self._add(x_MI, y_MZ, self.adapters.a2_NERI, self.adapters.b2_NEZR)

    def _add(self, x_MA: Tensor, y_MB: Tensor, a_NERA: Tensor, b_NEBR: Tensor) -> Tensor:
        """Add to rows with an adapter what two grouped linears make of them.

        Their groups are slot by adapter, so how many rows use which is known to the device alone.
        """
        if not x_MA.shape[0]:
            return y_MB
        num_pairs = len(self.held_S) * self.adapters.num_adapters
        pairs_M = self._pairs(num_pairs)
        order_M = self.backend.order_by_group(pairs_M)
        counted = self.backend.count_groups(pairs_M, num_pairs + 1).counts_S
        counts = GroupCounts(counted[:num_pairs])
        rows = PlainRows(x_MA[order_M])
        thin_MR = self.backend.grouped_linear(rows, self._of_pairs(a_NERA), counts)
        wide_MB = self.backend.grouped_linear(PlainRows(thin_MR), self._of_pairs(b_NEBR), counts)
        uses_M = pairs_M[order_M] < num_pairs
        # Rows beyond all groups hold anything, so they are left out and not weighed with zero.
        return y_MB.index_add(0, order_M, torch.where(uses_M[:, None], wide_MB, 0))

    def _pairs(self, num_pairs: int) -> Tensor:
        """Return int64 [M]: slot and adapter of each row as one number, the last for none."""
        num_rows, num = self.adapter_M.shape[0], self.adapters.num_adapters
        ends_S = self.counts.to_offsets().ends_S
        places_M = torch.arange(num_rows, device=ends_S.device)
        slots_M = torch.searchsorted(ends_S, places_M, right=True)
        pairs_M = slots_M * num + self.adapter_M
        none_M = (self.adapter_M == NO_ADAPTER) | (slots_M >= len(self.held_S))
        return torch.where(none_M, num_pairs, pairs_M)

    def _of_pairs(self, stack_NEBA: Tensor) -> DenseLinear:
        """Return the adapters of the experts that slots hold; those of an empty slot serve none."""
        held_S = torch.as_tensor(np.maximum(self.held_S, 0), device=stack_NEBA.device)
        return DenseLinear(stack_NEBA[:, held_S].transpose(0, 1).flatten(0, 1))


def adapters_of_rows(rows: Rows, form: RowForm) -> Tensor:
    """Return int64 [M]: each row's adapter; raises UnreadableRows if rows arrived without.

    form    in which the experts read rows: quantised ones cannot be adapted
    """
    if not isinstance(rows, AdaptedRows) or form is not RowForm.PLAIN:
        raise UnreadableRows(
            f"in the form {rows.form.value} "
            + ("with" if isinstance(rows, AdaptedRows) else "without")
            + " the number of an adapter",
            weights=f"adapted ones for the form {form.value}",
        )
    return rows.adapter_M
