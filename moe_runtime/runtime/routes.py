"""Where one rank's tokens go: its dispatch tables and, where they sit in slots, its shared experts.

Axes    L layers   E routed experts   J rows of a table   M shared experts in slots
"""

import zlib

import numpy as np
import numpy.typing as npt

from moe_runtime.contracts.torch_calls import to_array, whole
from moe_runtime.contracts.weights import ExpertWeights
from moe_runtime.placement.maps import DispatchTables
from moe_runtime.placement.slots import ExpertSlots
from moe_runtime.runtime.checking import check_own
from moe_runtime.runtime.model import StackShape
from moe_runtime.runtime.start import Start

__all__ = ["Routes"]


class Routes:
    """The tables of all layers, never at odds with what the rank's own slots hold when set.

    Raises ShapeMismatch and BadTable, like its methods, for what a rank cannot start with.
    """

    def __init__(
        self, start: Start, shape: StackShape, slots: ExpertSlots[ExpertWeights], *, rank: int
    ) -> None:
        self._slots, self._rank = slots, rank
        self._base, self._num_experts = start.layout.base(rank), shape.num_experts
        self.tables = DispatchTables(
            start.tables_LEJ,
            layout=start.layout,
            shared_LM=start.shared_LM,
            home=start.device.home,
        )
        for layer in range(shape.num_layers):
            self._check(layer, to_array(self.tables.table(layer)))
            self._check_shared(layer, to_array(self.tables.shared(layer)))
        self._marks = [self._mark_of(layer) for layer in range(shape.num_layers)]

    def set_table(self, layer: int, table_EJ: npt.ArrayLike) -> None:
        """Replace one layer's dispatch table, in place; raises BadTable, with the old one kept."""
        table = whole(table_EJ, "table_EJ")
        self.tables.check(layer, table)
        self._check(layer, table)
        self.tables.set(layer, table)
        self._marks[layer] = self._mark_of(layer)

    def set_shared(self, layer: int, slots_M: npt.ArrayLike) -> None:
        """Replace the slots used for one layer's shared experts, in place, like `set_table`.

        slots_M    [M]
        """
        slots = whole(slots_M, "slots_M")
        self.tables.check_shared(layer, slots)
        self._check_shared(layer, slots)
        self.tables.set_shared(layer, slots)
        self._marks[layer] = self._mark_of(layer)

    def shared(self) -> npt.NDArray[np.int64]:
        """Return a copy of [L, M]: the slot that this rank uses for each shared expert."""
        return self.tables.shared_snapshot()

    def mark(self) -> int:
        """Return a fingerprint of all of it, the same on ranks that route alike."""
        return _mark(self._marks)

    def _check(self, layer: int, table_EJ: npt.NDArray[np.int64]) -> None:
        held_S = self._slots.held()[layer]
        check_own(layer, table_EJ, held_S, base=self._base, rank=self._rank)

    def _check_shared(self, layer: int, slots_M: npt.NDArray[np.int64]) -> None:
        held_S, first = self._slots.held()[layer], self._num_experts
        check_own(layer, slots_M[:, None], held_S, base=self._base, rank=self._rank, first=first)

    def _mark_of(self, layer: int) -> int:
        table_EJ, slots_M = self.tables.table(layer), self.tables.shared(layer)
        return _mark(np.concatenate([to_array(table_EJ).reshape(-1), to_array(slots_M)]))


def _mark(numbers: npt.ArrayLike) -> int:
    return zlib.crc32(np.ascontiguousarray(numbers, dtype=np.int64).tobytes())
