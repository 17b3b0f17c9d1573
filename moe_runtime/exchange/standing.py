"""What all runtimes over one group of ranks share: who steps, and whether the group is lost.

Ranks pair their collectives by order alone. One that breaks off in the middle of a step, and takes
the next one, sends that step's announcement to peers that wait for the rest of the first; gloo
takes it for what they wait for. So a group whose step broke off is never used again.
"""

from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock
from weakref import WeakKeyDictionary

import torch.distributed as dist

from moe_runtime.contracts.exchange_errors import GroupLost
from moe_runtime.exchange.peers import GroupPeers, Peers

__all__ = ["Standing", "standing_of"]


class Standing:
    """Of one group, in this process.

    is_shared    whether there are other ranks, who would wait for this one
    """

    def __init__(self, *, is_shared: bool) -> None:
        self.lock = Lock()
        """Held by the one that steps."""
        self._is_shared = is_shared
        self._num_runtimes = 0
        self._lost_by = ""

    def next_number(self) -> int:
        """Return the number of one more runtime, the same on all ranks if they build them alike."""
        self._num_runtimes += 1
        return self._num_runtimes

    def require(self) -> None:
        """Raise GroupLost if a step over the group broke off on this rank."""
        if self._lost_by:
            raise GroupLost(self._lost_by)

    def lose(self, by: str) -> None:
        """Take the group for lost from here on, whoever's it is; the first reason is kept."""
        self._lost_by = self._lost_by or by

    @contextmanager
    def told(self, *alike: type[Exception]) -> Generator[None]:
        """Be in the middle of something that peers have heard of; what breaks it loses the group.

        alike    what is raised on all ranks, after as many collectives: the group goes on
        """
        try:
            yield
        except alike:
            raise
        except BaseException as error:
            if self._is_shared:
                self.lose(f"{type(error).__name__}: {error}")
            raise


_OF_GROUPS: WeakKeyDictionary[dist.ProcessGroup, Standing] = WeakKeyDictionary()
_MAKING = Lock()


def standing_of(peers: Peers) -> Standing:
    """Return the standing of a group of torch.distributed; of other peers, one of their own."""
    if not isinstance(peers, GroupPeers):
        return Standing(is_shared=peers.size > 1)
    with _MAKING:
        return _OF_GROUPS.setdefault(peers.group, Standing(is_shared=peers.size > 1))
