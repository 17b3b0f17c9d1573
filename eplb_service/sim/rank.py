"""One rank: the real machine, and slots whose content is what was really put there.

Axes    L MoE layers   E experts   S the rank's local slots   J dispatch rows
"""

from collections.abc import Callable

import numpy as np

from eplb_service.domain.deployment import (
    Counting,
    CountMeaning,
    DeploymentIdentity,
    ModelShape,
    RankProfile,
)
from eplb_service.domain.detours import Place, around, place_number, place_of
from eplb_service.domain.ids import Incarnation
from eplb_service.domain.placement import Placement
from eplb_service.domain.shares import ShareName
from eplb_service.domain.wave import Order
from eplb_service.protocol import rank as machine
from eplb_service.protocol.messages import Hello, ToMachine, Word
from eplb_service.protocol.rank_state import (
    ApplyShares,
    Audit,
    BeginRound,
    Discard,
    Effect,
    Event,
    Offer,
    RaiseHalt,
    RouteAround,
    RouteBack,
    Say,
    Switch,
    initial_state,
    status,
)
from eplb_service.sim.store import Stand
from eplb_service.sim.transfers import Transfers
from eplb_service.sim.waves import Deployment

IDENTITY = DeploymentIdentity("sim", "0", "serve", 0, "0", "none")
SPOILED = -9


def shape_of(deployment: Deployment) -> ModelShape:
    """Shape of the model that is simulated."""
    initial = deployment.initial
    return ModelShape(
        layers=tuple(range(initial.num_layers)),
        num_experts=initial.num_experts,
        num_shared=0,
        top_k=1,
        bytes_per_expert=1,
    )


class SimRank:
    """What one process of the rank group holds."""

    def __init__(
        self,
        rank: int,
        deployment: Deployment,
        *,
        incarnation: Incarnation,
        loaded: tuple[ShareName, Stand],
        transfers: Transfers,
    ) -> None:
        name, stand = loaded
        layout = deployment.initial.layout
        self.rank = rank
        self.deployment = deployment
        self.own = layout.slots_of(rank)
        self.base = layout.base(rank)
        self.placement: Placement = stand.placement
        self.slots: list[list[int]] = stand.placement.phy2log[:, self.own].tolist()
        """[L, S] the expert whose weights really are in each slot."""
        self.tables: list[list[list[int]]] = stand.shares.table_of(rank).tolist()
        """[L, E, J] in use."""
        self._ordered = self.tables
        """[L, E, J] in use but for detours."""
        self.rotten: set[Place] = set()
        """Slots whose content is lost and not restored."""
        self._first_tables = list(self.tables)
        """Those of revision 0: a cutover goes back to them in the layers that it leaves alone."""
        self._staged: dict[tuple[int, int], int] = {}
        self._transfers = transfers
        self.audits: list[int] = []
        self.num_changes = 0
        """How often slots or tables were written."""
        self.state = initial_state(
            incarnation=incarnation, ownership=deployment.ownership, served=name
        )
        self.say: Callable[[Word], None] = lambda _: None

    def handle(self, event: Event) -> tuple[Effect, ...]:
        """Step the machine and do what it asks for."""
        self.state, effects = machine.step(self.state, event)
        for effect in effects:
            self.perform(effect)
        return effects

    def receive(self, word: ToMachine, *, fault: Offer | None = None) -> None:
        """Take a word from the controller."""
        self.handle(fault or (Offer(word, None) if isinstance(word, Order) else word))

    def perform(self, effect: Effect) -> None:
        """Do one thing that the machine asks for."""
        match effect:
            case Say(word):
                self.say(word)
            case BeginRound(order, number):
                self._transfers.begin(self.rank, order, number)
            case Switch(order, _):
                self._switch(order)
            case Discard():
                self._staged = {}
            case ApplyShares(_, shares):
                self._use(shares.tables[0].tolist())
                self.num_changes += 1
            case Audit(number):
                self.audits.append(number)
            case RouteAround(numbers):
                self._route_around(numbers)
            case RouteBack():
                self.tables = self._ordered
                self.num_changes += 1

    def rot(self, place: Place) -> None:
        """Lose what one of this rank's slots holds, and notice it."""
        self.slots[place.layer][place.slot - self.base] = SPOILED
        self.rotten.add(place)
        self.num_changes += 1
        number = place_number(place.layer, place.slot, num_slots=self.placement.layout.num_slots)
        self.handle(RaiseHalt("a slot rotted", number))

    def _route_around(self, numbers: tuple[int, ...]) -> None:
        """Avoid slots; the newest of them is filled again at once, for nobody reads it now."""
        num_slots = self.placement.layout.num_slots
        avoided = [place_of(number, num_slots=num_slots) for number in numbers]
        table = np.array(self._ordered, dtype=np.int32)
        self.tables = around(table, self.placement, avoided).tolist()
        self.num_changes += 1
        newest = avoided[-1]
        if newest in self.rotten:
            expert = int(self.placement.phy2log[newest.layer, newest.slot])
            self.slots[newest.layer][newest.slot - self.base] = expert
            self.rotten.remove(newest)

    def stage(self, layer: int, target: int, content: int) -> None:
        """Put what a transfer brought beside the slots."""
        self._staged[layer, target] = content

    def is_clean(self) -> bool:
        """Whether every slot holds what the map says."""
        return self.slots == self.placement.phy2log[:, self.own].tolist()

    def hello(self, *, is_idle: bool) -> Hello:
        """Introduce this rank."""
        return Hello(
            identity=IDENTITY,
            shape=shape_of(self.deployment),
            profile=self._profile(),
            incarnation=self.state.incarnation,
            placement=self.placement,
            status=status(self.state, is_idle=is_idle),
            generation_seen=self.state.generation,
        )

    def _profile(self) -> RankProfile:
        return RankProfile(
            rank=self.rank,
            num_ranks=self.deployment.num_ranks,
            node="",
            supernode="",
            adapter="sim",
            counting=Counting(CountMeaning.RECEIVED),
            ownership=self.deployment.ownership,
            num_slots=self.deployment.initial.layout.slots_per_rank[self.rank],
            staging_rows=1,
            sets_shares=True,
        )

    def _use(self, tables: list[list[list[int]]]) -> None:
        self.tables = self._ordered = tables

    def _switch(self, order: Order) -> None:
        """Install what is staged; a slot that lacks it is spoiled, as real memory would be."""
        after = order.content.apply(self.placement)
        before = self.placement.phy2log
        changed: list[int] = order.content.layers.tolist()
        for layer in changed:
            for slot in range(self.base, self.base + len(self.slots[layer])):
                if after.phy2log[layer, slot] != before[layer, slot]:
                    content = -1 if after.phy2log[layer, slot] < 0 else SPOILED
                    arrived = self._staged.get((layer, slot), content)
                    self.slots[layer][slot - self.base] = arrived
        for at, layer in enumerate(changed):
            self._first_tables[layer] = order.dispatch[at].tolist()
        self._use(list(self._first_tables))
        self.placement, self._staged = after, {}
        self.num_changes += 1
