"""No more faults: every open wave must end, a fresh one settle, and fresh shares come into use."""

from eplb_service.protocol.wave_state import WavePhase
from eplb_service.sim.controller import SimController
from eplb_service.sim.links import reconnect, report
from eplb_service.sim.store import Trouble
from eplb_service.sim.story import Violation
from eplb_service.sim.world import World

LONG = 100_000
NUM_ROUNDS = 60
NUM_TRIES = 2


def converge(world: World) -> None:
    """Stop all faults and wait; raises Violation if the world does not come to rest."""
    world.story.tell("faults stop")
    world.network.heal()
    reconnect(world)
    world.is_calm = True
    world.store.trouble = lambda: Trouble.NONE
    world.group.is_idle = False
    if not any(c.generation == world.store.generation for c in world.leaders):
        world.start_controller()
    world.greet()
    leader = world.leaders[-1]
    leader.desk.be_patient(LONG)
    goal = Goal(world, leader)
    for _ in range(NUM_ROUNDS):
        _quiet_round(world, leader)
        if goal.is_reached():
            return
    raise Violation(f"nothing fresh settles after faults stopped: {leader.wave}")


def _quiet_round(world: World, leader: SimController) -> None:
    """Everything on its way arrives, everything begun ends, and the group steps on."""
    while _perform_all(world) or _quiet_event(world):
        world.look()
    for _ in range(world.deployment.agree_every):
        world.run_step()
    if leader.beliefs.halt_number is not None:
        leader.resume()
    report(world, leader)
    leader.nudge()
    _perform_all(world)


def _perform_all(world: World) -> bool:
    done = False
    for controller in world.leaders:
        while controller.has_todo and controller.is_alive:
            controller.perform()
            done = True
    return done


def _quiet_event(world: World) -> bool:
    group, rng = world.group, world.rng
    if world.network.num_waiting:
        return world.deliver()
    if moves := group.transfers.movable():
        group.carry(rng.choice(moves), rng, spoil=0.0)
    elif done := group.transfers.finished():
        group.finish(rng.choice(done))
    elif asked := [rank.rank for rank in group.ranks if rank.audits]:
        group.audit(rng.choice(asked), is_clean=True)
    else:
        return False
    return True


class Goal:
    """A fresh wave settles, and then fresh shares come into use on all ranks."""

    def __init__(self, world: World, leader: SimController) -> None:
        self._world = world
        self._leader = leader
        self._is_begun = False
        self._has_shares = False
        self._num_tries = 1

    def is_reached(self) -> bool:
        """Look, and start what is to be seen next."""
        world, leader = self._world, self._leader
        if not leader.is_alive:
            raise Violation("the only controller was fenced")
        wave = leader.wave
        if not self._is_begun or (wave is None and leader.may_start):
            self._is_begun = world.start_wave(leader, num_steps=LONG)
            return False
        if wave is None:
            return False
        if wave.phase is WavePhase.ABORTED:
            self._try_again(wave.reason)
            return False
        if wave.phase is not WavePhase.SETTLED:
            return False
        if not self._has_shares and leader.may_start:
            self._has_shares = world.start_shares(leader)
            return False
        return leader.shares is not None and leader.shares.is_applied

    def _try_again(self, reason: str) -> None:
        """A halt that was on its way when faults stopped may end the first fresh wave."""
        if self._num_tries == NUM_TRIES:
            raise Violation(f"fresh wave {NUM_TRIES} of {NUM_TRIES} ended so: {reason}")
        self._num_tries += 1
        self._is_begun = False
