"""Expert weights, one type per format.

Axes    S slots   F = 2 I gate rows, then up rows   I expert width   Z width of the routed part

A format is a frozen dataclass of stacked tensors, one row per slot, that meets
`StackedWeights`. Placement moves any format by its named tensors (all of them:
a quantised one brings its scales under names of their own); only the stage
that computes a format knows what its tensors mean.
"""

from dataclasses import dataclass
from typing import Protocol, Self

from torch import Tensor

from moe_runtime.contracts.errors import ShapeMismatch

__all__ = ["DenseWeights", "StackedWeights"]


class StackedWeights(Protocol):
    """Weights of several slots: named tensors whose first axis is the slot."""

    def named(self) -> dict[str, Tensor]:
        """Return every tensor that an expert consists of, by name."""
        ...

    def allocate(self, num_slots: int) -> Self:
        """Return zeroed weights of the same format for another number of slots."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class DenseWeights:
    """Unquantised experts."""

    w13_SFZ: Tensor
    """Gate rows, then up rows; or in turn, where the activation reads them interleaved."""
    w2_SZI: Tensor

    def __post_init__(self) -> None:
        s, f, z = self.w13_SFZ.shape
        if self.w2_SZI.shape != (s, z, f // 2) or f % 2:
            raise ShapeMismatch(
                "w2", got=self.w2_SZI.shape, expected=f"({s}, {z}, {f // 2}) beside w13 {(s, f, z)}"
            )

    def named(self) -> dict[str, Tensor]:
        """Return both stacks by name."""
        return {"w13": self.w13_SFZ, "w2": self.w2_SZI}

    def allocate(self, num_slots: int) -> "DenseWeights":
        """Return zeroed weights for another number of slots."""
        w13, w2 = self.w13_SFZ, self.w2_SZI
        return DenseWeights(
            w13.new_zeros((num_slots, *w13.shape[1:])), w2.new_zeros((num_slots, *w2.shape[1:]))
        )
