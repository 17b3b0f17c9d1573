"""Failovers in the simulator: a leader dies, or is only thought dead, with a wave in flight."""

from dataclasses import dataclass
from random import Random

from eplb_service.domain.ids import Epoch
from eplb_service.protocol.wave_state import WavePhase
from eplb_service.sim.convergence import converge
from eplb_service.sim.network import Weather
from eplb_service.sim.stage import Scope
from eplb_service.sim.waves import random_deployment
from eplb_service.sim.work import Work
from eplb_service.sim.world import World

ROUGH = Weather(lost=0.03, repeated=0.08, old=0.03)
NUM_EVENTS = 120
MOST_TRIES = 3000


class WatchedWorld(World):
    """Remembers every cutover of every rank."""

    def __init__(self, rng: Random) -> None:
        self.cutovers: list[tuple[int, int, Epoch]] = []
        """Incarnation, rank and epoch, once for each cutover."""
        self._served: dict[tuple[int, int], Epoch] = {}
        super().__init__(random_deployment(rng), rng, ROUGH, rng.choice(tuple(Scope)))

    def look(self) -> None:
        """Check every invariant now, and see who has cut over."""
        super().look()
        for rank in self.group.ranks:
            key, epoch = (self.group.incarnation, rank.rank), rank.state.served.epoch
            if self._served.setdefault(key, epoch) != epoch:
                self.cutovers.append((*key, epoch))
            self._served[key] = epoch


@dataclass(frozen=True, slots=True)
class Tally:
    """What many failovers came to."""

    failovers: int
    commits: int
    """Epochs that were settled."""
    lost: int
    """Epochs that some rank cut over to and the record does not know as settled, or the reverse."""
    doubled: int
    """Cutovers of one rank to an epoch that it had cut over to before."""
    split: int
    """Failovers after which the former leader went on, and had to be fenced."""


def fail_over(seed: int) -> Tally:
    """Run one world with one failover in the middle of a wave; raises Violation if any is found."""
    rng = Random(seed)
    world = WatchedWorld(rng)
    world.start_controller()
    work = Work(world)
    _serve_until_in_flight(world, work)
    _serve(world, work, rng.randrange(40))
    leader = world.leaders[-1]
    is_split = rng.random() < 0.5
    leader.is_alive = is_split
    world.start_controller()
    _serve(world, work, NUM_EVENTS)
    converge(world)
    return _tally(world, is_split=is_split)


def _serve_until_in_flight(world: World, work: Work) -> None:
    for _ in range(MOST_TRIES):
        wave = world.leaders[-1].wave
        if wave is not None and not wave.is_over:
            return
        _serve(world, work, 1)
    raise AssertionError("no wave left in time")


def _serve(world: World, work: Work, num_events: int) -> None:
    table = work.table()
    events, weights = [event for _, event in table], [weight for weight, _ in table]
    for _ in range(num_events):
        while not world.rng.choices(events, weights)[0]():
            pass


def _tally(world: WatchedWorld, *, is_split: bool) -> Tally:
    world.look()
    records = world.store.records.items()
    settled = {epoch for epoch, record in records if record.phase is WavePhase.SETTLED}
    reached = {epoch for _, _, epoch in world.cutovers}
    return Tally(
        failovers=1,
        commits=len(settled),
        lost=len((settled | reached) - (settled & reached)),
        doubled=len(world.cutovers) - len(set(world.cutovers)),
        split=int(is_split),
    )


def add(tallies: list[Tally]) -> Tally:
    """Add up."""
    return Tally(
        failovers=sum(one.failovers for one in tallies),
        commits=sum(one.commits for one in tallies),
        lost=sum(one.lost for one in tallies),
        doubled=sum(one.doubled for one in tallies),
        split=sum(one.split for one in tallies),
    )
