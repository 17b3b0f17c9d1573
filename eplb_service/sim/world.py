"""A whole deployment in one process: group, controllers, store and the network between.

Everything that can happen is a method; what happens when is chance's, in chaos.py.
After every event the invariants are looked at.
"""

from collections.abc import Iterable
from enum import StrEnum
from random import Random

from eplb_service.domain.ids import Epoch, Generation, Incarnation
from eplb_service.domain.shares import ShareName
from eplb_service.domain.wave import Order, first_shares
from eplb_service.protocol.messages import Hello, NackReason, Resume, ToMachine, Word
from eplb_service.protocol.rank_state import Offer
from eplb_service.sim.checks import Checks
from eplb_service.sim.controller import SimController
from eplb_service.sim.desk import Desk, Post
from eplb_service.sim.drafts import draw_wave
from eplb_service.sim.group import Group, GroupDied
from eplb_service.sim.machine_desk import MachineDesk
from eplb_service.sim.network import FAIR, Letter, Network, Weather
from eplb_service.sim.planner import SimPlanner
from eplb_service.sim.store import SimStore, Stand, Trouble, WaveRecord
from eplb_service.sim.story import Story, describe
from eplb_service.sim.streams import Streams
from eplb_service.sim.wave_desk import WaveDesk
from eplb_service.sim.waves import Deployment

FEW = 1000
"""Steps of life of a wave that may expire in a run."""
RUDE = 0.1
"""Chance that a plan is asked for although one runs, or somebody is missing."""
PLANNER_FAULT = 0.05


class Scope(StrEnum):
    """How much of the controller is the real one."""

    WAVES = "waves"
    """The wave machine; words overtake each other and arrive again at will."""
    MACHINE = "machine"
    """The whole machine of a deployment, with streams that keep their order or break."""


class World:
    """One deployment and everything that acts on it."""

    def __init__(
        self, deployment: Deployment, rng: Random, weather: Weather, scope: Scope = Scope.WAVES
    ) -> None:
        self.deployment = deployment
        self.rng = rng
        self.story = Story()
        self.store = SimStore(deployment)
        is_whole = scope is Scope.MACHINE
        self.network = (Streams if is_whole else Network)(rng, weather)
        self.planner = SimPlanner(deployment, rng) if is_whole else None
        self._weather = weather
        self.controllers: list[SimController] = []
        self._checks = Checks()
        self._name_loaded(Epoch(0))
        self.group = self._new_group([None] * deployment.num_ranks)

    def look(self) -> None:
        """Check every invariant now."""
        self._checks.look(self.group, self.store)

    @property
    def leaders(self) -> list[SimController]:
        """Controllers that live, the newest last."""
        return [controller for controller in self.controllers if controller.is_alive]

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
            return self._start_plan(controller, desk, num_steps=num_steps)
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

    def _start_plan(self, controller: SimController, desk: MachineDesk, *, num_steps: int) -> bool:
        """Have a plan drawn and asked for; now and then one that may not start."""
        assert self.planner is not None
        is_rude = self._weather is not FAIR and self.rng.random() < RUDE
        if desk.state is None or not controller.is_alive:
            return False
        if not controller.may_start and not is_rude:
            return False
        fault = 0.0 if self._weather is FAIR else PLANNER_FAULT
        plan = self.planner.draw(desk.state, fault=fault)
        if isinstance(plan, str):
            self.story.tell(f"controller {controller.number}: {plan}")
            return False
        self.story.tell(
            f"controller {controller.number} asks for plan {plan.plan_id} by {plan.policy} from "
            f"{plan.base_epoch}, {len(plan.waves)} waves"
        )
        if num_steps < FEW:
            desk.be_patient(self.rng.choice((4, 8, 30)))
        desk.expire_within(num_steps)
        desk.ask(plan)
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

    def reconnect(self) -> None:
        """Ranks whose streams broke open new ones; the controller saw the old ones end."""
        broken, self.network.broken = self.network.broken, []
        for number, rank in broken:
            controller = self.controllers[number]
            if not controller.is_alive or (number, rank) in self.network.severed:
                continue
            self.story.tell(f"the stream of r{rank} with controller {number} broke")
            controller.desk.leave(rank, controller.beliefs.incarnation)
            self._greet_one(rank, number)

    def partition(self, controller: SimController, ranks: Iterable[int]) -> None:
        """Let nothing pass between a controller and some ranks; it sees their streams end."""
        for rank in ranks:
            self.network.sever((controller.number, rank))
            controller.desk.leave(rank, controller.beliefs.incarnation)

    def report(self, controller: SimController) -> None:
        """Every rank's load report tells its step."""
        for rank in self.group.ranks:
            if (controller.number, rank.rank) not in self.network.severed:
                controller.desk.stepped(rank.rank, self.group.incarnation, self.group.step)

    def be_calm(self) -> None:
        """No more faults of store and planner."""
        self._weather = FAIR
        self.store.trouble = lambda: Trouble.NONE

    def deliver(self, *, fault: bool = False) -> bool:
        """Let one letter arrive; an order may be found unsound where `fault`."""
        letter = self.network.take()
        if self.network.broken:
            self.reconnect()
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

    # ---- plumbing -------------------------------------------------------------

    def _desk(self, generation: Generation, post: Post) -> Desk:
        if self.planner is None:
            return WaveDesk(generation, self.deployment.num_ranks, self.store, post)
        return MachineDesk(generation, self.store, post, self._spent)

    def _spent(self, record: WaveRecord) -> None:
        epoch = record.wave.epoch
        self._checks.name(first_shares(epoch, record.content), record.after.shares)
        self._name_loaded(epoch, record.after)

    def _greet_one(self, rank: int, controller: int) -> None:
        hello = self.group.ranks[rank].hello(is_idle=self.group.is_idle)
        incarnation = self.group.incarnation
        self.network.send(Letter(controller, rank, incarnation, is_up=True, word=hello))

    def _new_group(self, offered: list[ShareName | None]) -> Group:
        last = self.group.incarnation if hasattr(self, "group") else 0
        group = Group(
            self.deployment, self.store, incarnation=Incarnation(last + 1), offered=offered
        )
        for rank in group.ranks:
            rank.say = lambda word, rank=rank.rank, group=group: self._rank_says(group, rank, word)
        self.story.tell(f"incarnation {group.incarnation} serves epoch {group.loaded.epoch}")
        return group

    def _rank_says(self, group: Group, rank: int, word: Word) -> None:
        group.note(rank, word)
        self._checks.hear(group.incarnation, word)
        self._say(rank, word)

    def _say(self, rank: int, word: Hello | Word) -> None:
        incarnation = self.group.incarnation
        for controller in self.leaders:
            self.network.send(Letter(controller.number, rank, incarnation, is_up=True, word=word))

    def _name_loaded(self, epoch: Epoch, stand: Stand | None = None) -> None:
        stand = stand or self.store.stands[epoch]
        self.store.stands[epoch] = stand
        self._checks.name(self.store.name_of(epoch), stand.shares)


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
