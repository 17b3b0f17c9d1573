# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# The rules are off in this file only, because torch leaves these calls unannotated.
"""Calls of torch that carry no types, each given one, so that all other files are checked."""

from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor

from moe_runtime.contracts.errors import ShapeMismatch

__all__ = [
    "all_to_all_traced",
    "batch_p2p",
    "default_group",
    "first_line",
    "from_array",
    "gather_traced",
    "in_pieces",
    "is_whole",
    "new_group",
    "split_rows",
    "start_all_to_all",
    "to_array",
    "to_ints",
    "unique_ints",
    "wait_for",
    "whole",
]


def to_ints(numbers: Tensor) -> list[int]:
    """Return a one-dimensional tensor of integers as a list."""
    return [int(n) for n in numbers.cpu().tolist()]


def unique_ints(numbers: Tensor) -> list[int]:
    """Return the distinct values, rising."""
    return [int(n) for n in torch.unique(numbers.cpu()).tolist()]


def from_array(array: npt.NDArray[np.generic]) -> Tensor:
    """Return a tensor on the memory of an array."""
    return torch.from_numpy(array)


def to_array(numbers: Tensor) -> npt.NDArray[np.int64]:
    """Return a copy of whole numbers for the host; waits for the device that they are on."""
    return np.array(numbers.cpu().numpy(), dtype=np.int64)


def split_rows(rows: Tensor, size: int | Sequence[int], *, dim: int = 0) -> tuple[Tensor, ...]:
    """Return views of pieces of one size, or of the given sizes, along an axis."""
    return tuple(torch.split(rows, size if isinstance(size, int) else list(size), dim=dim))


def in_pieces(numbers: Tensor, size: int) -> Tensor:
    """Return a view in which the last axis is pieces, each of `size` numbers."""
    return numbers.unflatten(-1, (-1, size))


def start_all_to_all(
    received: Tensor,
    sent: Tensor,
    received_rows: Sequence[int],
    sent_rows: Sequence[int],
    group: dist.ProcessGroup | None,
) -> dist.Work:
    """Begin to fill `received` with rows from every rank."""
    work = dist.all_to_all_single(
        received, sent, list(received_rows), list(sent_rows), group=group, async_op=True
    )
    assert work is not None
    return work


def wait_for(work: dist.Work, *, deadline_s: float) -> None:
    """Wait for a collective; raises RuntimeError if it fails or is not done by the deadline."""
    work.wait(timedelta(seconds=deadline_s))


def default_group() -> dist.ProcessGroup:
    """Return the group of all ranks."""
    group = dist.group.WORLD
    assert isinstance(group, dist.ProcessGroup)
    return group


def new_group() -> dist.ProcessGroup:
    """Return another group of all ranks; every rank must call it."""
    group = dist.new_group()
    assert isinstance(group, dist.ProcessGroup)
    return group


def batch_p2p(
    sends: Sequence[tuple[Tensor, int]],
    receives: Sequence[tuple[Tensor, int]],
    group: dist.ProcessGroup,
) -> list[dist.Work]:
    """Begin to send to, and receive from, ranks of a group, all as one; raises RuntimeError.

    Between two ranks what is sent first is received first: nothing carries a tag, since HCCL
    knows none. As one, so that no rank waits to send to one that waits to send to it.
    """
    operations = [
        *(dist.P2POp(dist.isend, tensor, group=group, group_peer=to) for tensor, to in sends),
        *(dist.P2POp(dist.irecv, tensor, group=group, group_peer=by) for tensor, by in receives),
    ]
    return dist.batch_isend_irecv(operations) if operations else []


def gather_traced(rows: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the rows of all ranks, as many from each; one operator for a tracer."""
    return functional.all_gather_tensor(rows.contiguous(), 0, group)


def all_to_all_traced(rows: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return what each rank has sent, rows in equal parts; one operator for a tracer."""
    return functional.all_to_all_single(rows.contiguous(), None, None, group)


def first_line(error: RuntimeError) -> str:
    """Return the first line of what torch says, without the C++ stack below it."""
    return (str(error).splitlines() or [repr(error)])[0]


def is_whole(number: object) -> bool:
    """Tell whether something is a whole number; True and False are none."""
    return isinstance(number, int | np.integer) and not isinstance(number, bool)


def whole(numbers: npt.ArrayLike, what: str) -> npt.NDArray[np.int64]:
    """Return a copy as int64; raises ShapeMismatch for what is not whole numbers.

    A half, or a number of more than 64 bits, would be cut to another slot's without a word.
    """
    given = np.asarray(numbers)
    if given.size and given.dtype.kind not in "iu":
        raise ShapeMismatch(f"{what} of {given.dtype}", got=given.shape, expected="whole numbers")
    return np.array(given, dtype=np.int64)
