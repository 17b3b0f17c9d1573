"""The communicators of one rank on devices: one for each purpose, none of them shared.

MC2's operators pair by the order of calls on their communicator, exchanges by that on theirs, and
moves run on a thread of their own: two of them on one communicator would pair what does not belong
together, or wait for each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist

from moe_runtime.backends.npu_mc2 import Communicator
from moe_runtime.contracts.npu_errors import CommunicatorShared
from moe_runtime.exchange.links import warm_links

__all__ = ["CommunicatorSource", "Communicators", "make_communicators"]


class CommunicatorSource(Protocol):
    """Where communicators come from; small, since only one kind of process group has names."""

    def make(self) -> dist.ProcessGroup:
        """Return another group of all ranks. Collective."""
        ...

    def named(self, group: dist.ProcessGroup) -> Communicator:
        """Return what operators know a group's communicator by."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Communicators:
    """All of them have the same members, in the same order."""

    exchange: dist.ProcessGroup
    """For tokens."""
    mc2: Communicator
    """For MC2's operators, which know it by its name."""
    moving: dist.ProcessGroup
    """For weights."""


def make_communicators(source: CommunicatorSource, home: torch.device) -> Communicators:
    """Make them, and warm the links between all ranks.

    home    where the groups carry tensors from

    Collective. Raises CommunicatorShared if two of them turn out to be one.
    """
    exchange, mc2, moving = source.make(), source.make(), source.make()
    named = [source.named(group) for group in (exchange, mc2, moving)]
    _refuse_shared(named)
    for group in (exchange, moving):
        warm_links(group, home)
    return Communicators(exchange, named[1], moving)


def _refuse_shared(named: Sequence[Communicator]) -> None:
    names = [one.name for one in named]
    if len(set(names)) < len(names):
        raise CommunicatorShared(names)
