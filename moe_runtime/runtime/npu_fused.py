"""Fused MC2 on Ascend NPUs, around the one operator that does all of it.

Axes    T tokens   N ranks   S local slots   Z width

Never run on an NPU by this project: what was checked, and how far, is in the README.
"""

import math
from dataclasses import dataclass

from moe_runtime.backends.npu_ffn import Arrangements, NpuFfn, check_computed
from moe_runtime.contracts.exchange_errors import BeyondLimit
from moe_runtime.contracts.npu_errors import NpuKernelMissing
from moe_runtime.contracts.stages import AllToAllCarry, Placed
from moe_runtime.contracts.step import StepView
from moe_runtime.contracts.torch_calls import to_ints
from moe_runtime.exchange.limits import Limits, check_ids
from moe_runtime.exchange.npu_mc2 import padded, refuse_unsent, start_telling
from moe_runtime.exchange.peers import Peers
from moe_runtime.experts.activations import SwiGLU
from moe_runtime.layer.passage import Compute, Lending, Lent, Passed, Staged
from moe_runtime.placement.maps import SlotLayout

__all__ = ["NpuFusedPassage"]

_MOST_RANKS = 32


@dataclass(frozen=True, slots=True)
class NpuFusedPassage:
    """Meets `Passage`. What does not fit goes the other way, on all ranks alike."""

    peers: Peers
    """Over another communicator than the operator uses."""
    layout: SlotLayout
    operator: NpuFfn
    arrangements: Arrangements
    limits: Limits
    buffer_rows: int
    """Rows of a rank that the operator's capacity is for."""
    otherwise: Staged[AllToAllCarry]

    def __post_init__(self) -> None:
        """Raise BeyondLimit for more ranks than the operator serves."""
        if self.layout.num_ranks > _MOST_RANKS:
            raise BeyondLimit("ranks of fused MC2", got=self.layout.num_ranks, most=_MOST_RANKS)

    def run(self, placed: Placed, view: StepView, compute: Compute) -> Passed:
        """Compute all tokens; raises RowsLost, and what is refused before anything is sent."""
        if max(view.rows_N) > self.buffer_rows:
            passed = self.otherwise.run(placed, view, compute)
            return Passed(passed.x_TZ, placed.x_TZ.shape[0])
        check_ids(
            placed.slots,
            num_slots=self.layout.num_slots,
            limits=self.limits,
            rows=max(view.rows_N),
        )
        refuse_unsent(placed, "dispatch_ffn_combine")
        shape_NS = (self.layout.num_ranks, self.layout.slots_per_rank[view.rank])
        told = start_telling(self.peers, self.layout, placed, rank=view.rank).wait()
        received_NS, claimed_NS = told.view(*shape_NS, 2).unbind(dim=2)
        assert isinstance(compute, Lending), "only a layer's own experts are lent"
        lent = compute.lend(received_NS, claimed_NS)
        experts = self.arrangements.of(lent.weights)
        block = padded(placed, view)
        out_BZ, counted_S = self.operator.run(block, experts, limit=_limit(lent))
        if experts.is_int8:  # of unquantised ones, padding is computed and counted too
            check_computed(counted_S, to_ints(received_NS.sum(dim=0)))
        return Passed(out_BZ[: placed.x_TZ.shape[0]], 0)


def _limit(lent: Lent) -> float:
    """Return the limit of SwiGLU as the operator takes it; raises NpuKernelMissing for others."""
    match lent.activation:
        case SwiGLU(limit):
            return 0.0 if limit == math.inf else float(limit)
        case other:
            raise NpuKernelMissing(f"fused MC2 of {other}", reason="its operator computes SwiGLU")
