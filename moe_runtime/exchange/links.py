"""The links of a group of devices, used once before anything depends on them."""

import torch
import torch.distributed as dist

from moe_runtime.contracts.torch_calls import batch_p2p

__all__ = ["warm_links"]


def warm_links(group: dist.ProcessGroup, home: torch.device) -> None:
    """Send one byte to and from every other rank.

    A link takes its buffers when it is first used. Used first in a migration, they would be
    memory that the engine has long given away. Collective.
    """
    rank, others = dist.get_rank(group), range(dist.get_world_size(group))
    byte = torch.zeros(1, dtype=torch.uint8, device=home)
    peers = [other for other in others if other != rank]
    heard = [torch.empty_like(byte) for _ in peers]
    sends = [(byte, peer) for peer in peers]
    for work in batch_p2p(sends, list(zip(heard, peers, strict=True)), group):
        work.wait()
