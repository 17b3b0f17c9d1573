"""What the Ascend backend refuses by name.

MoeError
NpuUnavailable        this machine or its installation cannot run Ascend operators
NpuCallRefused        a call that an Ascend operator is not documented to take
NpuKernelMissing      an operator, or a pairing of formats, that this installation does not have
UnknownDevice         a name that no device has
CommunicatorShared    communicators for different purposes that turn out to be one
RowsLost              a fused operator computed other rows than it was sent
WrongMemory           a batch in another memory than that of the device that computes it
"""

from collections.abc import Sequence

from moe_runtime.contracts.errors import MoeError

__all__ = [
    "CommunicatorShared",
    "NpuCallRefused",
    "NpuKernelMissing",
    "NpuUnavailable",
    "RowsLost",
    "UnknownDevice",
    "WrongMemory",
]


class NpuUnavailable(MoeError):
    """This machine or its installation cannot run Ascend operators."""

    code = "npu_unavailable"

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the Ascend backend cannot run here: {reason}; nothing is computed on the CPU in its "
            "place, choose the CPU backend if that is what you want"
        )


class NpuCallRefused(MoeError):
    """A call that an Ascend operator is not documented to take."""

    code = "npu_call_refused"

    def __init__(self, operator: str, argument: str, *, got: str, expected: str) -> None:
        self.operator, self.argument = operator, argument
        super().__init__(
            f"{operator}: {argument} is {got}, expected {expected}; the operator was not called"
        )


class NpuKernelMissing(MoeError):
    """An operator, or a pairing of formats, that this installation does not have."""

    code = "npu_kernel_missing"

    def __init__(self, what: str, *, reason: str) -> None:
        self.what = what
        super().__init__(f"{what} has no Ascend operator here: {reason}; nothing was computed")


class RowsLost(MoeError):
    """A fused operator computed other rows than it was sent."""

    code = "rows_lost"

    def __init__(self, *, counted: Sequence[int], sent: Sequence[int]) -> None:
        super().__init__(
            f"slots computed {list(counted)} rows and were sent {list(sent)}; a fused operator "
            "drops what it has no place for, so this step is lost"
        )


class UnknownDevice(MoeError):
    """A name that no device has."""

    code = "unknown_device"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"no device is called {name!r}, expected cpu, or npu:NUMBER for one of the NPUs that "
            "the process sees; nothing was opened"
        )


class CommunicatorShared(MoeError):
    """Communicators for different purposes that turn out to be one."""

    code = "communicator_shared"

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(
            f"tokens, MC2 and moves of weights need a communicator each, but theirs are called "
            f"{list(names)}; on one of them, calls of two purposes would be paired with each "
            "other, so nothing was started"
        )


class WrongMemory(MoeError):
    """A batch in another memory than that of the device that computes it."""

    code = "wrong_memory"

    def __init__(self, what: str, *, got: str, expected: str) -> None:
        super().__init__(
            f"{what} is on {got}, but this rank computes on {expected}; nothing is copied behind "
            "anybody's back, so the step was not started"
        )
