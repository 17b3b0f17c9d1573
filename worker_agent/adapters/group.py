"""The agreement over torch.distributed, on a process group of its own."""

from collections.abc import Sequence

import torch.distributed as dist

from worker_agent.adapters.torch_calls import all_reduce_min, first_line
from worker_agent.ports.failures import GroupLost


class TorchGroup:
    """Meets GroupPort.

    The group must serve nothing else: a collective of another kind between two
    agreements would pair ranks wrongly.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._rank = dist.get_rank(group)
        self._num_ranks = dist.get_world_size(group)

    @property
    def rank(self) -> int:
        """This rank's number in the group."""
        return self._rank

    @property
    def num_ranks(self) -> int:
        """Ranks in the group."""
        return self._num_ranks

    def agree(self, vector: Sequence[int]) -> tuple[int, ...]:
        """Return the elementwise minimum over all ranks. Raises GroupLost."""
        try:
            return all_reduce_min(vector, self._group)
        except RuntimeError as error:
            raise GroupLost(rank=self._rank, cause=first_line(error)) from error
