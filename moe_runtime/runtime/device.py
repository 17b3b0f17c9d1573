"""What a rank computes on: chosen by its owner, once, and never anything else in its place."""

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist

from moe_runtime.backends.cpu import CpuBackend
from moe_runtime.backends.protocol import Backend
from moe_runtime.contracts.timeline import InOrder, Timeline
from moe_runtime.formats.capabilities import DeviceKind
from moe_runtime.routing.kinds import Routing
from moe_runtime.routing.router import GatingPath
from moe_runtime.runtime.passages import CpuPassages, ExchangeParts, Passages
from moe_runtime.runtime.traffic import Traffic

__all__ = ["CPU", "CpuDevice", "Device"]


class Device(Protocol):
    """One rank's device. Weights, tables, counters and tokens all live in its memory."""

    @property
    def kind(self) -> DeviceKind:
        """By which the capability table judges."""
        ...

    @property
    def home(self) -> torch.device:
        """Where tensors are."""
        ...

    @property
    def backend(self) -> Backend:
        """Its operations."""
        ...

    @property
    def moving(self) -> dist.ProcessGroup | None:
        """The group over which weights move from device to device, and nothing else.

        None where they move through the memory of hosts.
        """
        ...

    def passages(self, parts: ExchangeParts) -> Passages:
        """Return its ways from placed tokens to combined ones."""
        ...

    def gating(self, routing: Routing) -> GatingPath:
        """Tell how routers choose by scores."""
        ...

    def refusals(self, traffic: Traffic) -> tuple[str, ...]:
        """Return what its backend has not, of what the capability table allows its kind."""
        ...

    def timeline(self) -> Timeline:
        """Return the order of one layer's work."""
        ...

    def now(self) -> float:
        """Return seconds.

        Constant where work is not over when a call returns, so that what would be measured
        counts as unknown and not as little.
        """
        ...

    def moving_lane(self) -> AbstractContextManager[None]:
        """Return what a thread that moves weights works in; on its end all is in its place."""
        ...


@dataclass(frozen=True, slots=True)
class CpuDevice:
    """Meets `Device`: the specification."""

    @property
    def kind(self) -> DeviceKind:
        """By which the capability table judges."""
        return DeviceKind.CPU

    @property
    def home(self) -> torch.device:
        """Where tensors are."""
        return torch.device("cpu")

    @property
    def backend(self) -> CpuBackend:
        """Its operations."""
        return CpuBackend()

    @property
    def moving(self) -> dist.ProcessGroup | None:
        """Return none: weights move through the memory of hosts."""
        return None

    def passages(self, parts: ExchangeParts) -> Passages:
        """Return its ways from placed tokens to combined ones."""
        return CpuPassages(parts, self.backend)

    def gating(self, routing: Routing) -> GatingPath:
        """Choose by the fused gating, which is written apart from the reference, where legal."""
        del routing
        return GatingPath.FUSED_WHERE_LEGAL

    def refusals(self, traffic: Traffic) -> tuple[str, ...]:
        """Have everything."""
        del traffic
        return ()

    def timeline(self) -> Timeline:
        """Return the order of one stream."""
        return InOrder()

    def now(self) -> float:
        """Return seconds."""
        return time.perf_counter()

    def moving_lane(self) -> AbstractContextManager[None]:
        """Return nothing to enter: a copy is over when it returns."""
        return nullcontext()


CPU = CpuDevice()
