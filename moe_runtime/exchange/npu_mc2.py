"""MC2 on Ascend NPUs: the device's pair of operators, over a communicator of its own.

Axes    T tokens   B rows of a rank's block   K experts per token   P slots of all ranks
        N ranks   S local slots

The operators tell how many rows each slot gets, but not for which expert their sender took it.
That goes beside them, by the group's other communicator, and is as small as the slots are many.
"""

from dataclasses import dataclass

import torch

from moe_runtime.backends.npu_mc2 import Block, Mc2Sent, NpuMc2
from moe_runtime.contracts.exchange_errors import BeyondLimit
from moe_runtime.contracts.ids import NOT_SENT, PhysicalIds
from moe_runtime.contracts.npu_errors import NpuKernelMissing
from moe_runtime.contracts.rows import RowForm
from moe_runtime.contracts.stages import Combined, Computed, Dispatched, Placed
from moe_runtime.contracts.step import StepView
from moe_runtime.exchange.blocks import EVEN, BlockRows, UnevenRows
from moe_runtime.exchange.limits import Limits, check_ids
from moe_runtime.exchange.peers import Peers, Pending
from moe_runtime.exchange.places import tell
from moe_runtime.placement.maps import SlotLayout

__all__ = ["NpuMc2Carry", "NpuMc2Exchange", "padded", "refuse_unsent", "start_telling"]


@dataclass(frozen=True, slots=True, eq=False)
class NpuMc2Carry:
    """What MC2 on the device needs again to combine."""

    sent: Mc2Sent
    block: Block
    num_own: int


@dataclass(frozen=True, slots=True)
class NpuMc2Exchange:
    """Meets `Exchange[NpuMc2Carry]`."""

    peers: Peers
    """Over another communicator than the operators use."""
    layout: SlotLayout
    mc2: NpuMc2
    form: RowForm
    limits: Limits
    block_rows: BlockRows = EVEN
    reads_ids: bool = True
    """Whether ids are looked at before each dispatch, for which the host waits; off in graphs."""

    def dispatch(self, placed: Placed, view: StepView) -> Dispatched[NpuMc2Carry]:
        """Send rows to their slots; raises BeyondLimit and NpuKernelMissing before that."""
        if max(view.rows_N) > self.limits.rows:
            raise BeyondLimit("rows of a rank", got=max(view.rows_N), most=self.limits.rows)
        if self.reads_ids:
            self._check(placed, view)
        num_ranks, num_slots = self.layout.num_ranks, self.layout.slots_per_rank[view.rank]
        pending = start_telling(self.peers, self.layout, placed, rank=view.rank)
        block = self._block(placed, view)
        sent = self.mc2.dispatch(block, self.form)
        received_NS, claimed_NS = pending.wait().view(num_ranks, num_slots, 2).unbind(dim=2)
        return Dispatched(
            rows=sent.rows,
            counts=sent.counts,
            received_NS=received_NS,
            claimed_NS=claimed_NS,
            carry=NpuMc2Carry(sent, block, placed.x_TZ.shape[0]),
        )

    def combine(self, computed: Computed[NpuMc2Carry]) -> Combined:
        """Bring results back, weighed and summed at the tokens' owner."""
        carry = computed.carry
        summed_BZ = self.mc2.combine(computed.rows_MZ, carry.sent, carry.block)
        return Combined(summed_BZ[: carry.num_own])

    def _check(self, placed: Placed, view: StepView) -> None:
        check_ids(
            placed.slots,
            num_slots=self.layout.num_slots,
            limits=self.limits,
            rows=max(view.rows_N),
        )
        refuse_unsent(placed, "npu_moe_distribute_dispatch_v2")

    def _block(self, placed: Placed, view: StepView) -> Block:
        """Pad to the rows of the fullest rank, behind a mask; or take uneven rows as they are."""
        if isinstance(self.block_rows, UnevenRows):
            if not placed.x_TZ.shape[0]:
                raise NpuKernelMissing(
                    "MC2 of uneven rows with none on a rank",
                    reason="without a mask every row is a token, and operators take one or more",
                )
            return Block(
                placed.x_TZ,
                placed.slots,
                None,
                self.block_rows.global_rows,
                placed.weights_TK.to(torch.float32),
            )
        return padded(placed, view)


def padded(placed: Placed, view: StepView) -> Block:
    """Return as many rows as the fullest rank has, one or more, with a mask of those that count.

    Rows of padding name slots that there are, since an operator looks at them too.
    """
    num_own, k = placed.slots.ids_TK.shape
    x_TZ, device = placed.x_TZ, placed.x_TZ.device
    missing = max(*view.rows_N, 1) - num_own
    padding_BK = torch.arange(k, device=device).expand(missing, k)
    slots_BK = torch.cat((placed.slots.ids_TK, padding_BK))
    x_BZ = torch.cat((x_TZ, x_TZ.new_zeros((missing, x_TZ.shape[1]))))
    weights_BK = torch.cat((placed.weights_TK, placed.weights_TK.new_zeros((missing, k))))
    active_B = torch.arange(slots_BK.shape[0], device=device) < num_own
    return Block(x_BZ, PhysicalIds(slots_BK), active_B, 0, weights_BK.to(torch.float32))


def start_telling(peers: Peers, layout: SlotLayout, placed: Placed, *, rank: int) -> Pending:
    """Begin to tell all ranks how many rows go to each slot, and for which expert: [N S, 2]."""
    told_P2 = tell(placed.slots.ids_TK, placed.experts.ids_TK, layout.num_slots)
    own = [layout.slots_per_rank[rank]] * layout.num_ranks
    what = "how many rows go to each slot"
    return peers.start_all_to_all(told_P2, layout.slots_per_rank, own, what=what)


def refuse_unsent(placed: Placed, operator: str) -> None:
    """Raise NpuKernelMissing for pairs that are not sent; the host waits for the device."""
    if bool((placed.slots.ids_TK == NOT_SENT).any()):
        raise NpuKernelMissing(
            "MC2 of pairs that are not sent (zero experts)",
            reason=f"{operator} sends every pair of a token",
        )
