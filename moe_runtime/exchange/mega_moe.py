"""MegaMoe's symmetric buffer: sized by numbers that no rank has for itself, and compared first.

Axes    P slots of all ranks   N ranks   B rows of a rank's block   K experts per token

The buffer is allocated by all ranks together. Were its size to follow from what one rank has in a
step, ranks would allocate different ones, and the first step that writes beyond the smallest
would spoil another rank's memory.
"""

from dataclasses import asdict, dataclass
from typing import Protocol, TypeVar

import torch

from moe_runtime.exchange.agreeing import agree
from moe_runtime.exchange.peers import Peers
from moe_runtime.placement.maps import SlotLayout

__all__ = ["BufferSize", "buffer_size", "symmetric_buffer"]

B_co = TypeVar("B_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferSize:
    """What the allocation is told, on every rank alike."""

    num_experts: int
    """P: the operator knows slots only."""
    num_max_tokens_per_rank: int
    num_topk: int
    hidden: int
    intermediate_hidden: int
    """Gate and up side by side."""
    max_recv_token_num: int


class Allocation(Protocol[B_co]):
    """The collective allocation of a device's package."""

    def __call__(self, size: BufferSize) -> B_co:
        """Allocate on every rank of the group."""
        ...


def buffer_size(
    layout: SlotLayout, *, block_rows: int, num_pairs: int, hidden: int, intermediate: int
) -> BufferSize:
    """Return the size for blocks of that many rows a rank.

    num_pairs    slots that each token is sent to

    A rank receives at most each row of all ranks' blocks once for each of its slots that a token
    can name.
    """
    most = min(num_pairs, max(layout.slots_per_rank))
    return BufferSize(
        num_experts=layout.num_slots,
        num_max_tokens_per_rank=max(1, block_rows),
        num_topk=num_pairs,
        hidden=hidden,
        intermediate_hidden=2 * intermediate,
        max_recv_token_num=max(1, block_rows) * layout.num_ranks * most,
    )


def symmetric_buffer(
    peers: Peers, size: BufferSize, allocate: Allocation[B_co], *, home: torch.device
) -> B_co:
    """Allocate, once all ranks have told the same size.

    Raises RanksDisagree, on every rank alike, with nothing allocated on any.
    """
    agree(peers, "the symmetric buffer of fused MC2", asdict(size), home=home)
    return allocate(size)
