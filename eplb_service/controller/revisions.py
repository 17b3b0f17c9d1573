"""Share revisions: their names, the words that bring them, and how far they have come. Pure.

Axes    N ranks
"""

from dataclasses import dataclass, replace

import numpy as np

from eplb_service.controller.machine_state import DeploymentState
from eplb_service.controller.runs import halt_text, missing_ranks
from eplb_service.domain.heat import Heat
from eplb_service.domain.ids import (
    Epoch,
    Generation,
    Incarnation,
    Revision,
    array_bytes,
    digest_of,
)
from eplb_service.domain.placement import Placement
from eplb_service.domain.shares import (
    Ownership,
    ShareName,
    Shares,
    table_digest,
)
from eplb_service.protocol.messages import NewShares

MOST_NAMED = 8
"""Ranks named in one sentence."""


@dataclass(frozen=True, slots=True, eq=False)
class InUse:
    """A revision that all ranks use."""

    name: ShareName
    incarnation: Incarnation
    shares: Shares
    predicted: float
    """Imbalance that it promises, mean over layers with data."""
    before: float
    """Imbalance predicted for the same load under the tables before it."""
    since_step: int
    """Step from which every rank uses it."""


@dataclass(frozen=True, slots=True, eq=False)
class ShareStand:
    """What the controller knows of a deployment's shares."""

    spent: tuple[Epoch, Revision]
    """The highest revision spent, and in which epoch."""
    in_use: InUse | None = None
    """None while even shares are served, or those that an earlier controller sent."""
    heat: Heat | None = None
    """Of the last revision drawn, for the epoch after it: heat outlives a cutover."""
    carried_to: Epoch | None = None
    """The epoch for which that heat has served."""
    num_revisions: int = 0
    """Revisions that came into use on all ranks."""

    def next_revision(self, state: DeploymentState) -> Revision:
        """Return a number above all that were spent, or are served, in this epoch."""
        epoch = state.serving.wave.epoch
        spent = self.spent[1] if self.spent[0] == epoch else Revision(0)
        return Revision(max((spent, *served_revisions(state))) + 1)


def served_revisions(state: DeploymentState) -> tuple[Revision, ...]:
    """The revision that each known rank serves."""
    known = state.membership.known if state.membership else ()
    return tuple(member.status.served.revision for member in known)


def held_up(state: DeploymentState) -> str:
    """Code of what forbids a share revision now; empty where nothing does.

    A revision never starts beside a plan: a cutover ends it at once.
    """
    membership = state.membership
    if halt_text(state):
        return "halted"
    if state.run or state.flight or state.spending:
        return "busy"
    if missing_ranks(state) or membership is None or membership.served() is None:
        return "not_ready"
    if even_only(state):
        return "even_only"
    return "idle" if membership.is_idle else ""


def even_only(state: DeploymentState) -> str:
    """Why this group's shares stay even, in words; empty where all its ranks take others."""
    known = state.membership.known if state.membership else ()
    given = [member.profile for member in known if not member.profile.sets_shares]
    if not given:
        return ""
    ranks = [profile.rank for profile in given[:MOST_NAMED]]
    more = f" and {len(given) - MOST_NAMED} more" if len(given) > MOST_NAMED else ""
    adapters = ", ".join(sorted({profile.adapter for profile in given}))
    return (
        f"ranks {ranks}{more} ({adapters}) take no shares; they stay even, and plans are priced "
        "by that"
    )


def is_even(state: DeploymentState) -> bool:
    """Whether all ranks use the even tables that every placement begins with."""
    served = state.membership.served() if state.membership else None
    return served is not None and served.revision == 0


def tables_in_use(stand: ShareStand, state: DeploymentState) -> Shares | None:
    """The tables sent from here that all ranks use; None where they differ or are not known here.

    A controller that has just taken over does not know what its elder sent.
    """
    known = state.membership.known if state.membership else ()
    names = {member.status.served for member in known}
    if len(names) != 1:
        return None
    (name,) = names
    return stand.in_use.shares if stand.in_use and stand.in_use.name == name else None


def current(stand: ShareStand, state: DeploymentState) -> InUse | None:
    """Return the revision in use, if it is of the group and epoch of this moment."""
    found, membership = stand.in_use, state.membership
    if found is None or membership is None or found.incarnation != membership.incarnation:
        return None
    is_of_epoch = found.name.epoch == state.serving.wave.epoch
    return found if is_of_epoch else None


def name_of(shares: Shares, placement: Placement, *, epoch: Epoch, revision: Revision) -> ShareName:
    """Name a revision; its digest covers all sources' tables, as that of a wave's does."""
    digests = np.array([table_digest(table) for table in shares.tables], dtype=np.int64)
    return ShareName(epoch, placement.digest(), revision, digest_of((array_bytes(digests),)))


def word_for(
    rank: int, name: ShareName, shares: Shares, by: tuple[Generation, Incarnation]
) -> NewShares:
    """Write down what one rank is told: its own table alone."""
    table = np.ascontiguousarray(shares.table_of(rank))
    own = Shares(table[None], shares.ownership)
    return NewShares(*by, name, table_digest(table), own)


def lacking_ranks(name: ShareName, state: DeploymentState) -> tuple[int, ...]:
    """Ranks that have not said that they use it."""
    members = state.membership.members if state.membership else ()
    return tuple(
        rank
        for rank, member in enumerate(members)
        if member is None or member.status.served != name
    )


def is_overtaken(name: ShareName, incarnation: Incarnation, state: DeploymentState) -> bool:
    """Whether what the revision belongs to is served no more."""
    membership, serving = state.membership, state.serving
    served = (serving.wave.epoch, serving.placement.digest())
    is_same_group = membership is not None and membership.incarnation == incarnation
    return not is_same_group or (name.epoch, name.placement) != served


def with_spent(stand: ShareStand, name: ShareName, heat: Heat) -> ShareStand:
    """The stand once a revision's number is spent."""
    return replace(stand, spent=(name.epoch, name.revision), heat=heat, carried_to=name.epoch)


def ownership_of(state: DeploymentState) -> Ownership:
    """Whose a rank's tokens are; the same in the whole group."""
    assert state.membership is not None
    return state.membership.known[0].profile.ownership
