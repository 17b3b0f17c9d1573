"""Moving weights over torch.distributed, point to point, on a process group of its own.

A round issues all its sends and receives before it waits for any, in the wave's
canonical order, so that every pair of ranks pairs them in the same order and none
waits for a rank that waits for it. An expert travels as the bytes of its tensors in
the order of their names, and then its 16-byte digest, made by the sender.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.wave import Order
from worker_agent.adapters.memory import DigestBook, ExpertMemory
from worker_agent.adapters.torch_calls import (
    as_bytes,
    bytes_tensor,
    irecv,
    isend,
    tensor_bytes,
)
from worker_agent.adapters.weights_thread import TransferFailed, WeightsThread, lines_of, rows_of

DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """An expert under way to one staging row."""

    row: int
    digest: Tensor
    """uint8 [16], as the sender made it."""


@dataclass(slots=True, eq=False)
class RoundUnderWay:
    """What one rank has issued of a round."""

    works: list[dist.Work] = field(default_factory=list[dist.Work])
    sent: list[Tensor] = field(default_factory=list[Tensor])
    """Digests on their way, kept until they have left."""
    arrivals: list[Arrival] = field(default_factory=list[Arrival])


class TorchMover(WeightsThread):
    """Meets WeightsPort for one rank of a group."""

    def __init__(
        self,
        memory: ExpertMemory,
        book: DigestBook,
        layout: SlotLayout,
        *,
        rank: int,
        group: dist.ProcessGroup,
    ) -> None:
        super().__init__(memory, book, layout, rank=rank)
        self._group = group
        self._ranks = [int(rank) for rank in layout.rank_of_slot()]

    def move(self, order: Order, number: int) -> None:
        """Send and receive this rank's part of a round, and verify what came."""
        under_way = RoundUnderWay()
        try:
            self._issue(order, number, under_way)
            for work in under_way.works:
                work.wait()
        except RuntimeError as error:
            raise TransferFailed(
                f"rank {self.rank} could not complete round {number} of epoch {order.epoch} "
                f"({str(error).splitlines()[0]}); the wave is dropped, and no later one can move "
                "over this group"
            ) from error
        for arrival in under_way.arrivals:
            self.verify(arrival.row, tensor_bytes(arrival.digest))

    def _issue(self, order: Order, number: int, under_way: RoundUnderWay) -> None:
        """Begin everything that concerns this rank; the same slice is walked on every rank."""
        rows = rows_of(order, self.layout, self.rank)
        for index, line in enumerate(lines_of(order, number)):
            layer, _, source, target = line
            from_rank, to_rank = self._ranks[source], self._ranks[target]
            if from_rank == to_rank == self.rank:
                self.copy(self._source(layer, source), rows[layer, target])
            elif from_rank == self.rank:
                self._send(layer, source, to_rank, index, under_way)
            elif to_rank == self.rank:
                self._receive(rows[layer, target], from_rank, index, under_way)

    def _send(
        self, layer: int, source: int, to_rank: int, index: int, under_way: RoundUnderWay
    ) -> None:
        tensors = self._source(layer, source)
        digest = bytes_tensor(self.memory.digest(tensors))
        under_way.sent.append(digest)
        for tensor, tag in _tagged(tensors, digest, index):
            under_way.works.append(isend(as_bytes(tensor), to_rank, self._group, tag=tag))

    def _receive(self, row: int, from_rank: int, index: int, under_way: RoundUnderWay) -> None:
        tensors = self.memory.staging(row)
        digest = torch.zeros(DIGEST_BYTES, dtype=torch.uint8)
        for tensor, tag in _tagged(tensors, digest, index):
            under_way.works.append(irecv(as_bytes(tensor), from_rank, self._group, tag=tag))
        under_way.arrivals.append(Arrival(row, digest))

    def _source(self, layer: int, slot: int) -> Mapping[str, Tensor]:
        """Return the tensors of one of this rank's slots, by its number among all slots."""
        return self.memory.slot(layer, slot - self.layout.base(self.rank))


def _tagged(
    tensors: Mapping[str, Tensor], digest: Tensor, index: int
) -> Iterator[tuple[Tensor, int]]:
    """Yield what one transfer consists of, each with a tag that is its own in the round."""
    parts = [*(tensors[name] for name in sorted(tensors)), digest]
    for number, part in enumerate(parts):
        yield part, index * len(parts) + number
