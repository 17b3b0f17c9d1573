"""What a controller believes of the rank group: only what words of one incarnation told it."""

from dataclasses import dataclass, field

from eplb_service.domain.ids import Epoch, Incarnation, Revision
from eplb_service.protocol.messages import (
    CutOver,
    Halted,
    HaltStatus,
    Idle,
    RankStatus,
    SharesApplied,
    Word,
)

FIRST = Revision(0)


@dataclass(slots=True, eq=False)
class Beliefs:
    """The group of one incarnation, as its words tell."""

    num_ranks: int
    incarnation: Incarnation
    served: dict[int, Epoch] = field(default_factory=dict[int, Epoch])
    """Within an incarnation epochs only grow, so the highest told is the newest."""
    halts: dict[int, tuple[int, HaltStatus]] = field(
        default_factory=dict[int, tuple[int, HaltStatus]]
    )
    idle: set[int] = field(default_factory=set[int])
    step: int = 0
    revision: Revision = FIRST

    def greet(self, rank: int, status: RankStatus) -> None:
        """Take in a Hello; words may have overtaken it."""
        self.serve(rank, status.served.epoch)
        self.halt(rank, status.step, status.halt)
        self.tick(status.step)
        self.rest(rank, is_idle=status.is_idle)
        self.revise(status.served.revision)

    def hear(self, rank: int, word: Word) -> None:
        """Take in what a word tells about the group, whatever else it is about."""
        match word:
            case CutOver(wave, step):
                self.serve(rank, wave.epoch)
                self.tick(step)
            case Halted(halt, step):
                self.halt(rank, step, halt)
                self.tick(step)
            case Idle(is_idle, step):
                self.rest(rank, is_idle=is_idle)
                self.tick(step)
            case SharesApplied(name, step):
                self.revise(name.revision)
                self.tick(step)
            case _:
                pass

    def serve(self, rank: int, epoch: Epoch) -> None:
        """A rank serves this epoch or a later one."""
        self.served[rank] = max(epoch, self.served.get(rank, epoch))

    def halt(self, rank: int, step: int, halt: HaltStatus) -> None:
        """A rank's halt stood so at a step."""
        if step >= self.halts.get(rank, (0, halt))[0]:
            self.halts[rank] = (step, halt)

    def tick(self, step: int) -> None:
        """The group has come to a step."""
        self.step = max(self.step, step)

    def rest(self, rank: int, *, is_idle: bool) -> None:
        """A rank says whether the group runs steps."""
        (self.idle.add if is_idle else self.idle.discard)(rank)

    def revise(self, revision: Revision) -> None:
        """A revision of the shares is in use somewhere."""
        self.revision = max(self.revision, revision)

    @property
    def common_epoch(self) -> Epoch | None:
        """The epoch that all ranks serve; None while a rank has not told or they differ."""
        told = set(self.served.values())
        return told.pop() if len(self.served) == self.num_ranks and len(told) == 1 else None

    @property
    def halt_number(self) -> int | None:
        """Number of the halt that stands; None where none does."""
        standing = [halt.number for _, halt in self.halts.values() if halt.is_active]
        return max(standing, default=None)
