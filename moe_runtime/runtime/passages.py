"""The ways from placed tokens to combined ones, as a device builds them; on CPUs, all of them."""

from dataclasses import dataclass
from typing import Protocol

from moe_runtime.backends.coding import FormCoder
from moe_runtime.backends.cpu import CpuBackend
from moe_runtime.contracts.modes import ExchangeMode
from moe_runtime.exchange.all_gather import AllGatherExchange
from moe_runtime.exchange.all_gather_sum import AllGatherSumExchange
from moe_runtime.exchange.all_to_all import AllToAllExchange
from moe_runtime.exchange.fused_mc2 import FusedMc2Exchange
from moe_runtime.exchange.mc2 import Mc2Exchange
from moe_runtime.exchange.mc2_hierarchy import Mc2HierarchyExchange
from moe_runtime.exchange.peers import Peers
from moe_runtime.layer.passage import FusedOrElse, Passage, Staged
from moe_runtime.placement.maps import SlotLayout
from moe_runtime.runtime.traffic import Nodes, OneNode, Traffic

__all__ = ["CpuPassages", "ExchangeParts", "Passages"]


@dataclass(frozen=True, slots=True)
class ExchangeParts:
    """What every way of one rank is made of."""

    peers: Peers
    layout: SlotLayout
    coder: FormCoder
    """The format's own: what its experts read is what travels."""
    traffic: Traffic
    capacity: int
    """Rows that a rank can receive in one fused call; the same on every rank."""


class Passages(Protocol):
    """Builds ways. They keep nothing between steps."""

    def of(self, mode: ExchangeMode) -> Passage:
        """Return the way of a mode."""
        ...

    def over_teams(self, team: int) -> Passage:
        """Return the way of AllGather where the ranks of a team hold their tokens alike."""
        ...


@dataclass(frozen=True, slots=True)
class CpuPassages:
    """Meets `Passages`."""

    parts: ExchangeParts
    backend: CpuBackend

    def of(self, mode: ExchangeMode) -> Passage:
        """Return the way of a mode."""
        parts = self.parts
        peers, layout, coder = parts.peers, parts.layout, parts.coder
        direct = Staged(AllToAllExchange(peers, layout, self.backend, coder))
        match mode:
            case ExchangeMode.ALL_GATHER:
                return Staged(AllGatherExchange(peers, layout, self.backend, coder))
            case ExchangeMode.ALL_TO_ALL:
                return direct
            case ExchangeMode.MC2:
                return self._mc2()
            case ExchangeMode.FUSED_MC2:
                limits = parts.traffic.limits
                fused = FusedMc2Exchange(peers, layout, self.backend, parts.capacity, coder, limits)
                return FusedOrElse(fused, direct)

    def over_teams(self, team: int) -> Passage:
        """Return the way of AllGather where the ranks of a team hold their tokens alike."""
        parts = self.parts
        return Staged(
            AllGatherSumExchange(parts.peers, parts.layout, self.backend, team, parts.coder)
        )

    def _mc2(self) -> Passage:
        parts, traffic = self.parts, self.parts.traffic
        peers, layout, coder = parts.peers, parts.layout, parts.coder
        match traffic.nodes:
            case OneNode():
                return Staged(
                    Mc2Exchange(
                        peers, layout, self.backend, coder, traffic.block_rows, traffic.limits
                    )
                )
            case Nodes(per_node):
                return Staged(
                    Mc2HierarchyExchange(
                        peers, layout, self.backend, per_node, coder, traffic.limits
                    )
                )
