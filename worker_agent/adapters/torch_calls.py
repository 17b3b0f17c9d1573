# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# The rules are off in this file only, because torch leaves these calls unannotated.
"""Calls of torch.distributed that carry no types, each given one."""

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor


def new_group(like: dist.ProcessGroup | None, *, timeout_s: float) -> dist.ProcessGroup:
    """Make a gloo group of the same ranks. Collective over them, and over no others."""
    parent = dist.group.WORLD if like is None else like
    made = dist.new_group(
        dist.get_process_group_ranks(parent),
        timeout=timedelta(seconds=timeout_s),
        backend="gloo",
        use_local_synchronization=like is not None,
    )
    assert isinstance(made, dist.ProcessGroup)
    return made


def group_of(ranks: Sequence[int], *, timeout_s: float) -> dist.ProcessGroup:
    """Make a gloo group of some ranks of the default group. Collective over them, and no others."""
    made = dist.new_group(
        list(ranks),
        timeout=timedelta(seconds=timeout_s),
        backend="gloo",
        use_local_synchronization=True,
    )
    assert isinstance(made, dist.ProcessGroup)
    return made


SMALL_EXCHANGE = 1 << 14
"""Numbers that a rank may send in all for everybody to take the minimum alone."""


def all_reduce_min(numbers: Sequence[int], group: dist.ProcessGroup) -> tuple[int, ...]:
    """Return the elementwise minimum over the group; raises RuntimeError.

    Gloo's all-reduce goes around the group twice, one rank after the other; a few numbers
    are there several times sooner when every rank sends them to every other at once.
    Every rank brings as many numbers, so all take the same way.
    """
    own = torch.tensor(numbers, dtype=torch.int64)
    num_ranks = dist.get_world_size(group)
    if len(numbers) * num_ranks > SMALL_EXCHANGE:
        dist.all_reduce(own, op=dist.ReduceOp.MIN, group=group)
        return tuple(int(n) for n in own.tolist())
    heard = torch.empty(num_ranks * len(numbers), dtype=torch.int64)
    dist.all_to_all_single(heard, own.repeat(num_ranks), group=group)
    return tuple(int(n) for n in heard.view(num_ranks, -1).amin(dim=0).tolist())


def all_reduce_sum(tensor: Tensor, group: dist.ProcessGroup) -> None:
    """Sum a tensor over the group, in place; raises RuntimeError."""
    dist.all_reduce(tensor, group=group)


def isend(tensor: Tensor, rank: int, group: dist.ProcessGroup, *, tag: int) -> dist.Work:
    """Begin to send bytes to a rank of the group; raises RuntimeError."""
    work = dist.isend(tensor, group=group, group_dst=rank, tag=tag)
    assert work is not None
    return work


def irecv(tensor: Tensor, rank: int, group: dist.ProcessGroup, *, tag: int) -> dist.Work:
    """Begin to receive bytes from a rank of the group; raises RuntimeError."""
    work = dist.irecv(tensor, group=group, group_src=rank, tag=tag)
    assert work is not None
    return work


def batch_p2p(
    sends: Sequence[tuple[Tensor, int]],
    receives: Sequence[tuple[Tensor, int]],
    group: dist.ProcessGroup,
) -> list[dist.Work]:
    """Begin to send to, and receive from, ranks of a group, all as one; raises RuntimeError.

    Between two ranks what is sent first is received first: nothing carries a tag.
    """
    operations = [
        *(dist.P2POp(dist.isend, tensor, group=group, group_peer=to) for tensor, to in sends),
        *(dist.P2POp(dist.irecv, tensor, group=group, group_peer=by) for tensor, by in receives),
    ]
    return dist.batch_isend_irecv(operations) if operations else []


def as_bytes(tensor: Tensor) -> Tensor:
    """Return a flat uint8 view on a contiguous tensor's memory."""
    if not tensor.is_contiguous():
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} is not contiguous")
    return tensor.reshape(-1).view(torch.uint8)


def bytes_tensor(content: bytes) -> Tensor:
    """Return a new uint8 tensor with this content."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def tensor_bytes(tensor: Tensor) -> bytes:
    """Return a uint8 tensor's content."""
    return tensor.numpy().tobytes()


def first_line(error: RuntimeError) -> str:
    """Return the first line of what torch says, without the C++ stack below it."""
    return (str(error).splitlines() or [repr(error)])[0]
