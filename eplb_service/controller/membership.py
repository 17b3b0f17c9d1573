"""Who is in a deployment's rank group now, and what its ranks say they serve.

Axes    N ranks

Pure. A group lives and dies whole: a Hello of a newer incarnation empties the
membership, and words of older ones are stale.
"""

from dataclasses import dataclass, replace

import numpy as np

from eplb_service.domain.deployment import DeploymentIdentity, ModelShape, RankProfile
from eplb_service.domain.errors import RegistrationRefused, StaleMessage, UnknownRank
from eplb_service.domain.ids import Incarnation
from eplb_service.domain.placement import Placement
from eplb_service.domain.rules import violations
from eplb_service.domain.shares import ShareName
from eplb_service.protocol.messages import Hello, RankStatus


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One rank that has greeted."""

    profile: RankProfile
    placement: Placement
    """As served when it last greeted."""
    status: RankStatus
    is_connected: bool


@dataclass(frozen=True, slots=True, eq=False)
class Membership:
    """The rank group of one incarnation."""

    identity: DeploymentIdentity
    shape: ModelShape
    incarnation: Incarnation
    members: tuple[Member | None, ...]
    """[N] None until a rank greets."""

    @property
    def known(self) -> tuple[Member, ...]:
        """Ranks that have greeted."""
        return tuple(member for member in self.members if member is not None)

    @property
    def is_complete(self) -> bool:
        """Whether every rank of this incarnation has greeted."""
        return len(self.known) == len(self.members)

    @property
    def is_connected(self) -> bool:
        """Whether every rank has an open stream."""
        return self.is_complete and all(member.is_connected for member in self.known)

    @property
    def is_idle(self) -> bool:
        """Whether the group runs no steps; one rank's word is enough, steps are the group's.

        Not that of a rank that is away: it cannot take it back.
        """
        return any(member.status.is_idle and member.is_connected for member in self.known)

    def step(self) -> int:
        """Return the latest step that any rank told of."""
        return max((member.status.step for member in self.known), default=0)

    def served(self) -> ShareName | None:
        """What all ranks serve, or None while they are incomplete or differ.

        Revisions may differ for a moment where tokens are the ranks' own.
        """
        names = [member.status.served for member in self.known]
        placements = {(name.epoch, name.placement) for name in names}
        return names[0] if self.is_complete and len(placements) == 1 else None


def empty(hello: Hello) -> Membership:
    """A group of which only this Hello's incarnation is known."""
    return Membership(
        hello.identity, hello.shape, hello.incarnation, (None,) * hello.profile.num_ranks
    )


def greet(membership: Membership, hello: Hello) -> Membership:
    """Take a rank in; a newer incarnation starts the group anew.

    Raises StaleMessage for an older incarnation and RegistrationRefused, with both
    sides' numbers, for a rank that disagrees with its group.
    """
    if hello.incarnation < membership.incarnation:
        raise StaleMessage(
            f"rank {hello.profile.rank} greets with incarnation {hello.incarnation}, but "
            f"{membership.incarnation} is current; its stream is refused, a restarted group "
            "greets with a higher one"
        )
    _require_self_consistent(hello)
    if hello.incarnation > membership.incarnation:
        membership = empty(hello)
    _require_same_group(membership, hello)
    placement = _shared(membership, hello)
    member = Member(hello.profile, placement, hello.status, is_connected=True)
    return _with(membership, hello.profile.rank, member)


def _shared(membership: Membership, hello: Hello) -> Placement:
    """Return the placement that a rank serves, as another rank brought it where they are equal."""
    served = hello.status.served.placement
    for member in membership.known:
        if member.status.served.placement == served and np.array_equal(
            member.placement.phy2log, hello.placement.phy2log
        ):
            return member.placement
    return hello.placement


def require_redundancy(hello: Hello, num_redundant: int | None) -> None:
    """Raise RegistrationRefused, with both numbers, unless the slots are those that are expected.

    num_redundant    slots per layer beyond one for every expert; None: any number
    """
    shape, got = hello.shape, hello.placement.layout.num_slots
    num_shared = int((hello.placement.phy2log >= shape.num_experts).sum(axis=1).max(initial=0))
    wanted = shape.num_experts + num_shared + (num_redundant or 0)
    if num_redundant is not None and got != wanted:
        raise _refuse(
            hello,
            f"its engine has {got} slots per layer, expected {wanted} ({shape.num_experts} "
            f"experts, {num_shared} shared, registration.num_redundant {num_redundant}); start "
            "either side with the other's number",
        )


def leave(membership: Membership, rank: int) -> Membership:
    """A rank's stream ended; what it said still counts."""
    member = membership.members[rank]
    return (
        membership
        if member is None
        else _with(membership, rank, replace(member, is_connected=False))
    )


def update(membership: Membership, rank: int, status: RankStatus) -> Membership:
    """A rank's status changed by a word or a report."""
    member = membership.members[rank]
    if member is None:
        raise UnknownRank(f"rank {rank} speaks before it greeted; its stream must start with Hello")
    return _with(membership, rank, replace(member, status=status))


def status_of(membership: Membership, rank: int) -> RankStatus:
    """The last known status of a rank that has greeted."""
    member = membership.members[rank]
    if member is None:
        raise UnknownRank(f"rank {rank} speaks before it greeted; its stream must start with Hello")
    return member.status


def _with(membership: Membership, rank: int, member: Member) -> Membership:
    members = (*membership.members[:rank], member, *membership.members[rank + 1 :])
    return replace(membership, members=members)


def _refuse(hello: Hello, what: str) -> RegistrationRefused:
    return RegistrationRefused(
        f"rank {hello.profile.rank} of {hello.identity.name} is refused: {what}; "
        "it serves on without the control plane until it greets with fitting numbers"
    )


def _require_self_consistent(hello: Hello) -> None:
    profile, placement, shape = hello.profile, hello.placement, hello.shape
    if not 0 <= profile.rank < profile.num_ranks:
        raise _refuse(hello, f"rank {profile.rank} is outside 0 to {profile.num_ranks - 1}")
    if placement.layout.num_ranks != profile.num_ranks:
        raise _refuse(
            hello,
            f"its placement has {placement.layout.num_ranks} ranks, its group {profile.num_ranks}",
        )
    own = placement.layout.slots_per_rank[profile.rank]
    if own != profile.num_slots:
        raise _refuse(hello, f"it has {profile.num_slots} slots, its placement gives it {own}")
    if (placement.num_layers, placement.num_experts) != (len(shape.layers), shape.num_experts):
        raise _refuse(
            hello,
            f"its placement is for {placement.num_layers} layers of {placement.num_experts} "
            f"experts, its model has {len(shape.layers)} of {shape.num_experts}",
        )
    if placement.num_shared != shape.num_shared:
        raise _refuse(
            hello,
            f"its placement has {placement.num_shared} shared experts in slots, its model "
            f"{shape.num_shared}",
        )
    if placement.digest() != hello.status.served.placement:
        raise _refuse(hello, "the placement it sent is not the one it says it serves")
    found = violations(placement)
    if found:
        raise _refuse(hello, f"its placement is unsound: layer {found[0].layer}: {found[0].text}")


def _require_same_group(membership: Membership, hello: Hello) -> None:
    if hello.identity != membership.identity:
        raise _refuse(hello, f"its identity is {hello.identity}, expected {membership.identity}")
    if hello.shape != membership.shape:
        raise _refuse(hello, f"its model is {hello.shape}, its group's is {membership.shape}")
    if hello.profile.num_ranks != len(membership.members):
        raise _refuse(
            hello,
            f"it counts {hello.profile.num_ranks} ranks, its group {len(membership.members)}",
        )
    for member in membership.known:
        counting, expected = _counting(hello.profile), _counting(member.profile)
        if counting != expected:
            raise _refuse(hello, f"its tokens and counts are {counting}, its group's {expected}")
        layout = member.placement.layout
        if layout != hello.placement.layout:
            raise _refuse(
                hello,
                f"it counts {hello.placement.layout.num_slots} slots "
                f"{list(hello.placement.layout.slots_per_rank)}, its group {layout.num_slots} "
                f"{list(layout.slots_per_rank)}",
            )


def _counting(profile: RankProfile) -> str:
    """What must be the same on all ranks for their counts to add up."""
    counting = profile.counting
    return f"{profile.ownership} tokens, {counting.meaning} by {counting.num_counters}"
