"""The ways from placed tokens to combined ones on Ascend NPUs."""

from dataclasses import dataclass

from moe_runtime.backends.npu_backend import NpuBackend
from moe_runtime.backends.npu_ffn import Arrangements, NpuFfn
from moe_runtime.backends.npu_mc2 import Communicator, NpuMc2
from moe_runtime.contracts.modes import ExchangeMode
from moe_runtime.contracts.npu_errors import NpuKernelMissing
from moe_runtime.exchange.all_gather_sum import AllGatherSumExchange
from moe_runtime.exchange.limits import Limits
from moe_runtime.exchange.npu_all_gather import NpuAllGatherExchange
from moe_runtime.exchange.npu_all_to_all import NpuAllToAllExchange
from moe_runtime.exchange.npu_mc2 import NpuMc2Exchange
from moe_runtime.layer.passage import Passage, Staged
from moe_runtime.runtime.npu_fused import NpuFusedPassage
from moe_runtime.runtime.passages import ExchangeParts
from moe_runtime.runtime.traffic import Nodes

__all__ = ["NpuPassages"]


@dataclass(frozen=True, slots=True)
class NpuPassages:
    """Meets `Passages`. Nothing is ever taken in the place of a way that is not there."""

    parts: ExchangeParts
    backend: NpuBackend
    mc2: Communicator | None
    """MC2's own; None where the device was opened for one rank alone."""
    arrangements: Arrangements
    limits: Limits
    """Of MC2's operators on this family of devices."""

    def of(self, mode: ExchangeMode) -> Passage:
        """Return the way of a mode; raises NpuKernelMissing for one that is not built."""
        parts, backend = self.parts, self.backend
        peers, layout, coder = parts.peers, parts.layout, parts.coder
        match mode:
            case ExchangeMode.ALL_GATHER:
                return Staged(NpuAllGatherExchange(peers, layout, backend, coder))
            case ExchangeMode.ALL_TO_ALL:
                return Staged(NpuAllToAllExchange(peers, layout, backend, coder))
            case ExchangeMode.MC2:
                return Staged(self._mc2())
            case ExchangeMode.FUSED_MC2:
                return self._fused()

    def over_teams(self, team: int) -> Passage:
        """Return the way of AllGather where the ranks of a team hold their tokens alike."""
        parts = self.parts
        return Staged(
            AllGatherSumExchange(parts.peers, parts.layout, self.backend, team, parts.coder)
        )

    def _fused(self) -> NpuFusedPassage:
        parts, door = self.parts, self.backend.door
        direct = NpuAllToAllExchange(parts.peers, parts.layout, self.backend, parts.coder)
        return NpuFusedPassage(
            parts.peers,
            parts.layout,
            NpuFfn(door, self._own(), parts.layout.num_slots, parts.capacity),
            self.arrangements,
            self.limits,
            parts.traffic.buffer_rows,
            Staged(direct),
        )

    def _own(self) -> Communicator:
        if self.mc2 is None:
            raise NpuKernelMissing("MC2", reason="the device was opened for one rank alone")
        return self.mc2

    def _mc2(self) -> NpuMc2Exchange:
        parts = self.parts
        by_nodes = isinstance(parts.traffic.nodes, Nodes)
        operators = NpuMc2(self.backend.door, self._own(), parts.layout.num_slots, by_nodes)
        return NpuMc2Exchange(
            parts.peers,
            parts.layout,
            operators,
            parts.coder.form,
            self.limits,
            parts.traffic.block_rows,
        )
