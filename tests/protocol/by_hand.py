"""A world driven by hand: which word arrives where, and when, is the test's to say."""

from random import Random

from eplb_service.domain.ids import Epoch
from eplb_service.domain.placement import placement_from_ranks
from eplb_service.domain.shares import Ownership
from eplb_service.domain.wave import Order
from eplb_service.protocol.messages import (
    Accepted,
    Arm,
    Armed,
    Hello,
    RankPhase,
    Staged,
    ToMachine,
    WaveName,
    Word,
)
from eplb_service.protocol.rank_state import RaiseHalt
from eplb_service.protocol.wave_state import Record, WavePhase
from eplb_service.sim.controller import SimController
from eplb_service.sim.network import FAIR, Letter, Network
from eplb_service.sim.rank import SimRank
from eplb_service.sim.waves import Deployment
from eplb_service.sim.world import World

Kind = type[Hello] | type[Word] | type[ToMachine]
LATE = 1000


class Pigeonhole(Network):
    """Letters lie here until a test hands them on."""

    def __init__(self) -> None:
        super().__init__(Random(0), FAIR)
        self.letters: list[Letter] = []

    def send(self, letter: Letter) -> None:
        self.letters.append(letter)

    def pull(self, kind: Kind, ranks: tuple[int, ...]) -> list[Letter]:
        """Take out all letters of a kind from or to these ranks (any, where none is named)."""
        found = [
            letter
            for letter in self.letters
            if isinstance(letter.word, kind) and (not ranks or letter.rank in ranks)
        ]
        self.letters = [letter for letter in self.letters if letter not in found]
        return found


class ByHand(World):
    """Three ranks (or as many as given) with two slots each, and one controller that knows them."""

    def __init__(
        self, *, num_ranks: int = 3, ownership: Ownership = Ownership.OWN, seed: int = 1
    ) -> None:
        rows = [[[rank, (rank + 1) % num_ranks] for rank in range(num_ranks)]]
        initial = placement_from_ranks(rows, num_experts=num_ranks)
        super().__init__(Deployment(initial, ownership, agree_every=1), Random(seed), FAIR)
        self.holes = Pigeonhole()
        self.network = self.holes
        self.lead = self.new_controller()

    # ---- controllers ----------------------------------------------------------

    def new_controller(self) -> SimController:
        """Let a controller take over, and every rank greet it (and it alone)."""
        self.start_controller()
        self.holes.pull(Hello, ())
        self.greet()
        controller = self.controllers[-1]
        for letter in self.holes.pull(Hello, ()):
            if letter.controller == controller.number:
                self.give(letter)
        self.lead = controller
        return controller

    def begin_wave(self, *, num_steps: int = LATE) -> Epoch:
        """Start a wave; its orders wait to be handed on."""
        assert any(self.start_wave(self.lead, num_steps=num_steps) for _ in range(20))
        self.lead.desk.be_patient(LATE)
        self.perform()
        assert self.lead.wave is not None
        return self.lead.wave.wave.epoch

    def perform(self, controller: SimController | None = None) -> None:
        """Perform all effects that wait."""
        controller = controller or self.lead
        while controller.has_todo and controller.is_alive:
            controller.perform()
            self.look()

    def perform_until_recorded(self, phase: WavePhase) -> None:
        """Perform effects up to the record of a phase, and no further."""
        for _ in range(100):
            effect = self.lead.perform()
            if isinstance(effect, Record) and effect.phase is phase:
                return
        raise AssertionError(f"{phase} was never recorded")

    def recorded(self, epoch: Epoch) -> WavePhase:
        """How a wave stands in the store."""
        return self.store.records[epoch].phase

    # ---- words ----------------------------------------------------------------

    def give(self, letter: Letter) -> None:
        """Let this letter arrive, now (again, if it did before)."""
        if letter.is_up:
            controller = self.controllers[letter.controller]
            assert not isinstance(letter.word, ToMachine)
            if controller.is_alive:
                controller.receive(letter.rank, letter.incarnation, letter.word)
        else:
            assert isinstance(letter.word, ToMachine)
            self.group.ranks[letter.rank].receive(letter.word)
        self.look()

    def hand_on(self, kind: Kind, *ranks: int) -> list[Letter]:
        """Let all waiting letters of a kind arrive; returns them."""
        letters = self.holes.pull(kind, ranks)
        assert letters, f"no {kind.__name__} waits"
        for letter in letters:
            self.give(letter)
        return letters

    def lose(self, kind: Kind, *ranks: int) -> list[Letter]:
        """Let all waiting letters of a kind be lost (or come later, by give)."""
        letters = self.holes.pull(kind, ranks)
        assert letters, f"no {kind.__name__} waits"
        return letters

    def waiting(self, kind: Kind, *ranks: int) -> list[Letter]:
        """Look at the letters of a kind that wait, without handing them on."""
        letters = self.holes.pull(kind, ranks)
        self.holes.letters += letters
        return letters

    def settle_words(self) -> None:
        """Hand everything on, and perform everything, until nothing waits."""
        for _ in range(1000):
            self.perform()
            if not self.holes.letters:
                return
            self.give(self.holes.letters.pop(0))
        raise AssertionError("words never come to rest")

    # ---- ranks ----------------------------------------------------------------

    def rank(self, number: int) -> SimRank:
        """One rank."""
        return self.group.ranks[number]

    def phases(self) -> set[RankPhase]:
        """Where the ranks stand with what they hold."""
        return {r.state.held.phase if r.state.held else RankPhase.SERVING for r in self.group.ranks}

    def served(self) -> Epoch:
        """The epoch that all ranks serve."""
        [epoch] = {rank.state.served.epoch for rank in self.group.ranks}
        return epoch

    def raise_halt(self, rank: int) -> None:
        """Something is wrong at a rank."""
        self.rank(rank).handle(RaiseHalt("by hand"))
        self.look()

    def carry_all(self) -> None:
        """Complete every move that is on its way."""
        while moves := self.group.transfers.movable():
            self.group.carry(moves[0], self.rng, spoil=0.0)
            self.look()

    def finish(self, *ranks: int) -> None:
        """Complete the moves of the round; these ranks (all, where none is named) tell so."""
        self.carry_all()
        for rank in self.group.transfers.finished():
            if not ranks or rank in ranks:
                self.group.finish(rank)
                self.look()

    def accept_all(self) -> None:
        """Every rank accepts the wave, and the controller hears it."""
        self.hand_on(Order)
        self.hand_on(Accepted)

    def stage_all(self) -> None:
        """Run every round at every rank; the words about it wait."""
        while self.phases() != {RankPhase.STAGED}:
            self.run_step()
            self.finish()

    def arm_all(self) -> None:
        """Bring a wave to where every rank is armed and nobody has stepped since."""
        self.accept_all()
        self.stage_all()
        self.hand_on(Staged)
        self.perform()
        self.hand_on(Arm)
        self.hand_on(Armed)

    def restart(self, *, offered: tuple[Epoch, ...] | None = None) -> None:
        """A new incarnation starts; it loads the initial placement unless Welcomes agree."""
        names = [
            self.store.name_of(offered[rank]) if offered else None
            for rank in range(self.deployment.num_ranks)
        ]
        self.group = self._new_group(names)
        self.greet()


def order_in(letter: Letter) -> Order:
    assert isinstance(letter.word, Order)
    return letter.word


def wave_in(letter: Letter) -> WaveName:
    order = order_in(letter)
    return WaveName(order.epoch, order.digest)


def answers(table: ByHand, rank: int) -> list[object]:
    """Words of one rank that wait to be handed on, in the order said."""
    return [letter.word for letter in table.holes.letters if letter.is_up and letter.rank == rank]
