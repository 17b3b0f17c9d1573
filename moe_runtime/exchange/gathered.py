"""Tokens that every rank sees: which pairs are this rank's, and its share of every token.

Axes    A tokens that are seen   N ranks   K experts per token   S local slots
        M rows at local slots    Z width
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from moe_runtime.backends.protocol import Backend
from moe_runtime.contracts.groups import GroupCounts
from moe_runtime.contracts.ids import LogicalIds, PhysicalIds
from moe_runtime.contracts.rows import RowCoder, Rows, pick_rows
from moe_runtime.contracts.stages import Placed
from moe_runtime.exchange.encoding import encode
from moe_runtime.exchange.parcels import pack
from moe_runtime.exchange.peers import Peers
from moe_runtime.exchange.places import claims, places

__all__ = ["LocalPairs", "Seen", "gather_placed", "local_pairs", "owners_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """Placed tokens of several ranks, as they travelled."""

    rows: Rows
    slots: PhysicalIds
    experts: LogicalIds
    weights_AK: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LocalPairs:
    """The pairs of one rank's slots, sorted by slot."""

    rows: Rows
    counts: GroupCounts
    received_NS: Tensor
    claimed_NS: Tensor
    index_AK: Tensor
    """int64 [A, K] row of each pair, -1 where another rank computes it."""


def gather_placed(peers: Peers, placed: Placed, rows_N: tuple[int, ...], coder: RowCoder) -> Seen:
    """Return the tokens of all peers, in order of rank, encoded by the rank that owns them."""
    own = encode(placed, coder)
    sides = (placed.slots.ids_TK, placed.experts.ids_TK, placed.weights_TK)
    packed, parcel = pack((*own.parts(), *sides))
    *parts, slots, experts, weights = parcel.unpack(peers.all_gather(packed, rows_N))
    return Seen(own.of(tuple(parts)), PhysicalIds(slots), LogicalIds(experts), weights)


def owners_of(rows_N: Sequence[int], device: torch.device) -> Tensor:
    """Return int64 [A]: who owns each token; its size is known beforehand, so no host waits."""
    owners_N = torch.arange(len(rows_N), device=device)
    times_N = torch.tensor(rows_N, device=device)
    return torch.repeat_interleave(owners_N, times_N, output_size=sum(rows_N))


def local_pairs(
    seen: Seen, sources_A: Tensor, *, base: int, shape_NS: tuple[int, int], backend: Backend
) -> LocalPairs:
    """Sort the pairs of this rank's slots by slot.

    sources_A    int64 [A]  rank that owns each token
    base         this rank's first slot
    shape_NS     ranks, and slots of this rank

    Which pairs are this rank's is told by its range of slots, never by a map of experts, which
    would be wrong for replicas and after a move.
    """
    num_slots = shape_NS[1]
    local_AK = seen.slots.ids_TK - base
    local_AK = torch.where((local_AK >= 0) & (local_AK < num_slots), local_AK, -1)
    pairs_M = torch.nonzero(local_AK.reshape(-1) >= 0).reshape(-1)
    slots_M = local_AK.reshape(-1)[pairs_M]
    order_M = backend.order_by_group(slots_M)
    tokens_M = torch.div(pairs_M, local_AK.shape[1], rounding_mode="floor")
    cells_M = sources_A[tokens_M] * num_slots + slots_M
    num_cells = shape_NS[0] * num_slots
    experts_M = seen.experts.ids_TK.reshape(-1)[pairs_M]
    return LocalPairs(
        rows=pick_rows(seen.rows, tokens_M[order_M]),
        counts=backend.count_groups(slots_M, num_slots),
        received_NS=backend.count_groups(cells_M, num_cells).counts_S.view(shape_NS),
        claimed_NS=claims(cells_M, experts_M, num_cells).view(shape_NS),
        index_AK=places(pairs_M[order_M], local_AK.numel()).view_as(local_AK),
    )
