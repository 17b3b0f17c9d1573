"""Exchange by MC2: windows of a size that all ranks know, in one collective each way.

Axes    T tokens   B rows of a rank's block   K experts per token   N ranks   S local slots
        W rows of a window   A = N W rows that may arrive   Z width

Every rank brings a block of as many rows, padding behind a mask; or, where ranks bring uneven
numbers, all rows are tokens and the windows are sized by what all may bring together. A block's
tokens name distinct slots, so a rank with S slots gets at most min(K, S) rows for each of them,
and a window can never overflow. On CPU this is a real exchange between processes; the operators
of the device promise the same from outside.
"""

from dataclasses import dataclass

import torch

from moe_runtime.backends.protocol import Backend
from moe_runtime.contracts.rows import AS_IS, RowCoder
from moe_runtime.contracts.stages import Combined, Computed, Dispatched, Mc2Carry, Placed
from moe_runtime.contracts.step import StepView
from moe_runtime.exchange.active import AllActive, Masked
from moe_runtime.exchange.blocks import EVEN, BlockRows, block_of
from moe_runtime.exchange.encoding import encode
from moe_runtime.exchange.limits import UNLIMITED, Limits, check_ids
from moe_runtime.exchange.peers import Peers
from moe_runtime.exchange.window import Window, Windowed
from moe_runtime.placement.maps import SlotLayout

__all__ = ["Mc2Exchange"]


@dataclass(frozen=True, slots=True)
class Mc2Exchange:
    """Meets `Exchange[Mc2Carry]`."""

    peers: Peers
    layout: SlotLayout
    backend: Backend
    coder: RowCoder = AS_IS
    block_rows: BlockRows = EVEN
    limits: Limits = UNLIMITED

    def dispatch(self, placed: Placed, view: StepView) -> Dispatched[Mc2Carry]:
        """Exchange windows; raises BeyondLimit, on all ranks alike, before anything is sent."""
        check_ids(
            placed.slots,
            num_slots=self.layout.num_slots,
            limits=self.limits,
            rows=max(view.rows_N),
        )
        entering, block = block_of(placed, view, self.block_rows)
        return self._enter(entering, block, num_own=placed.x_TZ.shape[0])

    def _enter(
        self, entering: Masked | AllActive, block: int, *, num_own: int
    ) -> Dispatched[Mc2Carry]:
        placed = entering.placed
        most = min(placed.weights_TK.shape[1], max(self.layout.slots_per_rank))
        window = self._window(block * most)
        landed = window.send(
            Windowed(
                rows=encode(placed, self.coder),
                slots=placed.slots,
                experts=placed.experts,
                sources_T=torch.zeros(placed.x_TZ.shape[0], dtype=torch.int64),
                num_sources=1,
            )
        )
        return Dispatched(
            rows=landed.rows,
            counts=landed.ends.to_counts(),
            received_NS=landed.received_NGS[:, 0],
            claimed_NS=landed.claimed_NGS[:, 0],
            carry=Mc2Carry(
                index_BK=landed.index_TK,
                weights_BK=placed.weights_TK,
                arrival_A=landed.arrival_A,
                window_rows=window.num_rows,
                num_own=num_own,
            ),
        )

    def combine(self, computed: Computed[Mc2Carry]) -> Combined:
        """Send windows back, and sum each token's rows at its owner."""
        carry = computed.carry
        window = self._window(carry.window_rows)
        back_AZ = window.send_back(computed.rows_MZ, carry.arrival_A)
        summed_BZ = self.backend.weighted_sum(back_AZ, carry.index_BK, carry.weights_BK)
        return Combined(summed_BZ[: carry.num_own])

    def _window(self, num_rows: int) -> Window:
        most_slots = max(self.layout.slots_per_rank)
        return Window(self.peers, self.layout, self.backend, num_rows, most_slots)
