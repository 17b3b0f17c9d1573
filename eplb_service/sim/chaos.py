"""Chance drives a world: first with faults of every kind, then without, until it converges."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from eplb_service.domain.ids import Epoch
from eplb_service.protocol.messages import DropReason, Idle
from eplb_service.protocol.rank_state import Withdraw
from eplb_service.protocol.wave_state import WavePhase
from eplb_service.sim.controller import SimController
from eplb_service.sim.network import Weather
from eplb_service.sim.story import Violation
from eplb_service.sim.waves import random_deployment
from eplb_service.sim.world import World

LONG = 100_000
NUM_ROUNDS_TO_CONVERGE = 60
NUM_TRIES = 2


@dataclass(frozen=True, slots=True)
class Course:
    """How long a run is faulty, and how bad the network is meanwhile."""

    num_events: int = 220
    weather: Weather = Weather(lost=0.08, repeated=0.15, old=0.06)


def simulate(rng: Random, course: Course | None = None) -> World:
    """Run one world to its end; raises Violation, with the transcript, where one is found.

    The same state of `rng` gives the same transcript, byte for byte.
    """
    course = course or Course()
    world = World(random_deployment(rng), rng, course.weather)
    chaos = Chaos(world)
    try:
        world.start_controller()
        for _ in range(course.num_events):
            chaos.happen()
        chaos.converge()
    except Exception as broken:
        raise Violation(f"{world.story.text(last=150)}\n{type(broken).__name__}: {broken}") from broken
    return world


class Chaos:
    """What happens next."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng
        self._has_clashes = world.rng.random() < 0.2
        table: tuple[tuple[float, Callable[[], None]], ...] = (
            (44, self._deliver),
            (22, self._perform),
            (9, self._step),
            (12, self._carry),
            (8, self._finish),
            (5, self._nudge),
            (4, self._start_wave),
            (1.5, self._share),
            (1.5, self._resume),
            (1.5, self._audit),
            (1.0, self._greet),
            (0.5, self._give_up),
            (0.5, self._withdraw),
            (0.3, self._halt),
            (0.5, self._crash_controller),
            (0.4, self._start_controller),
            (0.3, self._restart_group),
            (0.5, self._idle),
        )
        self._events = [event for _, event in table]
        weights = [weight for weight, _ in table]
        self._until = [sum(weights[: at + 1]) for at in range(len(weights))]

    def happen(self) -> None:
        """One event by chance."""
        self._rng.choices(self._events, cum_weights=self._until)[0]()

    def converge(self) -> None:
        """Stop all faults; every open wave must end, and a fresh one settle."""
        world = self._world
        world.story.tell("faults stop")
        world.network.heal()
        world.group.is_idle = False
        if not world.leaders:
            world.start_controller()
        world.greet()
        leader = world.leaders[-1]
        leader.patience = LONG
        goal = Goal(world, leader)
        for _ in range(NUM_ROUNDS_TO_CONVERGE):
            self._quiet_round(leader)
            if goal.is_reached():
                return
        raise Violation(f"nothing fresh settles after faults stopped: {leader.wave}")

    # ---- events ---------------------------------------------------------------

    def _any_leader(self) -> SimController | None:
        leaders = self._world.leaders
        return self._rng.choice(leaders) if leaders else None

    def _deliver(self) -> None:
        self._world.deliver(fault=self._rng.random() < 0.01)

    def _perform(self) -> None:
        busy = [leader for leader in self._world.leaders if leader.has_todo]
        if busy:
            leader = self._rng.choice(busy)
            effect = leader.perform()
            self._world.story.tell(f"controller {leader.number} {effect}")
            self._world.look()

    def _step(self) -> None:
        world = self._world
        if world.group.is_idle:
            return
        dies = self._rng.random() < 0.02
        world.run_step(dies_at=self._rng.randrange(world.deployment.num_ranks) if dies else None)

    def _carry(self) -> None:
        world, moves = self._world, self._world.group.transfers.movable()
        if moves:
            move = self._rng.choice(moves)
            world.group.carry(move, self._rng, spoil=0.04)
            world.look()

    def _finish(self) -> None:
        world, done = self._world, self._world.group.transfers.finished()
        if done:
            rank = self._rng.choice(done)
            world.story.tell(f"r{rank} finishes its part of a round")
            world.group.finish(rank)
            world.look()

    def _nudge(self) -> None:
        leader = self._any_leader()
        if leader:
            leader.nudge()

    def _start_wave(self) -> None:
        leader = self._any_leader()
        if leader:
            is_wrong = self._rng.random() < 0.05
            base = self._rng.choice(list(self._world.store.stands)) if is_wrong else None
            self._world.start_wave(leader, num_steps=self._rng.choice((4, 12, 40)), base=base)

    def _share(self) -> None:
        leader = self._any_leader()
        if leader:
            again = self._has_clashes and self._rng.random() < 0.5
            self._world.start_shares(leader, again=again)

    def _resume(self) -> None:
        leader = self._any_leader()
        if leader and leader.beliefs.halt_number is not None:
            leader.resume()

    def _audit(self, clean: float = 0.85) -> None:
        asked = [rank.rank for rank in self._world.group.ranks if rank.audits]
        if asked:
            rank, is_clean = self._rng.choice(asked), self._rng.random() < clean
            self._world.story.tell(f"r{rank} audits: {is_clean}")
            self._world.group.audit(rank, is_clean=is_clean)
            self._world.look()

    def _greet(self) -> None:
        self._world.greet()

    def _give_up(self) -> None:
        leader = self._any_leader()
        if leader:
            self._world.story.tell(f"controller {leader.number} is told to abort")
            leader.give_up("operator")

    def _withdraw(self) -> None:
        rank = self._rng.choice(self._world.group.ranks)
        if rank.state.held:
            self._world.story.tell(f"r{rank.rank} withdraws {rank.state.held.name.epoch}")
            rank.handle(Withdraw(rank.state.held.name, DropReason.TRANSFER_FAILED))
            self._world.look()

    def _halt(self) -> None:
        self._world.raise_halt(self._rng.randrange(self._world.deployment.num_ranks))

    def _crash_controller(self) -> None:
        leader = self._any_leader()
        if leader:
            self._world.story.tell(f"controller {leader.number} crashes")
            leader.is_alive = False

    def _start_controller(self) -> None:
        if len(self._world.leaders) < 2:
            self._world.start_controller()

    def _restart_group(self) -> None:
        self._world.story.tell("the group is restarted")
        self._world.restart_group()

    def _idle(self) -> None:
        group = self._world.group
        group.is_idle = not group.is_idle
        for rank in group.ranks:
            rank.say(Idle(group.is_idle, group.step))

    # ---- no more faults -------------------------------------------------------

    def _quiet_round(self, leader: SimController) -> None:
        """Everything on its way arrives, everything begun ends, and the group steps on."""
        world = self._world
        for _ in range(LONG):
            for controller in world.leaders:
                while controller.has_todo and controller.is_alive:
                    controller.perform()
            world.look()
            if not self._quiet_event():
                break
        for _ in range(world.deployment.agree_every):
            world.run_step()
        if leader.beliefs.halt_number is not None:
            leader.resume()
        leader.nudge()

    def _quiet_event(self) -> bool:
        world = self._world
        group, network = world.group, world.network
        if network.num_waiting:
            return world.deliver()
        moves = group.transfers.movable()
        if moves:
            group.carry(self._rng.choice(moves), self._rng, spoil=0.0)
        elif group.transfers.finished():
            self._finish()
        elif any(rank.audits for rank in group.ranks):
            self._audit(clean=1.0)
        else:
            return False
        return True


class Goal:
    """A fresh wave settles, and then fresh shares come into use on all ranks."""

    def __init__(self, world: World, leader: SimController) -> None:
        self._world = world
        self._leader = leader
        self._fresh: Epoch | None = None
        self._has_shares = False
        self._num_tries = 1

    def is_reached(self) -> bool:
        """Look, and start what is to be seen next."""
        world, leader = self._world, self._leader
        if not leader.is_alive:
            raise Violation("the only controller was fenced")
        wave = leader.wave
        if self._fresh is None:
            if world.start_wave(leader, num_steps=LONG):
                assert leader.wave is not None
                self._fresh = leader.wave.wave.epoch
            return False
        assert wave is not None
        if wave.phase is WavePhase.ABORTED:
            self._try_again(wave.reason)
            return False
        if wave.phase is not WavePhase.SETTLED:
            return False
        if not self._has_shares:
            self._has_shares = world.start_shares(leader)
            return False
        return leader.shares is not None and leader.shares.is_applied

    def _try_again(self, reason: str) -> None:
        """A halt that was on its way when faults stopped may end the first fresh wave."""
        if self._num_tries == NUM_TRIES:
            raise Violation(f"fresh wave {NUM_TRIES} of {NUM_TRIES} ended so: {reason}")
        self._num_tries += 1
        self._fresh = None
