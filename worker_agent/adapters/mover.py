"""Moving weights over torch.distributed, point to point, on a process group of its own.

A round issues all its sends and receives before it waits for any, in the wave's
canonical order, so that every pair of ranks pairs them in the same order and none
waits for a rank that waits for it. An expert travels as the bytes of its tensors in
the order of their names, and then the 16-byte digest that the sender's book has for it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.wave import Order
from worker_agent.adapters.memory import DigestBook, ExpertMemory
from worker_agent.adapters.sources import Line, Shelf, SourceCorrupt, lines_of, rows_of
from worker_agent.adapters.torch_calls import (
    as_bytes,
    bytes_tensor,
    first_line,
    irecv,
    isend,
    tensor_bytes,
)
from worker_agent.adapters.weights_thread import RESTAGE_ROW, TransferFailed, WeightsThread

DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """An expert under way to one staging row."""

    row: int
    digest: Tensor
    """uint8 [16], as the sender's book has it."""


@dataclass(slots=True, eq=False)
class RoundUnderWay:
    """What one rank has issued of a round."""

    works: list[tuple[dist.Work, int]] = field(default_factory=list[tuple[dist.Work, int]])
    """Each with the peer that it is done with."""
    peer: int = 0
    """Of what is begun or waited for just now."""
    sent: list[Tensor] = field(default_factory=list[Tensor])
    """Digests on their way, kept until they have left."""
    arrivals: list[Arrival] = field(default_factory=list[Arrival])
    faults: list[SourceCorrupt] = field(default_factory=list[SourceCorrupt])
    """Told when the round is over: what a peer waits for is sent whatever it is."""


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
        self._shelf = Shelf(memory, book, rank, layout.base(rank))
        self._ranks = [int(rank) for rank in layout.rank_of_slot()]

    def move(self, order: Order, number: int) -> None:
        """Send and receive this rank's part of a round, and verify what came."""
        rows = rows_of(order, self.layout, self.rank)
        lines = lines_of(order, number)
        self._carry(lines, rows, f"round {number} of epoch {order.epoch}")

    def _bring(self, line: Line) -> bool:
        """Send or receive one expert, and verify it where it came."""
        self._carry(
            [line],
            {(line.layer, line.target): RESTAGE_ROW},
            f"the second staging of expert {line.expert} of layer {line.layer}",
        )
        return self._ranks[line.target] == self.rank

    def _carry(self, lines: Sequence[Line], rows: Mapping[tuple[int, int], int], what: str) -> None:
        """Send and receive this rank's part of some transfers, and verify what came."""
        under_way = RoundUnderWay()
        try:
            self._issue(lines, rows, under_way)
            for work, peer in under_way.works:
                under_way.peer = peer
                work.wait()
        except RuntimeError as error:
            raise self._failed(what, [under_way.peer], error) from error
        if under_way.faults:
            raise under_way.faults[0]
        for arrival in under_way.arrivals:
            self._verify(arrival.row, tensor_bytes(arrival.digest))

    def _failed(self, what: str, peers: Iterable[int], error: RuntimeError) -> TransferFailed:
        """Say which peers it failed with, one of which is gone or late."""
        whom = " or ".join(f"rank {peer}" for peer in sorted(peers))
        return TransferFailed(
            f"rank {self.rank} could not complete {what} with {whom} ({first_line(error)}); the "
            "wave is dropped, and no later one can move over this group"
        )

    def _issue(
        self,
        lines: Sequence[Line],
        rows: Mapping[tuple[int, int], int],
        under_way: RoundUnderWay,
    ) -> None:
        """Begin everything that concerns this rank; the same lines are walked on every rank."""
        for index, line in enumerate(lines):
            from_rank, to_rank = self._ranks[line.source], self._ranks[line.target]
            if from_rank == to_rank == self.rank:
                self._copy(line, rows[line.layer, line.target], under_way)
            elif from_rank == self.rank:
                self._send(line, to_rank, index, under_way)
            elif to_rank == self.rank:
                self._receive(rows[line.layer, line.target], from_rank, index, under_way)

    def _take(self, line: Line, under_way: RoundUnderWay) -> tuple[Mapping[str, Tensor], Tensor]:
        """Return what one of this rank's slots holds, and the digest of what it must hold."""
        source = self._shelf.source(line)
        if source.fault is not None:
            under_way.faults.append(source.fault)
        return source.tensors, bytes_tensor(source.promised)

    def _copy(self, line: Line, row: int, under_way: RoundUnderWay) -> None:
        tensors, digest = self._take(line, under_way)
        staging = self.memory.staging(row)
        for name, tensor in tensors.items():
            staging[name].copy_(tensor)
        under_way.arrivals.append(Arrival(row, digest))

    def _send(self, line: Line, to_rank: int, index: int, under_way: RoundUnderWay) -> None:
        tensors, digest = self._take(line, under_way)
        under_way.sent.append(digest)
        for tensor, tag in _tagged(tensors, digest, index):
            self._give(as_bytes(tensor), to_rank, tag, under_way)

    def _receive(self, row: int, from_rank: int, index: int, under_way: RoundUnderWay) -> None:
        tensors = self.memory.staging(row)
        digest = torch.zeros(DIGEST_BYTES, dtype=torch.uint8)
        for tensor, tag in _tagged(tensors, digest, index):
            self._await(as_bytes(tensor), from_rank, tag, under_way)
        under_way.arrivals.append(Arrival(row, digest))

    def _give(self, content: Tensor, to_rank: int, tag: int, under_way: RoundUnderWay) -> None:
        """Begin to send one tensor's bytes."""
        under_way.peer = to_rank
        under_way.works.append((isend(content, to_rank, self._group, tag=tag), to_rank))

    def _await(self, content: Tensor, from_rank: int, tag: int, under_way: RoundUnderWay) -> None:
        """Begin to receive one tensor's bytes."""
        under_way.peer = from_rank
        under_way.works.append((irecv(content, from_rank, self._group, tag=tag), from_rank))


def _tagged(
    tensors: Mapping[str, Tensor], digest: Tensor, index: int
) -> Iterator[tuple[Tensor, int]]:
    """Yield what one transfer consists of, each with a tag that is its own in the round."""
    parts = [*(tensors[name] for name in sorted(tensors)), digest]
    for number, part in enumerate(parts):
        yield part, index * len(parts) + number
