"""Whether an order is sound, judged against what is served, before the rank machine sees it.

Axes    C changed layers   P slots   E experts   J dispatch rows   M transfers

The controller has validated the same things; a rank trusts nobody with its memory.
The machine judges once more what only it knows: number, base, expiry, halt.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from eplb_service.domain.deployment import RankProfile
from eplb_service.domain.errors import EplbError
from eplb_service.domain.ids import IntArray
from eplb_service.domain.placement import EMPTY, Placement
from eplb_service.domain.rules import shared_slots_stay, violations
from eplb_service.domain.shares import Ownership, dispatch_violations, table_digest
from eplb_service.domain.wave import LAYER, SOURCE, TARGET, Order, WaveContent, received_by
from eplb_service.protocol.messages import NackReason, NewShares

Fault = tuple[NackReason, str]
EngineFault = Callable[[Order, Placement], str | None]
"""Says why an engine would carry an order out wrongly on what is served, or None."""

MAX_SHOWN = 16
"""Layers named in one refusal, which must fit the street."""


def no_fault(order: Order, served: Placement) -> None:
    """Return None, for an engine that carries out any sound order."""
    del order, served


@dataclass(frozen=True, slots=True)
class Limits:
    """What this rank can carry out."""

    profile: RankProfile
    table_rows: int
    """J of the engine's dispatch tables."""
    engine_fault: EngineFault = no_fault


def order_fault(order: Order, served: Placement, limits: Limits) -> Fault | None:
    """Why the order must not be carried out on `served`; None where it is sound."""
    if order.content.base != served.digest():
        return NackReason.WRONG_BASE, (
            f"the order starts from placement {order.content.base:016x}, but "
            f"{served.digest():016x} is served here"
        )
    found = next(_shape_faults(order, served, limits), None)
    if found is None:
        found = next(_content_faults(order, served, limits), None)
    if found is None:
        found = limits.engine_fault(order, served)
    if found is not None:
        return NackReason.UNSOUND, f"{found}; nothing was changed"
    received = received_by(order.content.transfers, served.layout, limits.profile.rank)
    if len(received) > limits.profile.staging_rows:
        return NackReason.NO_ROOM, (
            f"the order has rank {limits.profile.rank} receive {len(received)} experts, but its "
            f"staging memory holds {limits.profile.staging_rows}; send a smaller wave"
        )
    return None


def shares_fault(new: NewShares, served: Placement, limits: Limits) -> str | None:
    """Why the revision must not be used on `served`, which it names; None where it is sound."""
    if not limits.profile.sets_shares:
        return "this rank said that it takes no shares; its tables stay with its placement"
    if len(new.shares.tables) != 1:
        return f"{len(new.shares.tables)} tables came; expected the addressed rank's alone"
    table = new.shares.table_of(0)
    if table_digest(table) != new.table_digest:
        return f"the table's digest is {table_digest(table):016x}, not {new.table_digest:016x}"
    if table.shape[2:] != (limits.table_rows,):
        return f"the table has shape {list(table.shape)}; expected {limits.table_rows} rows"
    found = next(dispatch_violations(table, served), None)
    return None if found is None else f"layer {found.layer}: {found.text}"


def _shape_faults(order: Order, served: Placement, limits: Limits) -> Iterator[str]:
    """Whatever would make it pointless, or unsafe, to look further."""
    content = order.content
    layers = content.layers
    if layers.ndim != 1 or np.any(layers[1:] <= layers[:-1]):
        yield f"changed layers {_shown(layers)} are not ascending"
    elif layers.size and not (layers[0] >= 0 and layers[-1] < served.num_layers):
        yield f"changed layers {_shown(layers)} are outside 0 to {served.num_layers - 1}"
    if content.rows.shape != (len(layers), served.layout.num_slots):
        yield (
            f"rows have shape {list(content.rows.shape)}; expected [{len(layers)}, "
            f"{served.layout.num_slots}]"
        )
    want = (len(layers), served.num_experts, limits.table_rows)
    if order.dispatch.shape != want:
        yield f"dispatch rows have shape {list(order.dispatch.shape)}; expected {list(want)}"
    sources = 1 if limits.profile.ownership is Ownership.REPLICATED else served.layout.num_ranks
    if len(content.dispatch) != sources:
        yield f"{len(content.dispatch)} fingerprints of dispatch rows; expected {sources}"
    moves = content.transfers
    slots = moves[:, [SOURCE, TARGET]]
    if np.any((slots < 0) | (slots >= served.layout.num_slots)):
        yield f"a transfer names a slot outside 0 to {served.layout.num_slots - 1}"
    if not np.all(np.isin(moves[:, LAYER], layers)):
        yield "a transfer is for a layer that does not change"


def _shown(layers: IntArray) -> str:
    """Write layers down, cut short where they are absurdly many."""
    more = f" and {layers.size - MAX_SHOWN} more" if layers.size > MAX_SHOWN else ""
    return f"{layers.ravel()[:MAX_SHOWN].tolist()}{more}"


def _content_faults(order: Order, served: Placement, limits: Limits) -> Iterator[str]:
    content = order.content
    try:
        after = content.apply(served)
    except EplbError as error:
        yield str(error)
        return
    if after.digest() != content.target:
        yield (
            f"the rows end in placement {after.digest():016x}, but the order names "
            f"{content.target:016x}"
        )
    broken = [*violations(after), *shared_slots_stay(served, after)]
    yield from (f"layer {found.layer}: {found.text}" for found in broken)
    yield from _transfer_faults(content, served, after)
    yield from _dispatch_faults(order, after, limits)


def _transfer_faults(content: WaveContent, served: Placement, after: Placement) -> Iterator[str]:
    """Transfers are the difference, each slot once, and come from a slot that holds the expert."""
    old, new, moves = served.phy2log, after.phy2log, content.transfers
    wanted = {(layer, slot) for layer, slot in np.argwhere((old != new) & (new != EMPTY)).tolist()}
    given = {(layer, slot) for layer, slot in moves[:, [LAYER, TARGET]].tolist()}
    if given != wanted or len(moves) != len(wanted):
        yield (
            f"{len(moves)} transfers into {len(given)} slots, but {len(wanted)} slots change: "
            f"missing {sorted(wanted - given)[:5]}, needless {sorted(given - wanted)[:5]} "
            "(layer, slot)"
        )
        return
    for layer, expert, source, target in moves.tolist():
        if new[layer, target] != expert:
            yield (
                f"layer {layer}: slot {target} would hold expert {new[layer, target]}, but "
                f"expert {expert} is sent to it"
            )
        if old[layer, source] != expert:
            yield (
                f"layer {layer}: slot {source} is to send expert {expert}, but it holds "
                f"{old[layer, source]}"
            )


def _dispatch_faults(order: Order, after: Placement, limits: Limits) -> Iterator[str]:
    content, profile = order.content, limits.profile
    told = content.dispatch[0 if profile.ownership is Ownership.REPLICATED else profile.rank]
    if table_digest(order.dispatch) != told:
        yield (
            f"the dispatch rows of rank {profile.rank} have fingerprint "
            f"{table_digest(order.dispatch):016x}, but the wave names {told:016x}"
        )
    changed = Placement(content.rows.copy(), after.num_experts, after.layout, after.num_shared)
    for found in dispatch_violations(order.dispatch, changed):
        yield f"layer {content.layers[found.layer]}: {found.text}"
