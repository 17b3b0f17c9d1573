# pyright: reportMissingImports=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportAttributeAccessIssue=false
# The rules are off in this file only: torch_npu is not installed where the code is checked.
"""The door to Ascend NPUs: the only file that imports torch_npu, when it is asked to.

It opens where an NPU answers, and nowhere else; it never computes on the CPU instead.
"""

import importlib
import importlib.util
import re
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from moe_runtime.backends.npu_backend import NpuBackend, NpuBackend310
from moe_runtime.backends.npu_door import NpuDoor
from moe_runtime.backends.npu_mc2 import Communicator
from moe_runtime.backends.npu_rules import OLDEST, RULES
from moe_runtime.contracts.npu_errors import NpuKernelMissing, NpuUnavailable

__all__ = [
    "HcclGroups",
    "Installation",
    "NpuStreams",
    "communicator",
    "custom_operators",
    "mega_moe",
    "moving_lane",
    "open_npu",
]


@dataclass(frozen=True, slots=True)
class Installation:
    """What a backend was opened on; a report of hardware tests begins with it."""

    torch_npu: str
    soc: str
    missing: tuple[str, ...]
    """Custom operators that are not registered."""
    num_devices: int
    """NPUs that the process sees."""
    mega_moe: str
    """What keeps MegaMoe from being used; empty if nothing does."""


_MEGA_MOE = "cann_ops_transformer"
"""A package of its own, which may be there without `_C_ascend`, or the other way round."""
_FUSING = ("910B", "910_93")
"""The families for which npu_dequant_swiglu_quant is documented, as their chips are called."""
_CUSTOM = ("dispatch_ffn_combine",)
"""Of `_C_ascend`, which comes with vllm-ascend: what fused MC2 needs."""


def open_npu(index: int) -> tuple[NpuBackend, Installation]:
    """Return the backend on one NPU; raises NpuUnavailable and NpuKernelMissing."""
    try:
        import torch_npu  # noqa: PLC0415  it patches torch, so only for who asks for an NPU
    except (ImportError, OSError, RuntimeError) as cause:
        raise NpuUnavailable(f"torch_npu cannot be imported ({cause})") from cause
    version = str(torch_npu.__version__)
    if _numbers(version) < OLDEST:
        oldest = ".".join(str(n) for n in OLDEST)
        raise NpuUnavailable(f"torch_npu is {version}, the oldest that is supported is {oldest}")
    found = int(torch_npu.npu.device_count()) if torch_npu.npu.is_available() else 0
    if not 0 <= index < found:
        raise NpuUnavailable(f"NPU {index} is wanted and {found} answer")
    if gone := [name for name in RULES if not hasattr(torch.ops.npu, name)]:
        raise NpuKernelMissing(", ".join(gone), reason=f"torch_npu {version} does not have them")
    torch_npu.npu.set_device(index)
    soc = str(torch_npu.npu.get_device_name(index))
    door = NpuDoor(torch.ops.npu, torch.device("npu", index), torch.ops._C_ascend)
    fuses = any(family in soc for family in _FUSING)
    backend = NpuBackend310(door) if "310P" in soc else NpuBackend(door, fuses)
    return backend, Installation(version, soc, custom_operators(_CUSTOM), found, mega_moe())


def custom_operators(wanted: Sequence[str]) -> tuple[str, ...]:
    """Return those of `wanted` that are not registered as `_C_ascend` operators."""
    return tuple(name for name in wanted if not hasattr(torch.ops._C_ascend, name))


def mega_moe() -> str:
    """Return what keeps MegaMoe from being used here, as a sentence; empty if nothing does.

    Looked for by its own package, apart from `_C_ascend`: neither says anything of the other.
    """
    if importlib.util.find_spec(_MEGA_MOE) is None:
        return f"the package {_MEGA_MOE} is not installed"
    try:
        operators = importlib.import_module(f"{_MEGA_MOE}.ops")
    except (ImportError, OSError, RuntimeError) as cause:
        return f"{_MEGA_MOE} cannot be imported ({cause})"
    wanted = ("get_symm_buffer_for_mega_moe", "mega_moe")
    gone = [name for name in wanted if not callable(getattr(operators, name, None))]
    return f"{_MEGA_MOE} does not have {', '.join(gone)}" if gone else ""


def communicator(group: dist.ProcessGroup) -> Communicator:
    """Return the HCCL communicator of a group; no other collective may use that group.

    Raises NpuUnavailable for a group that is not HCCL's.
    """
    rank = dist.get_rank(group)
    backend = group._get_backend(torch.device("npu")) if _is_hccl(group) else None
    if backend is None:
        raise NpuUnavailable(f"the group of MC2 is {dist.get_backend(group)}, expected hccl")
    name = str(backend.get_hccl_comm_name(rank))
    return Communicator(name, rank, dist.get_world_size(group))


def _is_hccl(group: dist.ProcessGroup) -> bool:
    return "hccl" in str(dist.get_backend(group))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version)[:3])


class HcclGroups:
    """Meets `CommunicatorSource`."""

    def make(self) -> dist.ProcessGroup:
        """Return another HCCL group of all ranks. Collective."""
        group = dist.new_group(backend="hccl")
        assert isinstance(group, dist.ProcessGroup)
        return group

    def among(self, ranks: Sequence[int]) -> dist.ProcessGroup:
        """Return another HCCL group of some ranks, by their numbers in the world.

        Collective over these ranks alone.
        """
        group = dist.new_group(list(ranks), backend="hccl", use_local_synchronization=True)
        assert isinstance(group, dist.ProcessGroup)
        return group

    def named(self, group: dist.ProcessGroup) -> Communicator:
        """Return its communicator; raises NpuUnavailable."""
        return communicator(group)


class NpuStreams:
    """Meets `Streams` on one NPU; the second stream is the same for all layers."""

    def __init__(self, index: int) -> None:
        self._npu: Any = torch.npu
        self._second = self._npu.Stream(device=index)

    def record(self) -> object:
        """Return an event on the current stream."""
        event = self._npu.Event()
        event.record(self._npu.current_stream())
        return event

    def wait(self, event: object) -> None:
        """Hold the current stream until the event."""
        self._npu.current_stream().wait_event(event)

    def second(self) -> AbstractContextManager[None]:
        """Make the second stream the current one."""
        return self._npu.stream(self._second)


def moving_lane(index: int) -> Callable[[], AbstractContextManager[None]]:
    """Return what gives the calling thread this NPU and a stream of its own, and waits for it.

    A thread begins with device 0, whatever the process has chosen.
    """
    npu: Any = torch.npu
    stream = npu.Stream(device=index)

    @contextmanager
    def lane() -> Generator[None]:
        npu.set_device(index)
        with npu.stream(stream):
            yield
            stream.synchronize()

    return lane
