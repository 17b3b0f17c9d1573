"""The one way to an Ascend operator: its rule first, then the call."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from moe_runtime.backends.npu_custom_rules import CUSTOM_RULES
from moe_runtime.backends.npu_given import Given
from moe_runtime.backends.npu_rules import RULES, Rule
from moe_runtime.contracts.npu_errors import NpuCallRefused, NpuKernelMissing

__all__ = ["NpuDoor"]


@dataclass(frozen=True, slots=True)
class NpuDoor:
    """Operators of one device; keeps nothing between calls."""

    operators: Any
    """`torch.ops.npu`, once torch_npu is imported."""
    device: torch.device
    """Where every tensor of a call must be."""
    custom: Any = None
    """`torch.ops._C_ascend`, where something has registered its operators."""

    def call(self, operator: str, **arguments: object) -> tuple[Tensor, ...]:
        """Return what the operator returns, a single tensor as a tuple of one.

        Every argument that the operator's rule names must be given, so that no default of an
        installed version has a say. Raises NpuCallRefused and NpuKernelMissing.
        """
        return self._call(operator, arguments, rules=RULES, operators=self.operators)

    def call_custom(self, operator: str, **arguments: object) -> tuple[Tensor, ...]:
        """Return what a custom operator returns, held to its rule like any other.

        Raises NpuCallRefused and NpuKernelMissing.
        """
        return self._call(operator, arguments, rules=CUSTOM_RULES, operators=self.custom)

    def _call(
        self,
        operator: str,
        arguments: Mapping[str, object],
        *,
        rules: Mapping[str, Rule],
        operators: object,
    ) -> tuple[Tensor, ...]:
        rule = rules.get(operator)
        if rule is None:
            raise NpuCallRefused(
                operator, "the operator", got="one without a rule", expected=f"one of {[*rules]}"
            )
        if unlike := sorted(rule.arguments ^ arguments.keys()):
            raise NpuCallRefused(
                operator,
                "the list of arguments",
                got=f"different in {unlike}",
                expected="exactly those of its rule",
            )
        rule.check(Given(operator, arguments, self.device))
        if not hasattr(operators, operator):
            raise NpuKernelMissing(operator, reason="what is installed does not have it")
        returned = getattr(operators, operator)(**arguments)
        return (returned,) if isinstance(returned, Tensor) else tuple(returned)
