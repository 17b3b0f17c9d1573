"""Serving on without dead ranks: who loads what, worked out alike by every rank that lives.

living = group_of([0, 2, 3], timeout_s=60)
runtime = serve_on(runtime, peers=GroupPeers(living), mode=mode, source=Checkpoint(runtime))
hook.close()
hook = attach(runtime, group=living, settings=settings)

The old hook is closed after that, not before: as long as its agents are connected and the dead
rank's is not, the controller says `degraded` and names the experts. What attaches then is a group
of its own, with an incarnation of its own, in which there is no dead rank to be named.

Axes    L layers   E experts   S local slots   P slots of the ranks that live   J rows of a table
"""

import logging

import numpy as np

from eplb_service.domain.errors import AttachRefused
from eplb_service.domain.ids import IntArray
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import Placement
from eplb_service.domain.shares import Ownership, even_shares
from eplb_service.domain.survivors import RESTART, ServedOn, filled
from moe_runtime.runtime import ExchangeMode, ExpertSource, GroupPeers, MoeRuntime, Start, Traffic
from moe_runtime.runtime import SlotLayout as RuntimeLayout
from moe_runtime.runtime import serve_on as serve_rows_on
from worker_agent.adapters.group import TorchGroup
from worker_agent.adapters.shared_slots import shared_slots
from worker_agent.adapters.torch_calls import new_group
from worker_agent.agent.joining import gather, gather_columns
from worker_agent.ports.group import GroupPort

__all__ = ["serve_on"]

log = logging.getLogger(__name__)

MAX_NAMED = 8
"""Experts named in one line."""


def serve_on(
    before: MoeRuntime,
    *,
    peers: GroupPeers,
    mode: ExchangeMode | Traffic,
    source: ExpertSource,
    group_timeout_s: float = 60.0,
) -> MoeRuntime:
    """Return a runtime of the ranks in `peers`, over what they hold, with every expert in a slot.

    peers     the ranks that live, in a new group; their numbers are what the deployment goes by
    source    where an expert comes from that none of them holds

    Collective over `peers`, between two steps. What ranks hold is asked of them, not remembered:
    of a group that died in the middle of a switch some ranks may have switched. Nothing serves by
    `before` any more.

    Raises CannotServeOn where slots do not suffice, ExpertsLost where the source lacks an expert,
    on all ranks, and GroupLost if one does not come: then the group must be started again.
    """
    group = TorchGroup(new_group(peers.group, timeout_s=group_timeout_s))
    served = filled(_left(before, group))
    lost = _named(served)
    log.warning(
        "serving on without dead ranks",
        extra={"rank": peers.rank, "ranks": peers.size, "lost": lost, "source": source.name},
    )
    start = _start(before, served.placement, peers.rank)
    runtime = serve_rows_on(before, start, peers=peers, mode=mode, source=source)
    log.info("lost experts are loaded", extra={"rank": peers.rank, "lost": lost})
    return runtime


def _left(before: MoeRuntime, group: GroupPort) -> Placement:
    """Return what the ranks that live hold. Collective."""
    shape = before.model.shape
    own = (shape.num_layers, shape.num_experts, shape.num_shared_in_slots)
    heard = gather(group, (*own, before.slots.num_slots))
    if any(row[:3] != own for row in heard):
        raise AttachRefused(
            f"rank {group.rank}: ranks that serve on have other models by rank (layers, experts, "
            f"shared experts in slots): {[row[:3] for row in heard]}; {RESTART}"
        )
    layout = SlotLayout(tuple(row[3] for row in heard))
    phy2log = gather_columns(
        group,
        before.held().astype(np.int32),
        num_columns=layout.num_slots,
        base=layout.base(group.rank),
    )
    return Placement(phy2log, shape.num_experts, layout, shape.num_shared_in_slots)


def _start(before: MoeRuntime, placement: Placement, rank: int) -> Start:
    table = even_shares(placement, Ownership.OWN).table_of(rank)
    own = placement.layout.slots_of(rank)
    return Start(
        RuntimeLayout(placement.layout.slots_per_rank),
        placement.phy2log[:, own],
        _as_many_rows(table, before.tables().shape[2]),
        before.slots.staging_rows,
        shared_LM=shared_slots(placement, rank),
    )


def _as_many_rows(table: IntArray, num_rows: int) -> IntArray:
    """Return [L, E, J] of [L, E, 1]: agents compare tables of one shape."""
    return np.repeat(table, num_rows, axis=2)


def _named(served: ServedOn) -> str:
    """Name the first of the lost experts."""
    lost = served.lost.tolist()
    named = ", ".join(f"expert {expert} of layer {layer}" for layer, expert in lost[:MAX_NAMED])
    return f"{named} and {len(lost) - MAX_NAMED} more" if len(lost) > MAX_NAMED else named or "none"
