"""What a world consists of, and how its parts hear of each other."""

from enum import StrEnum
from random import Random

from eplb_service.domain.ids import Epoch, Generation, Incarnation
from eplb_service.domain.shares import ShareName
from eplb_service.domain.wave import first_shares
from eplb_service.protocol.messages import Hello, Word
from eplb_service.sim.checks import Checks
from eplb_service.sim.controller import SimController
from eplb_service.sim.desk import Desk, Post
from eplb_service.sim.group import Group
from eplb_service.sim.machine_desk import MachineDesk
from eplb_service.sim.network import FAIR, Letter, Network, Weather
from eplb_service.sim.planner import SimPlanner
from eplb_service.sim.store import SimStore, Stand, WaveRecord
from eplb_service.sim.story import Story
from eplb_service.sim.streams import Streams
from eplb_service.sim.wave_desk import WaveDesk
from eplb_service.sim.waves import Deployment


class Scope(StrEnum):
    """How much of the controller is the real one."""

    WAVES = "waves"
    """The wave machine; words overtake each other and arrive again at will."""
    MACHINE = "machine"
    """The whole machine of a deployment, with streams that keep their order or break."""


class Stage:
    """One deployment, its controllers, store and network."""

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
        self.is_calm = weather is FAIR
        """Whether planner, store and operators do as they should."""
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

    # ---- plumbing -------------------------------------------------------------

    def _desk(self, generation: Generation, post: Post) -> Desk:
        if self.planner is None:
            return WaveDesk(generation, self.deployment.num_ranks, self.store, post)
        return MachineDesk(generation, self.store, post, self._spent)

    def _spent(self, record: WaveRecord) -> None:
        epoch = record.wave.epoch
        self._checks.name(first_shares(epoch, record.content), record.after.shares)
        self._name_loaded(epoch, record.after)

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
