"""Rank groups for tests: real rank machines behind in-process outboxes, without weights.

Every Offer is accepted as sound and every transfer round finishes at once; what is
tested is the controller.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from eplb_service.domain.ids import Incarnation, IntArray
from eplb_service.domain.placement import Placement
from eplb_service.domain.shares import Ownership, even_shares
from eplb_service.domain.wave import Order
from eplb_service.protocol.agreement import reduce_ballots
from eplb_service.protocol.messages import (
    Abort,
    Arm,
    Down,
    Hello,
    NewShares,
    ReportAck,
    Resume,
    Welcome,
    Word,
)
from eplb_service.protocol.rank import step
from eplb_service.protocol.rank_state import (
    Agreed,
    ApplyShares,
    Audit,
    Audited,
    BeginRound,
    Event,
    Offer,
    RankState,
    RoundDone,
    Say,
    Switch,
    ballot,
    initial_state,
    status,
)
from tests.controller.group import hello


@dataclass(eq=False)
class FakeRank:
    """One rank: its machine, what it serves and what it was told."""

    hello: Hello
    state: RankState
    placement: Placement
    told: list[Down] = field(default_factory=list[Down])
    words: list[Word] = field(default_factory=list[Word])
    tables: list[IntArray] = field(default_factory=list[IntArray])
    """[L, E, J] dispatch tables of the revisions that it applied, oldest first."""
    is_open: bool = True
    close_reason: str = ""

    def send(self, message: Down) -> None:
        """Take a message from the controller, as an Outbox."""
        self.told.append(message)
        match message:
            case Order():
                self.feed(Offer(message, None))
            case Arm() | Abort() | Resume() | NewShares():
                self.feed(message)
            case Welcome() | ReportAck():
                pass

    @property
    def table(self) -> IntArray:
        """[L, E, J] what it dispatches by."""
        even = even_shares(self.placement, Ownership.OWN).table_of(self.hello.profile.rank)
        return self.tables[-1] if self.tables else even

    def close(self, reason: str) -> None:
        """Close the stream, as an Outbox."""
        self.is_open, self.close_reason = False, reason

    def feed(self, event: Event) -> None:
        """Run the machine and perform what it asks for at once."""
        self.state, effects = step(self.state, event)
        for effect in effects:
            match effect:
                case Say(word):
                    self.words.append(word)
                case BeginRound(order, number):
                    assert self.state.held
                    self.feed(RoundDone(self.state.held.name, number))
                    assert order.content.num_rounds >= number
                case Switch(order, _):
                    self.placement = order.content.apply(self.placement)
                    self.tables.clear()
                case ApplyShares(_, shares):
                    self.tables.append(shares.table_of(0))
                case Audit(number):
                    self.feed(Audited(number, is_clean=True, text=""))
                case _:
                    pass

    def greeting(self) -> Hello:
        """What this rank says on a new stream."""
        return replace(
            self.hello,
            placement=self.placement,
            status=status(self.state, is_idle=False),
            generation_seen=self.state.generation,
        )


def start_ranks(
    placement: Placement, *, incarnation: int = 1, epoch: int = 0, sets_shares: bool = True
) -> list[FakeRank]:
    """All ranks of a group that serves `placement`."""
    num_ranks = placement.layout.num_ranks
    ranks: list[FakeRank] = []
    for rank in range(num_ranks):
        first = hello(
            rank,
            incarnation=incarnation,
            placement=placement,
            epoch=epoch,
            num_ranks=num_ranks,
            sets_shares=sets_shares,
        )
        state = initial_state(
            incarnation=Incarnation(incarnation),
            ownership=Ownership.OWN,
            served=first.status.served,
        )
        ranks.append(FakeRank(first, replace(state, step=first.status.step), placement))
    return ranks


def agree(ranks: list[FakeRank]) -> None:
    """One agreement of the whole group, before its next step."""
    at = max(rank.state.step for rank in ranks) + 1
    agreement = reduce_ballots([ballot(rank.state, at) for rank in ranks])
    for rank in ranks:
        rank.feed(Agreed(at, agreement))


def take_words(ranks: list[FakeRank], deliver: Callable[[int, Word], None]) -> int:
    """Hand every word said since the last call to `deliver`; return how many there were."""
    count = 0
    for number, rank in enumerate(ranks):
        words, rank.words = rank.words, []
        for word in words:
            deliver(number, word)
            count += 1
    return count
