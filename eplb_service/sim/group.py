"""The rank group: it steps together, moves experts, and is born and dies whole."""

from random import Random

from eplb_service.domain.ids import Digest, Epoch, Incarnation
from eplb_service.domain.shares import ShareName
from eplb_service.protocol.agreement import reduce_ballots
from eplb_service.protocol.attach import Loaded, placement_to_load, require_same
from eplb_service.protocol.messages import (
    FINAL_NACKS,
    CutOver,
    Dropped,
    DropReason,
    Nack,
    OutcomeKind,
    WaveName,
    Word,
)
from eplb_service.protocol.rank_state import (
    Agreed,
    Audited,
    BeginRound,
    RoundDone,
    RoundFailed,
    ballot,
)
from eplb_service.sim.rank import SPOILED, SimRank
from eplb_service.sim.store import SimStore
from eplb_service.sim.story import Violation
from eplb_service.sim.transfers import Move, Transfers
from eplb_service.sim.waves import Deployment

SETTINGS = Digest(1)


class GroupDied(Exception):
    """A rank ended in the middle of an agreed switch, and with it its group."""


class Group:
    """All ranks of one incarnation."""

    def __init__(
        self,
        deployment: Deployment,
        store: SimStore,
        *,
        incarnation: Incarnation,
        offered: list[ShareName | None],
    ) -> None:
        name = placement_to_load(offered) or store.name_of(store.settled()[0])
        self.deployment = deployment
        self.incarnation = incarnation
        self.loaded = name
        self.step = 0
        self.is_idle = False
        self.transfers = Transfers(deployment.initial.layout)
        self.ends: dict[WaveName, set[OutcomeKind]] = {}
        """How the ranks said that each wave ended."""
        self.refused: set[tuple[int, Epoch]] = set()
        """Rank and number, where the rank said that it never will hold it again."""
        self.ranks = [
            SimRank(
                rank,
                deployment,
                incarnation=incarnation,
                loaded=(name, store.stands[name.epoch]),
                transfers=self.transfers,
            )
            for rank in range(deployment.num_ranks)
        ]
        require_same([Loaded(SETTINGS, rank.state.served) for rank in self.ranks])

    def run_step(self, *, dies_at: int | None = None) -> list[BeginRound]:
        """Agree if it is time to, then forward; raises GroupDied if a rank dies on the way."""
        begun: list[BeginRound] = []
        if self.step % self.deployment.agree_every == 0:
            begun = self.agree(dies_at=dies_at)
        self.step += 1
        return begun

    def agree(self, *, dies_at: int | None = None) -> list[BeginRound]:
        """Reduce the ballots of all ranks and let each do what was agreed."""
        agreement = reduce_ballots([ballot(rank.state, self.step) for rank in self.ranks])
        begun: list[BeginRound] = []
        for rank in self.ranks:
            if rank.rank == dies_at:
                raise GroupDied
            effects = rank.handle(Agreed(self.step, agreement))
            begun += [effect for effect in effects if isinstance(effect, BeginRound)]
        if len(begun) not in (0, len(self.ranks)):
            raise Violation(f"{len(begun)} of {len(self.ranks)} ranks begin a round")
        return begun

    def carry(self, move: Move, rng: Random, *, spoil: float) -> None:
        """Complete one move: the target gets what the source slot holds at this moment."""
        source, target = self.transfers.ends(move)
        sender, receiver = self.ranks[source], self.ranks[target]
        content = sender.slots[move.layer][move.source - sender.base]
        if rng.random() < spoil:
            content = SPOILED
        receiver.stage(move.layer, move.target, content)
        self.transfers.complete(move, is_bad=content != move.expert)

    def finish(self, rank: int) -> None:
        """A rank's part of a round is complete; it verifies and tells its machine."""
        part = self.transfers.parts.pop(rank)
        if part.is_bad:
            reason = DropReason.DIGEST_MISMATCH
            self.ranks[rank].handle(RoundFailed(part.wave, part.number, reason, "spoiled"))
        else:
            self.ranks[rank].handle(RoundDone(part.wave, part.number))

    def audit(self, rank: int, *, is_clean: bool) -> None:
        """Answer the oldest audit asked of a rank."""
        one = self.ranks[rank]
        clean = is_clean and one.is_clean()
        one.handle(Audited(one.audits.pop(0), clean, "" if clean else "a slot differs"))

    def note(self, rank: int, word: Word) -> None:
        """Remember how a rank says that a wave ended."""
        match word:
            case CutOver(wave, _):
                self.ends.setdefault(wave, set()).add(OutcomeKind.CUT_OVER)
            case Dropped(wave, _, _):
                self._refuse(rank, wave)
            case Nack(wave, reason, _) if reason in FINAL_NACKS:
                self._refuse(rank, wave)
            case _:
                pass

    def _refuse(self, rank: int, wave: WaveName) -> None:
        self.ends.setdefault(wave, set()).add(OutcomeKind.DROPPED)
        self.refused.add((rank, wave.epoch))
