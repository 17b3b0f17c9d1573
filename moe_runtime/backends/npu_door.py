"""The one way to an Ascend operator: its rule first, then the call."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from moe_runtime.backends.npu_given import Given
from moe_runtime.backends.npu_rules import RULES
from moe_runtime.contracts.npu_errors import NpuCallRefused, NpuKernelMissing

__all__ = ["NpuDoor"]


@dataclass(frozen=True, slots=True)
class NpuDoor:
    """Operators of one device; keeps nothing between calls."""

    operators: Any
    """`torch.ops.npu`, once torch_npu is imported."""
    device: torch.device
    """Where every tensor of a call must be."""

    def call(self, operator: str, **arguments: object) -> tuple[Tensor, ...]:
        """Return what the operator returns, a single tensor as a tuple of one.

        Every argument that the operator's rule names must be given, so that no default of an
        installed version has a say. Raises NpuCallRefused and NpuKernelMissing.
        """
        rule = RULES.get(operator)
        if rule is None:
            raise NpuCallRefused(
                operator, "the operator", got="one without a rule", expected=f"one of {[*RULES]}"
            )
        if unlike := sorted(rule.arguments ^ arguments.keys()):
            raise NpuCallRefused(
                operator,
                "the list of arguments",
                got=f"different in {unlike}",
                expected="exactly those of its rule",
            )
        rule.check(Given(operator, arguments, self.device))
        if not hasattr(self.operators, operator):
            raise NpuKernelMissing(operator, reason="the installed torch_npu does not have it")
        returned = getattr(self.operators, operator)(**arguments)
        return (returned,) if isinstance(returned, Tensor) else tuple(returned)
