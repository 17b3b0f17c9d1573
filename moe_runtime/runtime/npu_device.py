"""An Ascend NPU as the device of one rank, and how a rank's device is opened by its name.

Never run on an NPU by this project: what was checked, and how far, is in the README.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from moe_runtime.backends import npu
from moe_runtime.backends.npu_backend import NpuBackend
from moe_runtime.backends.npu_ffn import Arrangements
from moe_runtime.backends.streams import Streams, StreamTimeline
from moe_runtime.contracts.modes import ExchangeMode
from moe_runtime.contracts.npu_errors import UnknownDevice
from moe_runtime.contracts.timeline import Timeline
from moe_runtime.exchange.choosing import SocFamily, limits_of
from moe_runtime.exchange.peers import Alone, GroupPeers, Peers
from moe_runtime.formats.capabilities import DeviceKind
from moe_runtime.formats.families import family_of
from moe_runtime.routing.kinds import Routing
from moe_runtime.routing.paths import ascend_path
from moe_runtime.routing.router import GatingPath
from moe_runtime.runtime.communicators import Communicators, make_communicators
from moe_runtime.runtime.device import CPU, Device
from moe_runtime.runtime.npu_passages import NpuPassages
from moe_runtime.runtime.passages import ExchangeParts, Passages
from moe_runtime.runtime.traffic import Nodes, Traffic

__all__ = ["FFN", "NpuDevice", "open_device", "peers_of"]


@dataclass(frozen=True, slots=True)
class NpuDevice:
    """Meets `Device`."""

    kind: DeviceKind
    backend: NpuBackend
    communicators: Communicators | None
    """None: opened for one rank alone."""
    streams: Streams
    lane: Callable[[], AbstractContextManager[None]]
    arrangements: Arrangements
    """Of experts for fused MC2."""
    missing: tuple[str, ...] = ()
    """Custom operators that are not registered."""

    @property
    def home(self) -> torch.device:
        """Where tensors are."""
        return self.backend.door.device

    @property
    def moving(self) -> dist.ProcessGroup | None:
        """The group over which weights are moved."""
        return None if self.communicators is None else self.communicators.moving

    def passages(self, parts: ExchangeParts) -> Passages:
        """Return its ways from placed tokens to combined ones."""
        mc2 = None if self.communicators is None else self.communicators.mc2
        limits = limits_of(SocFamily[self.kind.name])
        return NpuPassages(parts, self.backend, mc2, self.arrangements, limits)

    def gating(self, routing: Routing) -> GatingPath:
        """Choose by the device's operator where it scores as the routing asks."""
        return ascend_path(routing, has_operator=self.kind is not DeviceKind.P310)

    def refusals(self, traffic: Traffic) -> tuple[str, ...]:
        """Return what this device has not, of what the capability table allows its kind."""
        reasons: list[str] = []
        is_fused = traffic.mode is ExchangeMode.FUSED_MC2
        if (is_fused or traffic.mode is ExchangeMode.MC2) and self.communicators is None:
            reasons.append("MC2 has no communicator: the device was opened for one rank alone")
        if is_fused and FFN in self.missing:
            reasons.append(f"the custom operator {FFN} is not registered: vllm-ascend brings it")
        if is_fused and isinstance(traffic.nodes, Nodes):
            reasons.append("fused MC2 does not go from node to node")
        if isinstance(traffic.nodes, Nodes):
            reasons += self._against_nodes(traffic.nodes)
        return tuple(reasons)

    def _against_nodes(self, nodes: Nodes) -> Iterator[str]:
        if self.kind not in _BY_NODES:
            yield "hierarchical MC2 is of A2 and A3 only"
        if nodes.ranks_per_node % _NODE:
            yield f"hierarchical MC2 takes nodes of {_NODE} ranks, not of {nodes.ranks_per_node}"

    def timeline(self) -> Timeline:
        """Return the order of one layer's work, on two streams."""
        return StreamTimeline(self.streams)

    def now(self) -> float:
        """Return a constant: the host does not see how long the device works."""
        return 0.0

    def moving_lane(self) -> AbstractContextManager[None]:
        """Return a stream of its own, and wait for it at the end."""
        return self.lane()


FFN = "dispatch_ffn_combine"
"""The custom operator of fused MC2."""
_NODE = 8
"""The operators know of nodes from the communicator; their shapes count on as many NPUs of each."""
_BY_NODES = (DeviceKind.A2, DeviceKind.A3)


def open_device(name: str) -> Device:
    """Return the device called cpu, or npu:NUMBER for one of the NPUs that the process sees.

    Collective over the default process group, where there is one of several ranks: an NPU's
    communicators are made and their links warmed here, before anybody measures free memory.

    Raises UnknownDevice, NpuUnavailable and NpuKernelMissing; never opens another one instead.
    """
    if name == "cpu":
        return CPU
    before, colon, number = name.partition(":")
    if before != "npu" or not colon or not number.isdecimal():
        raise UnknownDevice(name)
    index = int(number)
    backend, on = npu.open_npu(index)
    kind = family_of(on.soc)
    many = dist.is_initialized() and dist.get_world_size() > 1
    made = make_communicators(npu.HcclGroups(), backend.door.device) if many else None
    streams, lane = npu.NpuStreams(index), npu.moving_lane(index)
    arrangements = Arrangements(backend.door)
    return NpuDevice(kind, backend, made, streams, lane, arrangements, on.missing)


def peers_of(device: Device) -> Peers:
    """Return the ranks that exchange tokens: over the device's own communicator, where it has one.

    On CPUs over the default process group, or alone where there is none.
    """
    if isinstance(device, NpuDevice):
        made = device.communicators
        return Alone() if made is None else GroupPeers(made.exchange)
    return GroupPeers() if dist.is_initialized() else Alone()
