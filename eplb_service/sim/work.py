"""What happens in a world without any fault: each event tells whether it could happen."""

from collections.abc import Callable

from eplb_service.sim.controller import SimController
from eplb_service.sim.links import report
from eplb_service.sim.world import World

Event = Callable[[], bool]
Weighted = tuple[float, Event]

SLOW = 0.9
"""Chance that a slow rank does not stage when it could."""


def any_leader(world: World) -> SimController | None:
    """Draw one of the controllers that live; None where none does."""
    leaders = world.leaders
    return world.rng.choice(leaders) if leaders else None


class Work:
    """The course of business."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng
        self._ranks = range(world.deployment.num_ranks)
        self._dies = world.rng.choice((0.0, 0.0, 0.01, 0.03))
        self._slow = {rank for rank in self._ranks if world.rng.random() < 0.1}
        """Ranks that stage late in this run."""
        self._has_clashes = world.rng.random() < 0.2

    def table(self) -> tuple[Weighted, ...]:
        """Every event with its weight."""
        return (
            (60, self._deliver),
            (40, self._perform),
            (8, self._step),
            (20, self._carry),
            (20, self._finish),
            (1.5, self._nudge),
            (8, self._start_wave),
            (1.5, self._share),
            (0.4, self._resume),
            (3, self._audit),
            (0.2, self._greet),
        )

    def _deliver(self) -> bool:
        return self._world.deliver(fault=self._rng.random() < 0.01)

    def _perform(self) -> bool:
        busy = [leader for leader in self._world.leaders if leader.has_todo]
        if not busy:
            return False
        leader = self._rng.choice(busy)
        done = leader.perform()
        self._world.story.tell(f"controller {leader.number} {done}")
        self._world.look()
        return True

    def _step(self) -> bool:
        world = self._world
        if world.group.is_idle:
            return False
        dies = self._rng.random() < self._dies
        world.run_step(dies_at=self._rng.randrange(world.deployment.num_ranks) if dies else None)
        return True

    def _carry(self) -> bool:
        world, moves = self._world, self._world.group.transfers.movable()
        if moves:
            move = self._rng.choice(moves)
            _, target = world.group.transfers.ends(move)
            if target in self._slow and self._rng.random() < SLOW:
                return False
            world.group.carry(move, self._rng, spoil=0.02)
            world.look()
        return bool(moves)

    def _finish(self) -> bool:
        world, done = self._world, self._world.group.transfers.finished()
        if done:
            rank = self._rng.choice(done)
            world.story.tell(f"r{rank} finishes its part of a round")
            world.group.finish(rank)
            world.look()
        return bool(done)

    def _nudge(self) -> bool:
        leader = any_leader(self._world)
        if leader:
            if self._rng.random() < 0.7:
                report(self._world, leader)
            leader.nudge()
        return leader is not None

    def _start_wave(self) -> bool:
        leader = any_leader(self._world)
        if leader is None:
            return False
        is_wrong = self._rng.random() < 0.04
        base = self._rng.choice(list(self._world.store.stands)) if is_wrong else None
        num_steps = self._rng.choice((6, 20, 60, 60))
        return self._world.start_wave(leader, num_steps=num_steps, base=base)

    def _share(self) -> bool:
        leader = any_leader(self._world)
        again = self._has_clashes and self._rng.random() < 0.5
        return leader is not None and self._world.start_shares(leader, again=again)

    def _resume(self) -> bool:
        leader = any_leader(self._world)
        if leader is None or leader.beliefs.halt_number is None:
            return False
        leader.resume()
        return True

    def _audit(self, clean: float = 0.85) -> bool:
        asked = [rank.rank for rank in self._world.group.ranks if rank.audits]
        if asked:
            rank, is_clean = self._rng.choice(asked), self._rng.random() < clean
            self._world.story.tell(f"r{rank} audits: {is_clean}")
            self._world.group.audit(rank, is_clean=is_clean)
            self._world.look()
        return bool(asked)

    def _greet(self) -> bool:
        self._world.greet()
        return True
