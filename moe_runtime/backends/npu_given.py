"""The arguments of one call of an Ascend operator, looked at before the call goes out.

Only what the host knows is looked at: dtypes, shapes, devices and plain numbers. Values inside
tensors are on the device, and reading them would make every call wait for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from moe_runtime.contracts.npu_errors import NpuCallRefused

__all__ = ["Given"]


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """Every method raises NpuCallRefused for an argument that is not as it says."""

    operator: str
    arguments: Mapping[str, object]
    device: torch.device

    def tensor(
        self, name: str, *shape: int | None, dtypes: Sequence[torch.dtype], inside: object = None
    ) -> Tensor:
        """Return a tensor on the device, of that shape (None: any size) and one of the dtypes.

        inside    the tensor itself, where the argument is a list of one
        """
        value = self.arguments[name] if inside is None else inside
        if not isinstance(value, Tensor):
            raise self.refusal(name, got=f"a {type(value).__name__}", expected="a tensor")
        if value.device != self.device:
            raise self.refusal(name, got=f"on {value.device}", expected=f"on {self.device}")
        if value.dtype not in dtypes:
            known = " or ".join(str(dtype) for dtype in dtypes)
            raise self.refusal(name, got=str(value.dtype), expected=known)
        fits = value.ndim == len(shape) and all(
            wanted is None or size == wanted
            for size, wanted in zip(value.shape, shape, strict=True)
        )
        if not fits:
            wanted = tuple("any" if size is None else size for size in shape)
            raise self.refusal(name, got=f"of shape {tuple(value.shape)}", expected=f"{wanted}")
        return value

    def tensor_or_none(
        self, name: str, *shape: int | None, dtypes: Sequence[torch.dtype]
    ) -> Tensor | None:
        """Return the tensor, if there is one."""
        if self.arguments[name] is None:
            return None
        return self.tensor(name, *shape, dtypes=dtypes)

    def only(self, name: str, *shape: int | None, dtypes: Sequence[torch.dtype]) -> Tensor:
        """Return the tensor in a list of one."""
        value = self.arguments[name]
        if not isinstance(value, list):
            raise self.refusal(name, got=f"a {type(value).__name__}", expected="a list")
        inside = cast("list[object]", value)
        if len(inside) != 1:
            raise self.refusal(name, got=f"{len(inside)} tensors", expected="a list of one")
        return self.tensor(name, *shape, dtypes=dtypes, inside=inside[0])

    def each(self, name: str, *shape: int | None, dtypes: Sequence[torch.dtype]) -> list[Tensor]:
        """Return the tensors of a list of one or more, all of one dtype and of that shape."""
        value = self.arguments[name]
        if not isinstance(value, list) or not value:
            raise self.refusal(name, got="no list, or an empty one", expected="a list of tensors")
        inside = cast("list[object]", value)
        first = self.tensor(name, *shape, dtypes=dtypes, inside=inside[0])
        return [self.tensor(name, *shape, dtypes=(first.dtype,), inside=one) for one in inside]

    def one_of(self, **allowed: tuple[object, ...]) -> None:
        """Refuse arguments that are none of the values given for them; True is not 1 here."""
        for name, values in allowed.items():
            value = self.arguments[name]
            if not any(type(value) is type(v) and value == v for v in values):
                known = " or ".join(repr(v) for v in values)
                raise self.refusal(name, got=repr(value), expected=known)

    def number(self, name: str, low: int, high: int) -> int:
        """Return a whole number within bounds, both included."""
        value = self.arguments[name]
        if isinstance(value, bool) or not isinstance(value, int | torch.SymInt):
            raise self.refusal(name, got=f"a {type(value).__name__}", expected="a whole number")
        if not low <= value <= high:
            raise self.refusal(name, got=str(value), expected=f"{low} to {high}")
        return int(value) if isinstance(value, int) else value  # pyright: ignore[reportReturnType]

    def positive(self, name: str) -> None:
        """Refuse what is no number above zero."""
        value = self.arguments[name]
        if not isinstance(value, float) or not value > 0:
            raise self.refusal(name, got=repr(value), expected="a float above zero")

    def refusal(self, name: str, *, got: str, expected: str) -> NpuCallRefused:
        """Return the error for one argument."""
        return NpuCallRefused(self.operator, name, got=got, expected=expected)
