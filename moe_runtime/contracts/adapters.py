"""LoRA on routed experts: which adapter a token uses, and what an adapter adds to each expert.

Axes    T tokens   N adapters   E logical experts   R rank of an adapter
        F = 2 I gate and up   I expert width   Z width of the routed part

An adapter adds to a linear y = x @ w.t() the product of two thin matrices: y + (x @ a.t()) @ b.t().
Every rank has those of all logical experts, since they are small; so an expert that moves leaves
nothing behind, and the rank that computes a row finds them by whom its slot holds.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from moe_runtime.contracts.errors import MoeError, ShapeMismatch

__all__ = [
    "NO_ADAPTER",
    "NO_ADAPTERS",
    "AdapterIds",
    "BadAdapter",
    "ExpertAdapters",
    "NoAdapters",
]

NO_ADAPTER = -1
"""In the place of an adapter's number: the token uses none."""


class BadAdapter(MoeError):
    """A token asks for an adapter that is not there."""

    code = "bad_adapter"

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}; the step was not started")


@dataclass(frozen=True, slots=True)
class NoAdapters:
    """No token uses an adapter."""


NO_ADAPTERS = NoAdapters()


@dataclass(frozen=True, slots=True, eq=False)
class AdapterIds:
    """The adapter of each row of a batch."""

    ids_T: Tensor
    """int64 [T], 0..N-1, or NO_ADAPTER; in padding rows anything."""

    def __post_init__(self) -> None:
        if self.ids_T.ndim != 1 or self.ids_T.dtype != torch.int64:
            raise ShapeMismatch(
                f"adapters of {self.ids_T.dtype}", got=self.ids_T.shape, expected="int64 (T,)"
            )


@dataclass(frozen=True, slots=True, eq=False)
class ExpertAdapters:
    """All adapters of one layer. Raises ShapeMismatch unless the four stacks fit each other.

    Expert e of adapter n computes gate and up as w13 @ z + b13[n, e] @ (a13[n, e] @ z), and down
    likewise. There is no scale: one that an adapter was trained with (alpha / R) is multiplied
    into its b before.
    """

    a13_NERZ: Tensor
    """[adapters, experts, rank of an adapter, width of the routed part]."""
    b13_NEFR: Tensor
    """[adapters, experts, gate then up as in the expert's own w13, rank]."""
    a2_NERI: Tensor
    """[adapters, experts, rank, expert width]."""
    b2_NEZR: Tensor
    """[adapters, experts, width of the routed part, rank]."""

    def __post_init__(self) -> None:
        n, e, r, z = self.a13_NERZ.shape
        f = self.b13_NEFR.shape[2] if self.b13_NEFR.ndim == 4 else 0
        wanted = {
            "b13": (self.b13_NEFR, (n, e, f, r)),
            "a2": (self.a2_NERI, (n, e, r, f // 2)),
            "b2": (self.b2_NEZR, (n, e, z, r)),
        }
        for name, (stack, shape) in wanted.items():
            if stack.shape != shape or stack.dtype != self.a13_NERZ.dtype:
                raise ShapeMismatch(
                    f"{name} of adapters of {stack.dtype}",
                    got=stack.shape,
                    expected=f"{shape} of {self.a13_NERZ.dtype} beside a13",
                )

    @property
    def num_adapters(self) -> int:
        """N."""
        return self.a13_NERZ.shape[0]
