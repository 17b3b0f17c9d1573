"""What adapters add to the linears of routed experts.

Axes    M rows sorted by slot   S local slots   A input width   B output width
        N adapters   E logical experts   R rank of an adapter
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from moe_runtime.contracts.adapters import NO_ADAPTER, ExpertAdapters
from moe_runtime.contracts.errors import UnreadableRows
from moe_runtime.contracts.groups import GroupCounts
from moe_runtime.contracts.rows import AdaptedRows, RowForm, Rows
from moe_runtime.contracts.torch_calls import to_ints, unique_ints

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
    held_S: npt.NDArray[np.int64]
    """Logical expert in each slot: whose adapters its rows use."""
    adapter_M: Tensor
    counts: GroupCounts

    def gate_up(self, x_MZ: Tensor, y_MF: Tensor) -> Tensor:
        """Return gate and up with what each row's adapter adds."""
        return self._add(x_MZ, y_MF, self.adapters.a13_NERZ, self.adapters.b13_NEFR)

    def down(self, x_MI: Tensor, y_MZ: Tensor) -> Tensor:
        """Return the results with what each row's adapter adds."""
        return self._add(x_MI, y_MZ, self.adapters.a2_NERI, self.adapters.b2_NEZR)

    def _add(self, x_MA: Tensor, y_MB: Tensor, a_NERA: Tensor, b_NEBR: Tensor) -> Tensor:
        added_MB = y_MB.clone()
        start = 0
        for slot, size in enumerate(to_ints(self.counts.counts_S)):
            end, expert = start + size, int(self.held_S[slot])
            used_M = self.adapter_M[start:end]
            for number in unique_ints(used_M):
                if number != NO_ADAPTER:
                    rows = start + torch.nonzero(used_M == number).reshape(-1)
                    thin_MR = x_MA[rows] @ a_NERA[number, expert].t()
                    added_MB[rows] += thin_MR @ b_NEBR[number, expert].t()
            start = end
        return added_MB


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
