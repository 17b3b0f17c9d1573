"""What an exchange's operators cannot take, refused by name.

Axes    T tokens   K experts per token

The numbers are those documented for npu_moe_distribute_dispatch and _combine; the CPU has no
such limits of its own and takes `UNLIMITED`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from moe_runtime.contracts.exchange_errors import BeyondLimit
from moe_runtime.contracts.ids import NOT_SENT, PhysicalIds

__all__ = ["MC2_A2", "MC2_A3", "UNLIMITED", "Limits", "check_build", "check_ids"]

_ANY = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one family of devices."""

    rows: int = _ANY
    """Of a rank in one step."""
    top_k: int = _ANY
    slots: int = _ANY
    """Of a rank."""
    width: tuple[int, int] = (1, _ANY)
    width_step: int = 1
    ranks: frozenset[int] | None = None
    """None: any number."""


UNLIMITED = Limits()
MC2_A2 = Limits(
    rows=256,
    top_k=16,
    slots=24,
    width=(32, 7168),
    width_step=32,
    ranks=frozenset({16, 32, 64, 128, 256}),
)
MC2_A3 = Limits(rows=512, top_k=16, width=(1024, 8192))


def check_build(
    limits: Limits, *, top_k: int, width: int, slots_per_rank: Sequence[int], even: bool
) -> None:
    """Raise BeyondLimit for a model or layout that the operators cannot take in any step.

    even    whether every rank must have as many slots
    """
    low, high = limits.width
    if top_k > limits.top_k:
        raise BeyondLimit("experts per token", got=top_k, most=limits.top_k)
    if max(slots_per_rank) > limits.slots:
        raise BeyondLimit("slots of a rank", got=max(slots_per_rank), most=limits.slots)
    if not low <= width <= high or width % limits.width_step:
        raise BeyondLimit("width", got=width, most=high, also=f"{low} or more, {_step(limits)}")
    if limits.ranks is not None and len(slots_per_rank) not in limits.ranks:
        raise BeyondLimit(
            "ranks", got=len(slots_per_rank), most=max(limits.ranks), also=f"{sorted(limits.ranks)}"
        )
    if even and len(set(slots_per_rank)) > 1:
        raise BeyondLimit(
            "slots of a rank",
            got=max(slots_per_rank),
            most=min(slots_per_rank),
            also="the same on every rank",
        )


def check_ids(slots: PhysicalIds, *, num_slots: int, limits: Limits, rows: int) -> None:
    """Raise BeyondLimit for a step that the operators cannot take.

    rows    the most rows that any rank brings, so that all ranks refuse alike
    """
    if rows > limits.rows:
        raise BeyondLimit("rows of a rank", got=rows, most=limits.rows)
    ids_TK = slots.ids_TK
    if ids_TK.numel() and int(ids_TK.max()) >= num_slots:
        raise BeyondLimit("slot ids", got=int(ids_TK.max()), most=num_slots - 1)
    repeated = _repeated(ids_TK)
    if repeated:
        raise BeyondLimit("tokens that name a slot twice", got=repeated, most=0)


def _repeated(ids_TK: Tensor) -> int:
    sorted_TK = torch.sort(ids_TK, dim=1).values
    same = (sorted_TK[:, 1:] == sorted_TK[:, :-1]) & (sorted_TK[:, 1:] != NOT_SENT)
    return int(same.any(dim=1).sum())


def _step(limits: Limits) -> str:
    return f"a multiple of {limits.width_step}"
