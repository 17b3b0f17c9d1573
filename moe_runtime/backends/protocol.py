"""What a device must be able to do.

Axes    M rows   S groups   A input width   B output width   Z width of a row   F = 2 I
        T tokens   K experts per token   E experts

Every backend matches `cpu` within a stated tolerance; ids and counts match exactly.
"""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from moe_runtime.contracts.gating import Choice, SelectorSettings
from moe_runtime.contracts.groups import GroupCounts
from moe_runtime.contracts.linears import Linear
from moe_runtime.contracts.rows import RowForm, Rows

__all__ = ["Activating", "Backend"]


Activating = Callable[[Tensor], Tensor]
"""From gate and up side by side to what is projected down; each row from itself alone."""


class Backend(Protocol):
    """Pure functions of their arguments; nothing is kept between calls."""

    def top_k(self, scores_TE: Tensor, k: int) -> Tensor:
        """Return int64 [T, K]: the best k of each row, best first, ties to the lower id."""
        ...

    def gate(
        self, logits_TE: Tensor, settings: SelectorSettings, correction_E: Tensor | None
    ) -> Choice:
        """Choose experts and weigh them in one operation: what the reference selector returns.

        Only for settings that `routing.fused.refusals` has nothing against.
        """
        ...

    def order_by_group(self, groups_M: Tensor) -> Tensor:
        """Return int64 [M]: the rows sorted by group number, each group in its old order."""
        ...

    def count_groups(self, groups_M: Tensor, num_groups: int) -> GroupCounts:
        """Return how many rows each group has."""
        ...

    def quantise(self, x_MZ: Tensor, form: RowForm) -> Rows:
        """Return rows in a form, each from itself alone; plain ones are returned as they are."""
        ...

    def grouped_linear(self, rows: Rows, linear: Linear, counts: GroupCounts) -> Tensor:
        """Return [M, B] in the rows' dtype: each row times the transposed matrix of its group.

        Rows are sorted by group; those beyond all groups get anything. Raises UnreadableRows.
        """
        ...

    def activate(
        self,
        activation: Activating,
        gate_up_MF: Tensor,
        form: RowForm,
        counts: GroupCounts,
        *,
        is_swiglu: bool,
    ) -> Rows:
        """Return [M, I]: an activation of every row, in a form.

        counts       rows of each group; those beyond all groups get anything
        is_swiglu    whether it is silu(gate) * up over halves, and nothing else
        """
        ...

    def weighted_sum(self, rows_MZ: Tensor, index_TK: Tensor, weights_TK: Tensor) -> Tensor:
        """Return [T, Z]: the sum over k of weight times row, in order of k.

        index_TK    row of each pair, or -1: the pair counts nothing, whatever its weight is and
                    whatever any row contains
        """
        ...
