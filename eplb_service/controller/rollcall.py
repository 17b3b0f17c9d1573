"""Who of a rank group is away, and which experts only those ranks hold. Pure."""

import numpy as np

from eplb_service.controller.membership import Membership
from eplb_service.domain.ids import IntArray
from eplb_service.domain.liveness import only_on
from eplb_service.domain.placement import Placement

MAX_NAMED = 8
"""Experts named in one line."""


def away(membership: Membership | None) -> tuple[int, ...]:
    """Return the ranks that have greeted and whose stream has ended; none where all have.

    A group that is gone whole was ended or is being restarted: nobody is missed.
    """
    members = membership.members if membership else ()
    gone = [rank for rank, one in enumerate(members) if one and not one.is_connected]
    is_any_left = any(one and one.is_connected for one in members)
    return tuple(gone) if is_any_left else ()


def degraded(placement: Placement, ranks: tuple[int, ...]) -> str:
    """Say which experts have no replica but on these ranks; empty for no ranks.

    What a rank serves is its group's affair: it may be away from the controller alone.
    """
    if not ranks:
        return ""
    lost = only_on(placement, ranks)
    who = f"rank {ranks[0]} is" if len(ranks) == 1 else f"ranks {list(ranks)} are"
    if not len(lost):
        return f"{who} away; every expert has a replica on another rank"
    return f"degraded: {who} away, and no other rank holds expert {_named(lost)}"


def copied_first(placement: Placement, ranks: tuple[int, ...]) -> str:
    """Say which experts must be copied before these ranks can be taken out; empty where none."""
    lost = only_on(placement, ranks)
    if not len(lost):
        return ""
    return f"copied to another rank first, as none holds them: expert {_named(lost)}"


def drained_so_far(placement: Placement, ranks: tuple[int, ...]) -> str:
    """Say whether drained ranks may be taken out: only where they hold nothing; empty for none."""
    if not ranks:
        return ""
    is_theirs = np.isin(placement.layout.rank_of_slot(), list(ranks))
    num_held = int((placement.routed() & is_theirs).sum())
    if not num_held:
        return "safe to take out: no expert is left there"
    lost = only_on(placement, ranks)
    still = f"not yet: {num_held} slot{'s' * (num_held > 1)} there still hold an expert"
    return f"{still}, and no other rank holds expert {_named(lost)}" if len(lost) else still


def _named(lost: IntArray) -> str:
    """Name the first of some experts.

    lost    [M, 2] layer and expert
    """
    named = ", ".join(f"{expert} of layer {layer}" for layer, expert in lost[:MAX_NAMED].tolist())
    return f"{named} and {len(lost) - MAX_NAMED} more" if len(lost) > MAX_NAMED else named
