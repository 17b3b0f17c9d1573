"""Keeping a policy to what one layer, and one rank, may take.

Axes    L MoE layers   P slots   N ranks
"""

from dataclasses import replace
from functools import wraps

import numpy as np

from eplb_service.domain.ids import CountArray
from eplb_service.domain.placement import EMPTY, Placement
from eplb_service.policies.request import Policy, PolicyRequest, predicted_load
from eplb_service.policies.rows import aligned


def within_budgets(policy: Policy) -> Policy:
    """Make a policy keep to the budgets of layers and ranks.

    A layer that would take more than it may is drawn once more with that many moves, and stays
    as it is where the policy cannot. Layers are then taken worst first while no rank is given
    more experts than it may; the others stay.
    """

    @wraps(policy)
    def drawn(request: PolicyRequest) -> Placement:
        bounds = request.bounds
        found = policy(request)
        if bounds.per_layer is not None:
            found = _with_small_layers(request, found, policy, bounds.per_layer)
        if bounds.per_rank is not None:
            found = _with_calm_ranks(request, found, bounds.per_rank)
        return found

    return drawn


def incoming(old: Placement, new: Placement) -> CountArray:
    """[L, N] slots of each rank that get another expert."""
    moved = (old.phy2log != new.phy2log) & (new.phy2log != EMPTY)
    layout = old.layout
    ranks = [moved[:, layout.slots_of(rank)].sum(axis=1) for rank in range(layout.num_ranks)]
    return np.stack(ranks, axis=1).astype(np.int64)


def _with_small_layers(
    request: PolicyRequest, found: Placement, policy: Policy, most: int
) -> Placement:
    old = request.placement
    rows = found.phy2log.copy()
    costs = incoming(old, found).sum(axis=1)
    for layer in np.flatnonzero(costs > most).tolist():
        again = policy(replace(request, layers=(layer,), max_moves=most))
        fits = incoming(old, again)[layer].sum() <= most
        rows[layer] = (again if fits else old).phy2log[layer]
    return aligned(request, rows)


def _with_calm_ranks(request: PolicyRequest, found: Placement, most: int) -> Placement:
    old = request.placement
    load = predicted_load(request.heat, old, request.split, request.terms)
    excess = load.max(axis=1) - load.mean(axis=1)
    given = incoming(old, found)
    taken = np.zeros(old.layout.num_ranks, dtype=np.int64)
    rows = old.phy2log.copy()
    for layer in sorted(request.layers, key=lambda n: (-excess[n], n)):
        if (taken + given[layer] <= most).all():
            taken += given[layer]
            rows[layer] = found.phy2log[layer]
    return aligned(request, rows)
