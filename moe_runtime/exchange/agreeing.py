"""What must be the same on every rank, compared before anything depends on it.

Axes    N ranks   L layers   E experts
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from moe_runtime.contracts.exchange_errors import RanksDisagree
from moe_runtime.contracts.torch_calls import from_array, to_array, to_ints
from moe_runtime.exchange.peers import Peers

__all__ = ["agree", "agree_on_experts"]

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


def agree_on_experts(
    peers: Peers, marks_LE: npt.NDArray[np.int64], *, home: torch.device = _HOST
) -> None:
    """Compare what ranks have read of each expert, where two of them did; one collective.

    marks_LE    checksums, 0 where this rank has not read the expert; of one shape on all ranks

    Raises RanksDisagree, on every rank alike, which names the first expert that differs.
    """
    own = from_array(marks_LE)[None].to(home)
    told_NLE = to_array(peers.all_gather(own, [1] * peers.size))
    most_LE = told_NLE.max(axis=0)
    differ = np.argwhere(((told_NLE != most_LE) & (told_NLE != 0)).any(axis=0))
    if differ.size:
        layer, expert = differ[0].tolist()
        raise RanksDisagree(
            f"what ranks have read of expert {expert} of layer {layer}, and in all of "
            f"{len(differ)} experts,",
            told=[(mark,) for mark in told_NLE[:, layer, expert].tolist()],
            names=("checksum, 0 where it was not read,",),
        )
