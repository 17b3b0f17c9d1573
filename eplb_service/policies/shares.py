"""Shares: dispatch tables that level the ranks on a placement that stays as it is.

The best split of every expert over its replicas comes first; then whole sources, or rows of a
shared table, are given to replicas so that little of it is lost.

Axes    L MoE layers   E logical experts   J rows of a dispatch table   N ranks   P slots
"""

from collections.abc import Sequence

import numpy as np

from eplb_service.domain.errors import InvalidSettings, InvalidTable
from eplb_service.domain.ids import FloatArray
from eplb_service.domain.placement import Placement
from eplb_service.domain.shares import Ownership, Shares, num_rows
from eplb_service.policies.kernels.library import Numbers, whole_sources
from eplb_service.policies.replicas import (
    IndexArray,
    Replicas,
    replicas_of,
    require_heat,
    summed,
)
from eplb_service.policies.split import SLACK, begins, exact_split, routed_rows
from eplb_service.policies.terms import PLAIN, Terms

LOCALITY_PRICE = 0.02
"""Tokens of imbalance that are given to keep one token on its node, or on its rank."""


def shares_by_source(
    by_source: FloatArray,
    placement: Placement,
    *,
    nodes: Sequence[str] = (),
    price: float = LOCALITY_PRICE,
    terms: Terms = PLAIN,
) -> Shares:
    """Tables for ranks with tokens of their own: one replica per source rank and expert.

    by_source    [N, L, E] tokens that each rank sends; [0, L, E] is not enough
    nodes        [N] node of each rank; empty where not known, then only the own rank is near
    terms        what a rank's load is made of

    Among sources that serve balance alike, one that is near a replica uses it. An expert
    without tokens keeps even shares. Raises InvalidTable or InvalidSettings for what makes
    no sense.
    """
    num_ranks = placement.layout.num_ranks
    if by_source.ndim != 3 or len(by_source) != num_ranks:
        raise InvalidTable(
            f"tokens by source have shape {list(by_source.shape)}; expected [{num_ranks}, "
            f"{placement.num_layers}, {placement.num_experts}], one row for each source rank"
        )
    if not 0 <= price < np.inf:
        raise InvalidSettings(f"a price of {price} for locality; expected 0 or more, and finite")
    heat = by_source.sum(axis=0)
    require_heat(heat, placement)
    if by_source.min(initial=0.0) < 0:
        for own in by_source:
            require_heat(own, placement)
    placed = routed_rows(placement), begins(placement.layout)
    split = exact_split(heat, placement, slack=SLACK, terms=terms)
    picks = whole_sources(placed, by_source, split, _node_numbers(nodes, num_ranks), price)
    return Shares(picks[..., None], Ownership.OWN)


def shares_by_row(
    heat: FloatArray, placement: Placement, *, rows: int | None = None, terms: Terms = PLAIN
) -> Shares:
    """One table for all ranks, for tokens that are replicated: rows go to replicas by share.

    heat    [L, E]
    rows    J; num_rows where it is None
    terms   what a rank's load is made of

    Rows are granted by largest remainder and dealt in turn, so that any run of tokens meets
    the replicas in about the right proportion. Raises InvalidTable or InvalidSettings.
    """
    rows = num_rows(placement.layout.num_ranks) if rows is None else rows
    if rows < 1:
        raise InvalidSettings(f"a dispatch table of {rows} rows; expected one or more")
    split = exact_split(heat, placement, slack=SLACK, terms=terms)
    replicas = replicas_of(placement)
    tables = np.repeat(placement.log2phy()[:, :, :1], rows, axis=2)
    if replicas.starts.size:
        granted = _granted(split[replicas.layers, replicas.slots] * rows, replicas, rows)
        owner = np.repeat(np.arange(len(granted)), granted)
        nth = np.arange(len(owner)) - np.repeat(np.cumsum(granted) - granted, granted)
        turn = (nth + 0.5) / granted[owner]
        dealt = owner[np.lexsort((owner, turn, replicas.groups[owner]))].reshape(-1, rows)
        first = replicas.starts
        tables[replicas.layers[first], replicas.experts[first]] = replicas.slots[dealt]
    return Shares(np.ascontiguousarray(tables[None], dtype=np.int32), Ownership.REPLICATED)


def load_under(shares: Shares, by_source: FloatArray, placement: Placement) -> FloatArray:
    """[L, N] tokens of each rank when sources [N, L, E] send by these tables."""
    num_ranks, num_layers = placement.layout.num_ranks, placement.num_layers
    load = np.zeros(num_layers * num_ranks)
    first = (np.arange(num_layers) * num_ranks)[:, None]
    rank_of_slot = placement.layout.rank_of_slot()
    for source, tokens in enumerate(by_source):
        table = shares.table_of(source)
        for row in range(table.shape[2]):
            cells = (first + rank_of_slot[table[:, :, row]]).ravel()
            load += summed(cells, tokens.ravel() / table.shape[2], len(load))
    return load.reshape(num_layers, num_ranks)


def _node_numbers(nodes: Sequence[str], num_ranks: int) -> Numbers:
    """[N] number of each rank's node; a node of its own where nodes are not known."""
    if nodes and len(nodes) != num_ranks:
        raise InvalidTable(f"{len(nodes)} nodes named; expected {num_ranks}, one per rank")
    known = {node: number for number, node in enumerate(sorted(set(nodes)))}
    return np.array([known[n] for n in nodes] if nodes else range(num_ranks), dtype=np.int64)


def _granted(exact: FloatArray, replicas: Replicas, rows: int) -> IndexArray:
    """[M] whole rows of each replica, J for each expert, by largest remainder."""
    granted = np.floor(exact + 1e-9).astype(np.intp)
    missing = rows - replicas.total(granted.astype(np.float64)).astype(np.intp)
    order = np.lexsort((replicas.slots, granted - exact, replicas.groups))
    nth = np.arange(len(order)) - replicas.starts[replicas.groups[order]]
    granted[order] += nth < missing[replicas.groups[order]]
    return granted
