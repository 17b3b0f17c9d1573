"""Planning for the ranks that take part: every policy plans as if the others were not there.

A policy sees the ranks that are not masked, numbered anew, with the experts of the others
already brought to them, and draws from there. What it drew is put back among all ranks; slots of
masked ranks are empty, so that no source has a replica there to use.

Axes    L MoE layers   P slots   N ranks
"""

from dataclasses import replace
from functools import wraps

import numpy as np
from numpy.typing import NDArray

from eplb_service.domain.errors import InvalidRequest
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.moves import align, num_moves
from eplb_service.domain.placement import Placement
from eplb_service.policies.budgeting import within_budgets
from eplb_service.policies.evacuation import evacuated
from eplb_service.policies.request import Policy, PolicyRequest


def on_active_ranks(policy: Policy) -> Policy:
    """Make a policy honour a request's bounds: masked ranks, ranks to fill anew, budgets."""
    bounded = within_budgets(policy)

    @wraps(policy)
    def drawn(request: PolicyRequest) -> Placement:
        bounds = request.bounds
        if not (bounds.masked or bounds.refilled):
            return bounded(request)
        base = _emptied(request)
        return _widened(request, base, bounded(_narrowed(request, base)))

    return drawn


def narrowed(request: PolicyRequest) -> PolicyRequest:
    """Return what a policy is asked once masked ranks are empty; raises InvalidRequest."""
    if not (request.bounds.masked or request.bounds.refilled):
        return request
    return _narrowed(request, _emptied(request))


def _emptied(request: PolicyRequest) -> Placement:
    """The placement served with masked ranks emptied; raises InvalidRequest with numbers.

    Emptying takes the moves that it takes, for gates to judge; filling keeps to the budget.
    """
    bounds, old = request.bounds, request.placement
    masked = bounds.masked
    if len(masked) == old.layout.num_ranks:
        raise InvalidRequest(f"all {len(masked)} ranks are masked; one must stay")

    def emptied(*, is_filled: bool) -> Placement:
        return evacuated(
            old,
            request.heat,
            request.layers,
            masked=masked,
            refilled=bounds.refilled,
            is_filled=is_filled,
        )

    base = emptied(is_filled=True)
    if request.max_moves is None or num_moves(old, base) <= request.max_moves:
        return base
    return emptied(is_filled=False)


def _columns(request: PolicyRequest) -> NDArray[np.intp]:
    """Slots of the ranks that take part."""
    ranks = request.placement.layout.rank_of_slot()
    return np.flatnonzero(~np.isin(ranks, request.bounds.masked))


def _narrowed(request: PolicyRequest, base: Placement) -> PolicyRequest:
    layout = base.layout
    active = [rank for rank in range(layout.num_ranks) if rank not in request.bounds.masked]
    some = len(active)
    terms, topology = request.terms, request.topology
    spent = num_moves(request.placement, base)
    return replace(
        request,
        placement=Placement(
            base.phy2log[:, _columns(request)],
            base.num_experts,
            SlotLayout(tuple(layout.slots_per_rank[rank] for rank in active)),
            base.num_shared,
        ),
        split=request.split[: some + 1, :some].copy(),
        topology=replace(
            topology, nodes=tuple(topology.nodes[rank] for rank in active if topology.nodes)
        ),
        terms=replace(terms, speeds=tuple(terms.speeds[rank] for rank in active if terms.speeds)),
        max_moves=None if request.max_moves is None else max(0, request.max_moves - spent),
        bounds=replace(request.bounds, masked=(), refilled=()),
    )


def _widened(request: PolicyRequest, base: Placement, drawn: Placement) -> Placement:
    phy2log = base.phy2log.copy()
    layers = np.array(request.layers, dtype=np.intp)
    phy2log[layers[:, None], _columns(request)] = drawn.phy2log[layers]
    old = request.placement
    return align(old, Placement(phy2log, old.num_experts, old.layout, old.num_shared))
