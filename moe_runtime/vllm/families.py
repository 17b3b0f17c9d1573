"""The parts of an owned layer, by the family of the device that vLLM builds it on.

On CPUs everything is there. On Ascend devices the family says which operators route, which way
tokens go, and what is refused; nothing is ever computed on the CPU in their place. No NPU has run
this: its parts are checked on emulated kernels.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
import torch.distributed as dist

from moe_runtime.backends import npu
from moe_runtime.backends.cpu import CpuBackend
from moe_runtime.backends.npu_backend import NpuBackend
from moe_runtime.backends.protocol import Backend
from moe_runtime.contracts.modes import ExchangeMode
from moe_runtime.contracts.npu_errors import NpuKernelMissing, NpuUnavailable
from moe_runtime.exchange.all_to_all import AllToAllExchange
from moe_runtime.exchange.links import warm_links
from moe_runtime.exchange.npu_all_gather import NpuAllGatherExchange
from moe_runtime.exchange.npu_all_to_all import NpuAllToAllExchange
from moe_runtime.exchange.peers import Peers
from moe_runtime.formats.capabilities import DeviceKind
from moe_runtime.formats.families import family_of
from moe_runtime.layer.passage import Passage, Staged
from moe_runtime.placement.maps import SlotLayout
from moe_runtime.routing.kinds import Routing
from moe_runtime.routing.paths import ascend_path
from moe_runtime.routing.router import GatingPath
from moe_runtime.vllm.errors import CannotOwn

__all__ = ["CPU_PARTS", "AscendParts", "CpuParts", "MovingLink", "Parts", "parts_on"]


class Parts(Protocol):
    """What layers on one device are made of."""

    @property
    def kind(self) -> DeviceKind:
        """The family, by which the capability table judges."""
        ...

    @property
    def home(self) -> torch.device:
        """Where weights, tables, counters and tokens lie."""
        ...

    @property
    def backend(self) -> Backend:
        """Its operations."""
        ...

    @property
    def exchanges_by(self) -> ExchangeMode:
        """How tokens that are a rank's own reach their experts."""
        ...

    def exchange(self, peers: Peers, layout: SlotLayout) -> Passage:
        """Return that way."""
        ...

    def gating(self, routing: Routing) -> GatingPath:
        """Tell how routers choose by scores."""
        ...

    def now(self) -> float:
        """Return seconds; constant where the host does not see how long the device works."""
        ...

    def moving(self, ranks: Sequence[int]) -> "MovingLink | None":
        """Return how weights move from device to device; None: through the memory of hosts.

        ranks    all that hold experts, by their numbers in the world

        Collective over these ranks.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class MovingLink:
    """What moves weights from device to device."""

    group: dist.ProcessGroup
    """Nothing else uses it, and its links are warm."""
    home: torch.device
    lane: Callable[[], AbstractContextManager[None]]
    """What a thread that moves weights works in; on its end all is in its place."""


class CpuParts:
    """Meets `Parts`: the specification."""

    kind = DeviceKind.CPU
    home = torch.device("cpu")
    backend = CpuBackend()
    exchanges_by = ExchangeMode.ALL_TO_ALL

    def exchange(self, peers: Peers, layout: SlotLayout) -> Passage:
        """Return All2All."""
        return Staged(AllToAllExchange(peers, layout, self.backend))

    def gating(self, routing: Routing) -> GatingPath:
        """Choose by the fused gating where legal."""
        del routing
        return GatingPath.FUSED_WHERE_LEGAL

    def now(self) -> float:
        """Return seconds."""
        return time.perf_counter()

    def moving(self, ranks: Sequence[int]) -> MovingLink | None:
        """Return none."""
        del ranks
        return None


CPU_PARTS = CpuParts()


@dataclass(frozen=True, slots=True)
class AscendParts:
    """Meets `Parts`."""

    kind: DeviceKind
    backend: NpuBackend

    @property
    def home(self) -> torch.device:
        """The NPU."""
        return self.backend.door.device

    @property
    def exchanges_by(self) -> ExchangeMode:
        """AllGather on a 310P, which has nothing else."""
        is_old = self.kind is DeviceKind.P310
        return ExchangeMode.ALL_GATHER if is_old else ExchangeMode.ALL_TO_ALL

    def exchange(self, peers: Peers, layout: SlotLayout) -> Passage:
        """Return the family's way."""
        if self.exchanges_by is ExchangeMode.ALL_GATHER:
            return Staged(NpuAllGatherExchange(peers, layout, self.backend))
        return Staged(NpuAllToAllExchange(peers, layout, self.backend))

    def gating(self, routing: Routing) -> GatingPath:
        """Choose by the device's operator, which a 310P has not."""
        return ascend_path(routing, has_operator=self.kind is not DeviceKind.P310)

    def now(self) -> float:
        """Return a constant."""
        return 0.0

    def moving(self, ranks: Sequence[int]) -> MovingLink | None:
        """Return an HCCL group of its own, with a stream of its own; None for one rank."""
        if len(ranks) == 1:
            return None
        group = npu.HcclGroups().among(ranks)
        warm_links(group, self.home)
        return MovingLink(group, self.home, npu.moving_lane(self.home.index))


def parts_on(device: str | torch.device, layer: str) -> Parts:
    """Return the parts of a layer that is built on a device; raises CannotOwn."""
    kind, _, index = str(device).partition(":")
    if kind == "cpu":
        return CPU_PARTS
    if kind != "npu":
        raise CannotOwn(
            f"MoE layer {layer}",
            [f"its experts lie on {kind}, and the runtime computes on CPUs and Ascend NPUs"],
        )
    try:
        return _ascend(int(index) if index else torch.accelerator.current_device_index())
    except (NpuUnavailable, NpuKernelMissing) as why:
        raise CannotOwn(f"MoE layer {layer}", [str(why)]) from why


@cache
def _ascend(index: int) -> AscendParts:
    backend, on = npu.open_npu(index)
    return AscendParts(family_of(on.soc), backend)
