"""What must be the same on every rank, compared before anything depends on it.

Axes    N ranks
"""

from collections.abc import Mapping

import torch

from moe_runtime.contracts.exchange_errors import RanksDisagree
from moe_runtime.contracts.torch_calls import to_ints
from moe_runtime.exchange.peers import Peers

__all__ = ["agree"]

_HOST = torch.device("cpu")


def agree(
    peers: Peers, what: str, numbers: Mapping[str, int], *, home: torch.device = _HOST
) -> None:
    """Compare numbers over the group, in one collective that has the same size on every rank.

    home    where the group carries tensors from

    Raises RanksDisagree, on every rank alike.
    """
    own = torch.tensor([list(numbers.values())], dtype=torch.int64, device=home)
    told = [to_ints(row) for row in peers.all_gather(own, [1] * peers.size)]
    if any(row != told[0] for row in told):
        raise RanksDisagree(what, told=told, names=tuple(numbers))
