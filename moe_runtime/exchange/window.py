"""Windows of equal size: rows sorted by slot, in a block of fixed size for each member.

Axes    N members   G sources behind each member   S local slots   T tokens   K experts per token
        W rows of a window   A = N W rows that may arrive   Z width   M pairs that are sent

One collective: each block has a header (for each source and slot: how many rows, and for which
expert), then W rows, of which only the first ones that the header counts mean anything. Sizes
follow from what all ranks know, never from what one of them has, so nothing is told beforehand
and no host has to read a count. What nobody should read is filled with ones, NaN in every float.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from moe_runtime.backends.protocol import Backend
from moe_runtime.contracts.groups import GroupCounts, GroupOffsets
from moe_runtime.contracts.ids import LogicalIds, PhysicalIds
from moe_runtime.contracts.rows import Rows, pick_rows
from moe_runtime.contracts.torch_calls import split_rows
from moe_runtime.exchange.parcels import pack
from moe_runtime.exchange.peers import Peers
from moe_runtime.exchange.places import SortedPairs, claims, inverse, sort_pairs
from moe_runtime.placement.maps import SlotLayout

__all__ = ["Landed", "Window", "Windowed"]

_UNREAD = 0xFF


@dataclass(frozen=True, slots=True, eq=False)
class Windowed:
    """Tokens to send: their rows as they travel, and from which source each comes."""

    rows: Rows
    slots: PhysicalIds
    """Numbered over the members."""
    experts: LogicalIds
    sources_T: Tensor
    num_sources: int


@dataclass(frozen=True, slots=True, eq=False)
class Landed:
    """What a rank has received."""

    rows: Rows
    """[A], sorted by local slot; beyond the counts they mean nothing."""
    ends: GroupOffsets
    received_NGS: Tensor
    claimed_NGS: Tensor
    arrival_A: Tensor
    """int64 [A] place in the windows of each row sorted by slot."""
    index_TK: Tensor
    """int64 [T, K] place in the windows that come back of each pair, -1 for one not sent."""


@dataclass(frozen=True, slots=True)
class Window:
    """How the members exchange. Raises nothing of its own; who makes it must size it right."""

    peers: Peers
    layout: SlotLayout
    """Slots of each member."""
    backend: Backend
    num_rows: int
    """W: no member sends more rows to another."""
    most_slots: int
    """Of any rank of the whole group; headers have room for them."""

    def send(self, given: Windowed) -> Landed:
        """Exchange windows and sort what arrives by local slot."""
        pairs = sort_pairs(given.slots, self.layout.num_slots, self.backend)
        leaving_A, index_TK = self._lay_out(pairs)
        packed, parcel = pack(pick_rows(given.rows, pairs.tokens_M).parts())
        rows_AB = packed.new_full((self.peers.size * self.num_rows, packed.shape[1]), _UNREAD)
        rows_AB[leaving_A] = packed
        header_NH = self._header(given).view(self.peers.size, -1).view(torch.uint8)
        blocks = torch.cat((header_NH, rows_AB.view(self.peers.size, -1)), dim=1)
        every = [1] * self.peers.size
        arrived = self.peers.start_all_to_all(blocks, every, every, what="windows of rows").wait()
        header, rows = split_rows(
            arrived, (header_NH.shape[1], rows_AB.numel() // len(every)), dim=1
        )
        num_slots = self.layout.slots_per_rank[self.peers.rank]
        told = (
            header.clone(memory_format=torch.contiguous_format)
            .view(torch.int64)
            .view(len(every), given.num_sources, -1, 2)
        )
        counts_NGS, claimed_NGS = told[:, :, :num_slots].unbind(dim=3)
        slots_A = self._slots(counts_NGS.sum(dim=1))
        arrival_A = self.backend.order_by_group(slots_A)
        landed = given.rows.of(parcel.unpack(rows.reshape(slots_A.numel(), packed.shape[1])))
        return Landed(
            rows=pick_rows(landed, arrival_A),
            ends=GroupCounts(counts_NGS.sum(dim=(0, 1))).to_offsets(),
            received_NGS=counts_NGS,
            claimed_NGS=claimed_NGS,
            arrival_A=arrival_A,
            index_TK=index_TK,
        )

    def send_back(self, rows_AZ: Tensor, arrival_A: Tensor) -> Tensor:
        """Return [A, Z]: the windows that this rank sent, computed."""
        every = [self.num_rows] * self.peers.size
        return self.peers.all_to_all(rows_AZ[inverse(arrival_A)], every, every)

    def _lay_out(self, pairs: SortedPairs) -> tuple[Tensor, Tensor]:
        """Return int64 [M], each sorted pair's place in the windows; and [T, K], by pair."""
        bounds = torch.tensor(self.layout.bounds())
        ends_P = torch.cumsum(pairs.counts_P, dim=0)
        starts = torch.cat((ends_P.new_zeros(1), ends_P))[bounds[:-1]]
        owners_P = torch.repeat_interleave(torch.tensor(self.layout.slots_per_rank))
        owners_M = torch.repeat_interleave(owners_P, pairs.counts_P)
        leaving_M = owners_M * self.num_rows + torch.arange(owners_M.numel()) - starts[owners_M]
        places = torch.cat((leaving_M, leaving_M.new_full((1,), -1)))
        return leaving_M, places[pairs.index_TK]

    def _header(self, given: Windowed) -> Tensor:
        """Return int64 [N, G, most slots, 2]: rows, and expert, of each source and slot."""
        slots_TK, experts_TK = given.slots.ids_TK, given.experts.ids_TK
        num_slots, most = self.layout.num_slots, self.most_slots
        cells_TK = torch.where(
            slots_TK >= 0, slots_TK + given.sources_T[:, None] * num_slots, slots_TK
        )
        cells = cells_TK.reshape(-1)
        num_cells = given.num_sources * num_slots
        counts = self.backend.count_groups(cells[cells >= 0], num_cells).counts_S
        claimed = claims(cells, experts_TK.reshape(-1), num_cells)
        told_GP2 = torch.stack((counts, claimed), dim=1).view(given.num_sources, num_slots, 2)
        header = told_GP2.new_zeros((self.peers.size, given.num_sources, most, 2))
        for member, piece in enumerate(split_rows(told_GP2, self.layout.slots_per_rank, dim=1)):
            header[member, :, : piece.shape[1]] = piece
        return header

    def _slots(self, counts_NS: Tensor) -> Tensor:
        """Return int64 [A]: local slot of each row as it arrived; one too high for the unused."""
        ends_NS = torch.cumsum(counts_NS, dim=1).contiguous()
        rows_NW = torch.arange(self.num_rows).repeat(ends_NS.shape[0], 1)
        return torch.searchsorted(ends_NS, rows_NW, right=True).reshape(-1)
