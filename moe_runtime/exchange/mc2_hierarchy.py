"""Exchange by hierarchical MC2: a token crosses to another node once, and spreads inside it.

Axes    T tokens   B rows of a rank's block   K experts per token   D nodes   S local slots
        N = D V ranks   V ranks of a node   Z width

A rail joins the ranks that have the same place in their nodes. Rows go by rail to the nodes
that have their experts, with slots and weights; there they are exchanged by MC2. Results are
weighed and summed inside the node, so that one row for each token and node goes back by rail,
and its owner adds them in order of node.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from moe_runtime.backends.protocol import Backend
from moe_runtime.contracts.exchange_errors import BeyondLimit
from moe_runtime.contracts.ids import NOT_SENT, LogicalIds, PhysicalIds
from moe_runtime.contracts.rows import AS_IS, RowCoder, Rows
from moe_runtime.contracts.stages import (
    Combined,
    Computed,
    Dispatched,
    Mc2Carry,
    Mc2HierarchyCarry,
    Placed,
)
from moe_runtime.contracts.step import StepView
from moe_runtime.exchange.active import masked
from moe_runtime.exchange.encoding import encode
from moe_runtime.exchange.limits import UNLIMITED, Limits, check_ids
from moe_runtime.exchange.parcels import pack
from moe_runtime.exchange.peers import Peers
from moe_runtime.exchange.team import TeamPeers
from moe_runtime.exchange.window import Window, Windowed
from moe_runtime.placement.maps import SlotLayout

__all__ = ["Mc2HierarchyExchange"]


@dataclass(frozen=True, slots=True)
class Mc2HierarchyExchange:
    """Meets `Exchange[Mc2HierarchyCarry]`. Every rank pads to the fullest rank's rows.

    Raises BeyondLimit unless the ranks divide into nodes.
    """

    peers: Peers
    layout: SlotLayout
    backend: Backend
    ranks_per_node: int
    coder: RowCoder = AS_IS
    limits: Limits = UNLIMITED

    def __post_init__(self) -> None:
        if self.peers.size % self.ranks_per_node:
            raise BeyondLimit(
                "ranks of a node", got=self.ranks_per_node, most=self.peers.size, also="a divisor"
            )

    def dispatch(self, placed: Placed, view: StepView) -> Dispatched[Mc2HierarchyCarry]:
        """Send rows by rail, and exchange what came inside the node."""
        block = max(view.rows_N)
        check_ids(placed.slots, num_slots=self.layout.num_slots, limits=self.limits, rows=block)
        num_own, num_nodes = placed.x_TZ.shape[0], self._num_nodes
        came, weights_BK = self._by_rail(masked(placed, block).placed)
        most = min(placed.weights_TK.shape[1], max(self.layout.slots_per_rank))
        window = self._window(num_nodes * block * most)
        landed = window.send(came)
        shape_NS = (self.peers.size, self.layout.slots_per_rank[self.peers.rank])
        return Dispatched(
            rows=landed.rows,
            counts=landed.ends.to_counts(),
            received_NS=landed.received_NGS.transpose(0, 1).reshape(shape_NS),
            claimed_NS=landed.claimed_NGS.transpose(0, 1).reshape(shape_NS),
            carry=Mc2HierarchyCarry(
                inner=Mc2Carry(
                    index_BK=landed.index_TK,
                    weights_BK=weights_BK,
                    arrival_A=landed.arrival_A,
                    window_rows=window.num_rows,
                    num_own=num_nodes * block,
                ),
                num_nodes=num_nodes,
                block=block,
                num_own=num_own,
            ),
        )

    def combine(self, computed: Computed[Mc2HierarchyCarry]) -> Combined:
        """Sum inside the node, send one row for each token back by rail, and add the nodes'."""
        carry = computed.carry
        inner, nodes = carry.inner, carry.num_nodes
        window = self._window(inner.window_rows)
        back_AZ = window.send_back(computed.rows_MZ, inner.arrival_A)
        summed = self.backend.weighted_sum(back_AZ, inner.index_BK, inner.weights_BK)
        every = [carry.block] * nodes
        shares = self._rail.all_to_all(summed, every, every)
        by_node = shares.view(nodes, carry.block, shares.shape[1])
        return Combined(by_node.sum(dim=0)[: carry.num_own])

    def _by_rail(self, placed: Placed) -> tuple[Windowed, Tensor]:
        """Return the tokens that came to this rank from every node, and their weights."""
        own = encode(placed, self.coder)
        bounds = self.layout.bounds()[:: self.ranks_per_node]
        per_node = [self._for_node(own, placed, low, high) for low, high in pairwise(bounds)]
        packed, parcel = pack([torch.cat(parts) for parts in zip(*per_node, strict=True)])
        block = placed.x_TZ.shape[0]
        every = [block] * self._num_nodes
        came = self._rail.start_all_to_all(packed, every, every, what="rows between nodes").wait()
        *parts, slots, experts, weights = parcel.unpack(came)
        windowed = Windowed(
            rows=own.of(tuple(parts)),
            slots=PhysicalIds(slots),
            experts=LogicalIds(experts),
            sources_T=torch.repeat_interleave(torch.arange(self._num_nodes), block),
            num_sources=self._num_nodes,
        )
        return windowed, weights

    @staticmethod
    def _for_node(own: Rows, placed: Placed, low: int, high: int) -> tuple[Tensor, ...]:
        """Return all rows with the slots of one node, as that node numbers them."""
        slots_TK = placed.slots.ids_TK
        inside = (slots_TK >= low) & (slots_TK < high)
        slots_TK = torch.where(inside, slots_TK - low, NOT_SENT)
        return (*own.parts(), slots_TK, placed.experts.ids_TK, placed.weights_TK)

    @property
    def _num_nodes(self) -> int:
        return self.peers.size // self.ranks_per_node

    @property
    def _rail(self) -> TeamPeers:
        place = self.peers.rank % self.ranks_per_node
        return TeamPeers(self.peers, tuple(range(place, self.peers.size, self.ranks_per_node)))

    @property
    def _node(self) -> TeamPeers:
        first = self.peers.rank - self.peers.rank % self.ranks_per_node
        return TeamPeers(self.peers, tuple(range(first, first + self.ranks_per_node)))

    @property
    def _node_layout(self) -> SlotLayout:
        first = self._node.members[0]
        return SlotLayout(self.layout.slots_per_rank[first : first + self.ranks_per_node])

    def _window(self, num_rows: int) -> Window:
        most_slots = max(self.layout.slots_per_rank)
        return Window(self._node, self._node_layout, self.backend, num_rows, most_slots)
