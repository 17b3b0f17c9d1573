"""The controller's side of one share revision: say it until every rank uses it."""

from dataclasses import dataclass, field
from random import Random

from eplb_service.controller.revisions import name_of, word_for
from eplb_service.domain.ids import Epoch, Generation, Incarnation, Revision
from eplb_service.domain.placement import Placement
from eplb_service.domain.shares import Ownership, ShareName, Shares
from eplb_service.protocol.messages import NewShares
from eplb_service.sim.waves import shares_of


@dataclass(slots=True, eq=False)
class ShareLoop:
    """One revision on its way to all ranks."""

    name: ShareName
    shares: Shares
    num_ranks: int
    applied: set[int] = field(default_factory=set[int])

    @property
    def is_applied(self) -> bool:
        """Whether all ranks said that they use it."""
        return len(self.applied) == self.num_ranks

    def words(self, generation: Generation, incarnation: Incarnation) -> dict[int, NewShares]:
        """What to say, by rank, to those that have not applied it."""
        return {
            rank: word_for(rank, self.name, self.shares, (generation, incarnation))
            for rank in range(self.num_ranks)
            if rank not in self.applied
        }

    def hear(self, rank: int, name: ShareName) -> None:
        """Note that a rank uses a revision."""
        if name == self.name:
            self.applied.add(rank)


def draw_shares(
    placement: Placement, ownership: Ownership, *, epoch: Epoch, revision: Revision, rng: Random
) -> ShareLoop:
    """Draw random shares of the placement that is served under an epoch."""
    shares = shares_of(placement, ownership, rng)
    name = name_of(shares, placement, epoch=epoch, revision=revision)
    return ShareLoop(name, shares, placement.layout.num_ranks)
