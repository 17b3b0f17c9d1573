"""How a token's logical expert becomes a slot.

Axes    T tokens   K experts per token   L layers   E logical experts
        J rows of a table                P slots of all ranks
        M shared experts that sit in slots, with the ids from E on

A dispatch table names, for each expert, the slots that this rank uses. With
J = 1 it is what vllm-ascend calls log2phy and pushes as such. With J > 1 a
token takes the entry of its row modulo J, so that ranks that hold the same
tokens and the same table pick the same slot. `remap` is the only place where
a table is applied, by the rank that owns the token, once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from moe_runtime.contracts.errors import BadTable, ShapeMismatch, UnplacedExpert
from moe_runtime.contracts.ids import NOT_SENT, PhysicalIds
from moe_runtime.contracts.stages import Placed, Routed
from moe_runtime.contracts.torch_calls import from_array, is_whole, to_array, unique_ints, whole

__all__ = ["DispatchTables", "SlotLayout", "remap"]

_HOST = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """How many slots each rank has; slots are numbered rank by rank.

    >>> SlotLayout((3, 2)).base(1), SlotLayout((3, 2)).num_slots
    (3, 5)
    """

    slots_per_rank: tuple[int, ...]

    @property
    def num_ranks(self) -> int:
        """Ranks of the deployment."""
        return len(self.slots_per_rank)

    @property
    def num_slots(self) -> int:
        """Slots of all ranks."""
        return sum(self.slots_per_rank)

    def base(self, rank: int) -> int:
        """Return the first slot of a rank."""
        return sum(self.slots_per_rank[:rank])

    def bounds(self) -> tuple[int, ...]:
        """Return N + 1 slot numbers: rank r has bounds[r] up to, not including, bounds[r + 1]."""
        return tuple(accumulate(self.slots_per_rank, initial=0))


class DispatchTables:
    """One table per layer, and the slots used for shared experts, updated in place.

    shared_LM    the slot that this rank uses for each shared expert; no columns: none is in slots
    home         where tokens are computed, and tables looked up
    """

    def __init__(
        self,
        tables_LEJ: npt.ArrayLike,
        *,
        layout: SlotLayout,
        shared_LM: npt.ArrayLike = (),
        home: torch.device = _HOST,
    ) -> None:
        tables = whole(tables_LEJ, "tables_LEJ")
        if tables.ndim != 3 or not tables.shape[2]:
            raise ShapeMismatch("tables_LEJ", got=tables.shape, expected="(L, E, J)")
        shared = whole(shared_LM, "shared_LM").reshape(len(tables), -1)
        self._layout = layout
        self._tables_LEJ = from_array(tables).to(home)
        self._shared_LM = from_array(shared).to(home)
        for layer, table in enumerate(tables):
            self.check(layer, table)
            self.check_shared(layer, shared[layer])

    def table(self, layer: int) -> Tensor:
        """Return the live int64 [E, J] table of one layer."""
        return self._tables_LEJ[layer]

    def snapshot(self) -> npt.NDArray[np.int64]:
        """Return a copy of all tables, [L, E, J]."""
        return to_array(self._tables_LEJ)

    def set(self, layer: int, table_EJ: npt.ArrayLike) -> None:
        """Replace one layer's table in place; raises BadTable and keeps the old one."""
        table = whole(table_EJ, "table_EJ")
        self.check(layer, table)
        self._tables_LEJ[layer].copy_(from_array(table))

    def shared(self, layer: int) -> Tensor:
        """Return the live int64 [M] of one layer: the slot of each shared expert."""
        return self._shared_LM[layer]

    def shared_snapshot(self) -> npt.NDArray[np.int64]:
        """Return a copy of the slots of all layers' shared experts, [L, M]."""
        return to_array(self._shared_LM)

    def set_shared(self, layer: int, slots_M: npt.ArrayLike) -> None:
        """Replace one layer's slots in place; raises BadTable and keeps the old ones."""
        slots = whole(slots_M, "slots_M")
        self.check_shared(layer, slots)
        self._shared_LM[layer].copy_(from_array(slots))

    def check_shared(self, layer: int, slots: npt.NDArray[np.int64]) -> None:
        """Raise BadTable unless there is one slot, of those there are, for each shared expert."""
        self._check_layer(layer)
        expected = tuple(self._shared_LM.shape[1:])
        if slots.shape != expected:
            raise BadTable(
                layer=layer, reason=f"slots of shared experts: {slots.shape}, not {expected}"
            )
        outside = (slots < 0) | (slots >= self._layout.num_slots)
        if outside.any():
            raise BadTable(
                layer=layer,
                reason=f"shared experts {np.flatnonzero(outside).tolist()} are sent to slots "
                f"outside 0..{self._layout.num_slots - 1}",
            )

    def _check_layer(self, layer: int) -> None:
        """Refuse what no layer is called; -1 would be the last one."""
        if not is_whole(layer) or not 0 <= layer < len(self._tables_LEJ):
            raise BadTable(
                layer=layer, reason=f"there is no such layer: there are {len(self._tables_LEJ)}"
            )

    def check(self, layer: int, table: npt.NDArray[np.int64]) -> None:
        """Raise BadTable unless the table has the right shape and names only slots there are."""
        self._check_layer(layer)
        expected = tuple(self._tables_LEJ.shape[1:])
        if table.shape != expected:
            raise BadTable(layer=layer, reason=f"table has shape {table.shape}, not {expected}")
        outside = (table < -1) | (table >= self._layout.num_slots)
        if outside.any():
            raise BadTable(
                layer=layer,
                reason=f"experts {_experts(outside)} are sent to slots outside "
                f"0..{self._layout.num_slots - 1}",
            )


def remap(routed: Routed, table_EJ: Tensor, *, layer: int, row_offset: int = 0) -> Placed:
    """Send each token to the slot that this rank uses for its expert.

    table_EJ      [E, J]  slot of each expert, -1 where it has none
    row_offset    number of the first token among those that share the table's rows

    Pairs that are not sent stay so. Raises UnplacedExpert if a token chose an expert without a
    slot.
    """
    experts_TK = routed.experts.ids_TK
    sent_TK = experts_TK != NOT_SENT
    num_choices = table_EJ.shape[1]
    if num_choices == 1:
        slots_TK = table_EJ[:, 0][experts_TK]
    else:
        last = row_offset + experts_TK.shape[0]
        rows_T = torch.arange(row_offset, last, device=experts_TK.device) % num_choices
        slots_TK = table_EJ[experts_TK, rows_T[:, None]]
    unplaced_TK = (slots_TK < 0) & sent_TK
    if unplaced_TK.any():
        raise UnplacedExpert(layer=layer, experts=unique_ints(experts_TK[unplaced_TK]))
    slots_TK = torch.where(sent_TK, slots_TK, NOT_SENT)
    return Placed(routed.x_TZ, PhysicalIds(slots_TK), routed.experts, routed.weights_TK)


def _experts(bad_EJ: npt.NDArray[np.bool_]) -> Sequence[int]:
    return np.flatnonzero(bad_EJ.any(axis=1)).tolist()
