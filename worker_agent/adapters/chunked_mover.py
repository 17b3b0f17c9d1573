"""Moving weights from device to device, in chunks, over a group that carries no tags.

HCCL pairs what two ranks send each other by order alone, and a rank that sends waits for the one
that receives. So a round goes in slices: slice k is chunk k of every transfer of the round, the
same on every rank, and all of a slice is issued as one. Between two ranks its chunks go in the
wave's canonical order. A chunk is bounded in bytes, so that no transfer needs more of a link's
buffer.

Checked over gloo; never run over HCCL by this project.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from eplb_service.domain.layout import SlotLayout
from worker_agent.adapters.memory import DigestBook, ExpertMemory
from worker_agent.adapters.mover import DIGEST_BYTES, TorchMover
from worker_agent.adapters.sources import Line, SourceCorrupt
from worker_agent.adapters.torch_calls import (
    as_bytes,
    batch_p2p,
    bytes_tensor,
    tensor_bytes,
)

Chunk = list[Tensor]
CHUNK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, eq=False)
class DeviceLink:
    """What a mover needs of the device whose weights it moves."""

    group: dist.ProcessGroup
    """Of the device's own kind; nothing else uses it, and its links are warm."""
    home: torch.device
    lane: Callable[[], AbstractContextManager[None]]
    """What the mover's thread works in; when it ends, all is in its place."""


@dataclass(slots=True, eq=False)
class _Part:
    """This rank's part of a round, in the canonical order of its transfers."""

    sends: list[tuple[list[Chunk], int]] = field(default_factory=list[tuple[list[Chunk], int]])
    receives: list[tuple[list[Chunk], int]] = field(default_factory=list[tuple[list[Chunk], int]])
    arrivals: list[tuple[int, Tensor]] = field(default_factory=list[tuple[int, Tensor]])
    """Staging row, and the sender's digest: uint8 [16]."""
    faults: list[SourceCorrupt] = field(default_factory=list[SourceCorrupt])

    def slices(self) -> Iterator[tuple[list[tuple[Tensor, int]], list[tuple[Tensor, int]]]]:
        """Yield what is sent to, and received from, ranks in each slice."""
        most = max((len(chunks) for chunks, _ in (*self.sends, *self.receives)), default=0)
        for number in range(most):
            yield _of_slice(self.sends, number), _of_slice(self.receives, number)


class ChunkedMover(TorchMover):
    """Meets WeightsPort for one rank of a group."""

    chunk_bytes = CHUNK_BYTES

    def __init__(
        self,
        memory: ExpertMemory,
        book: DigestBook,
        layout: SlotLayout,
        *,
        rank: int,
        group: dist.ProcessGroup,
        link: DeviceLink | None = None,
    ) -> None:
        super().__init__(memory, book, layout, rank=rank, group=group)
        self._link = link or DeviceLink(group, torch.device("cpu"), nullcontext)

    def _carry(self, lines: Sequence[Line], rows: Mapping[tuple[int, int], int], what: str) -> None:
        """Send and receive this rank's part of some transfers, and verify what came."""
        with self._link.lane():
            part = self._part(lines, rows)
            for sends, receives in part.slices():
                try:
                    for work in batch_p2p(sends, receives, self._link.group):
                        work.wait()
                except RuntimeError as error:
                    peers = {peer for _, peer in (*sends, *receives)}
                    raise self._failed(what, peers, error) from error
            if part.faults:
                raise part.faults[0]
            for row, digest in part.arrivals:
                self._verify(row, tensor_bytes(digest.cpu()))

    def _part(self, lines: Sequence[Line], rows: Mapping[tuple[int, int], int]) -> _Part:
        part = _Part()
        for line in lines:
            from_rank, to_rank = self._ranks[line.source], self._ranks[line.target]
            if self.rank not in {from_rank, to_rank}:
                continue
            if from_rank == self.rank:
                source = self._shelf.source(line)
                if source.fault is not None:
                    part.faults.append(source.fault)
                tensors = source.tensors
                digest = bytes_tensor(source.promised).to(self._link.home)
            else:
                tensors = self.memory.staging(rows[line.layer, line.target])
                digest = torch.zeros(DIGEST_BYTES, dtype=torch.uint8, device=self._link.home)
            if from_rank == to_rank:
                staging = self.memory.staging(rows[line.layer, line.target])
                for name, tensor in tensors.items():
                    staging[name].copy_(tensor)
            elif from_rank == self.rank:
                part.sends.append((self._chunks(tensors, digest), to_rank))
            else:
                part.receives.append((self._chunks(tensors, digest), from_rank))
            if to_rank == self.rank:
                part.arrivals.append((rows[line.layer, line.target], digest))
        return part

    def _chunks(self, tensors: Mapping[str, Tensor], digest: Tensor) -> list[Chunk]:
        """Return an expert's bytes in pieces, by name, several to a chunk; the digest last.

        Both ends have the same tensors, so they cut alike.
        """
        chunks: list[Chunk] = [[]]
        room = self.chunk_bytes
        for part in (*(as_bytes(tensors[name]) for name in sorted(tensors)), digest):
            start = 0
            while start < part.numel():
                if not room:
                    chunks.append([])
                    room = self.chunk_bytes
                piece = part[start : start + room]
                chunks[-1].append(piece)
                start += piece.numel()
                room -= piece.numel()
        return chunks


def _of_slice(
    transfers: Sequence[tuple[list[Chunk], int]], number: int
) -> list[tuple[Tensor, int]]:
    return [
        (piece, rank)
        for chunks, rank in transfers
        if number < len(chunks)
        for piece in chunks[number]
    ]
