"""What the Ascend backend refuses by name.

MoeError
NpuUnavailable        this machine or its installation cannot run Ascend operators
NpuCallRefused        a call that an Ascend operator is not documented to take
NpuKernelMissing      an operator, or a pairing of formats, that this installation does not have
"""

from moe_runtime.contracts.errors import MoeError

__all__ = ["NpuCallRefused", "NpuKernelMissing", "NpuUnavailable"]


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
