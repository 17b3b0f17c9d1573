"""A whole deployment in one process: group, controllers, store and the network between.

Everything that can happen is a method; what happens when is chance's, in chaos.py.
After every event the invariants are looked at.
"""

from collections.abc import Iterable
from random import Random

from eplb_service.domain.ids import Epoch, Generation, Incarnation
from eplb_service.domain.shares import ShareName
from eplb_service.domain.wave import Order
from eplb_service.protocol.messages import NackReason, Resume, ToMachine
from eplb_service.protocol.rank_state import Offer
from eplb_service.sim.asking import FEW, ask_for_plan
from eplb_service.sim.controller import SimController
from eplb_service.sim.desk import Desk
from eplb_service.sim.drafts import draw_wave
from eplb_service.sim.group import Group, GroupDied
from eplb_service.sim.links import reconnect
from eplb_service.sim.machine_desk import MachineDesk
from eplb_service.sim.network import Letter
from eplb_service.sim.stage import Stage
from eplb_service.sim.store import SimStore
from eplb_service.sim.story import describe
from eplb_service.sim.wave_desk import WaveDesk


class World(Stage):
    """One deployment and everything that acts on it."""

    # ---- controllers ----------------------------------------------------------

    def start_controller(self) -> None:
        """A new controller takes over; older ones go on until something fences them."""
        number = len(self.controllers)

        def post(rank: int, word: ToMachine) -> None:
            if isinstance(word, Resume):
                self._checks.resumed.add((word.incarnation, word.halt_number))
            self.network.send(Letter(number, rank, Incarnation(0), is_up=False, word=word))

        def sit_down(generation: Generation) -> Desk:
            return self._desk(generation, post)

        controller = SimController(number, self.deployment, self.store, post, sit_down)
        self.controllers.append(controller)
        self.story.tell(f"controller {number} takes over as generation {controller.generation}")
        if self.rng.random() < 0.8:
            self.greet()

    def start_wave(
        self, controller: SimController, *, num_steps: int, base: Epoch | None = None
    ) -> bool:
        """Start a random wave if the controller may; from a wrong base where one is given."""
        desk = controller.desk
        if isinstance(desk, MachineDesk):
            return ask_for_plan(self, controller, desk, num_steps=num_steps)
        if not controller.may_start:
            return False
        assert isinstance(desk, WaveDesk)
        served = controller.beliefs.common_epoch
        base = base if base is not None else served
        assert base is not None
        record = draw_wave(controller, self.store, base, num_steps=num_steps, rng=self.rng)
        if record is None:
            return False
        epoch = record.wave.epoch
        self.story.tell(
            f"controller {controller.number} starts epoch {epoch} from {base}, "
            f"{record.content.num_rounds} rounds, until step {record.expires_at_step}"
        )
        self._spent(record)
        controller.guarded(lambda: desk.start(record))
        desk.be_patient(self.rng.choice((4, 8, 30)) if num_steps < FEW else 10**6)
        return True

    def start_shares(self, controller: SimController, *, again: bool = False) -> bool:
        """Start a random share revision."""
        loop = controller.share(self.rng, again=again)
        if loop is None:
            return False
        name = loop.name
        self._checks.name(name, loop.shares)
        self.story.tell(f"controller {controller.number} shares {name.epoch}.{name.revision}")
        return True

    # ---- network --------------------------------------------------------------

    def greet(self) -> None:
        """Every rank opens its streams again."""
        for rank in self.group.ranks:
            self._say(rank.rank, rank.hello(is_idle=self.group.is_idle))

    def deliver(self, *, fault: bool = False) -> bool:
        """Let one letter arrive; an order may be found unsound where `fault`."""
        letter = self.network.take()
        reconnect(self)
        if letter is None:
            return False
        word = letter.word
        self.story.tell(
            f"c{letter.controller} {'<' if letter.is_up else '>'} r{letter.rank} {describe(word)}"
        )
        if letter.is_up:
            controller = self.controllers[letter.controller]
            if controller.is_alive:
                assert not isinstance(word, ToMachine)
                controller.receive(letter.rank, letter.incarnation, word)
        else:
            assert isinstance(word, ToMachine)
            unsound = (NackReason.UNSOUND, "drawn by chance")
            offer = Offer(word, unsound) if fault and isinstance(word, Order) else None
            self.group.ranks[letter.rank].receive(word, fault=offer)
        self.look()
        return True

    # ---- group ----------------------------------------------------------------

    def run_step(self, *, dies_at: int | None = None) -> None:
        """One forward of all ranks; the group may die in the agreement before it."""
        before = self.group.ranks[0].state
        try:
            self.group.run_step(dies_at=dies_at)
        except GroupDied:
            self.story.tell(f"rank {dies_at} dies before step {self.group.step}")
            self.restart_group()
            return
        self.story.tell(describe_step(self.group, before.served.epoch))
        self.look()

    def restart_group(self, *, late: Iterable[int] = ()) -> None:
        """All ranks end; a new incarnation loads what its Welcomes name, if they agree.

        Ranks that are late say nothing yet.
        """
        offered = draw_offers(self.store, self.deployment.num_ranks, self.rng)
        self.group = self._new_group(offered)
        self.look()
        for rank in self.group.ranks:
            if rank.rank not in set(late):
                self._say(rank.rank, rank.hello(is_idle=self.group.is_idle))


def describe_step(group: Group, before: Epoch) -> str:
    """Say what a step did, as its first rank saw it."""
    state = group.ranks[0].state
    cut = f" cut over to {state.served.epoch}" if state.served.epoch != before else ""
    halt = f" halted {state.halt.status.number}" if state.halt.status.is_active else ""
    held = f" {state.held.phase} {state.held.name.epoch}" if state.held else ""
    return f"step {group.step - 1}{cut}{held}{halt}"


def draw_offers(store: SimStore, num_ranks: int, rng: Random) -> list[ShareName | None]:
    """Draw what each rank's Welcome names: mostly the last settled placement, or an older one."""
    newest = [store.name_of(epoch) for epoch in store.settled()[-2:]]
    is_mixed, name = rng.random() < 0.2, rng.choice(newest)
    return [
        None if rng.random() < 0.05 else rng.choice(newest) if is_mixed else name
        for _ in range(num_ranks)
    ]
