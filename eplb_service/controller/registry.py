"""All deployments of one controller, and whether it leads."""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from eplb_service.clock import Clock
from eplb_service.controller.counting import Counting
from eplb_service.controller.deployment import Deployment, Switches
from eplb_service.controller.driver import DeploymentDriver, Hooks
from eplb_service.controller.errands import Errands
from eplb_service.controller.leading import Leading, beat, take_the_lead
from eplb_service.controller.machine import begin
from eplb_service.controller.machine_state import DeploymentState, Effect
from eplb_service.controller.membership import require_redundancy
from eplb_service.controller.ports import Recorder, Store
from eplb_service.controller.records import Note
from eplb_service.controller.recovery import recovered_state
from eplb_service.controller.teller import Teller
from eplb_service.controller.tuning import Tuner
from eplb_service.domain.directory import Directory
from eplb_service.domain.errors import InvalidRequest, NotLeader, StoreConflict, UnknownDeployment
from eplb_service.domain.ids import Epoch, Generation, Revision
from eplb_service.protocol.messages import Hello

log = logging.getLogger(__name__)

NO_OVERRIDES = "{}"


@dataclass(frozen=True, slots=True)
class Tools:
    """What the controller works with."""

    store: Store
    clock: Clock
    recorder: Recorder
    tuner: Tuner
    leading: Leading = field(default_factory=Leading)
    directory: Directory = field(default_factory=Directory)


class Registry:
    """Finds deployments, takes new ones in, and keeps their drivers running."""

    def __init__(self, tools: Tools, teller: Teller) -> None:
        self.tools = tools
        self.generation = Generation(0)
        """0 until this controller leads, and again once it was fenced."""
        self.fenced = asyncio.Event()
        self._teller = teller
        self._counting = Counting(clock=tools.clock, recorder=tools.recorder)
        self._deployments: dict[str, Deployment] = {}
        self._tasks: asyncio.TaskGroup | None = None

    async def lead(self, tasks: asyncio.TaskGroup) -> None:
        """Fence every earlier controller and take over what is on record.

        One that stands by waits for its turn first.
        """
        self._tasks = tasks
        tools = self.tools
        generation = await take_the_lead(tools.store, tools.clock, tools.leading)
        for name in filter(tools.directory.is_mine, await tools.store.deployments()):
            found = await self.tools.store.recover(name)
            assert found is not None
            overrides, trouble = self.tools.tuner.usable(found.settings)
            tuning = self.tools.tuner.tuning(overrides)
            state = recovered_state(found, pace=tuning.pace, now_s=self.tools.clock.wall_s())
            switches = Switches(found.freeze, overrides, found.drained)
            spent = found.settled.wave.epoch, found.highest_revision
            deployment = self._admit(name, state, switches, generation, spent=spent)
            if trouble:
                text = f"overrides set aside: {trouble}; on record are {found.settings}"
                self._teller.note(deployment, "failure", text)
        self.generation = generation
        tasks.create_task(
            beat(tools.store, generation, tools.leading, self.step_down), name="beats"
        )
        log.info(
            "controller leads",
            extra={"generation": generation, "deployments": sorted(self._deployments)},
        )

    def require_leading(self) -> None:
        """Raise NotLeader unless this controller leads."""
        if not self.generation:
            raise NotLeader(
                "this controller does not lead (it is starting, or another took over); "
                "connect again, the leader answers on the same address"
            )

    async def deployment_of(self, hello: Hello) -> Deployment:
        """Return the rank's deployment; a new one is admitted.

        Raises NotLeader, Elsewhere, and RegistrationRefused where engine and settings disagree on
        slots.
        """
        self.require_leading()
        name = hello.identity.name
        self.tools.directory.require_mine(name)
        require_redundancy(hello, self.tools.tuner.tuning(NO_OVERRIDES).num_redundant)
        if name not in self._deployments:
            tuning = self.tools.tuner.tuning(NO_OVERRIDES)
            state = begin(hello, pace=tuning.pace, now_s=self.tools.clock.wall_s())
            self._admit(name, state, Switches(None, NO_OVERRIDES), self.generation)
        return self._deployments[name]

    def find(self, name: str) -> Deployment:
        """Return the deployment named, or the only one where the name is empty.

        Raises UnknownDeployment, listing the known ones, Elsewhere, or InvalidRequest.
        """
        self.require_leading()
        if name:
            self.tools.directory.require_mine(name)
        known = ", ".join(sorted(self._deployments)) or "none has registered yet"
        if not name and len(self._deployments) == 1:
            return next(iter(self._deployments.values()))
        if not name and self._deployments:
            raise InvalidRequest(f"name a deployment; there are several: {known}")
        if name not in self._deployments:
            raise UnknownDeployment(f"no deployment {name or 'at all'}; known: {known}")
        return self._deployments[name]

    async def keep(self, deployment: Deployment, note: Note) -> None:
        """Write an operator's act; raises StoreConflict, as one that leads no more, when fenced."""
        errands = deployment.driver.errands
        try:
            await self.tools.store.keep(errands.generation, errands.deployment, note)
        except StoreConflict as fenced:
            self.step_down(fenced)
            raise

    def all(self) -> Iterator[Deployment]:
        """Every deployment, by name."""
        return iter([self._deployments[name] for name in sorted(self._deployments)])

    def _admit(
        self,
        name: str,
        state: DeploymentState,
        switches: Switches,
        generation: Generation,
        *,
        spent: tuple[Epoch, Revision] = (Epoch(0), Revision(0)),
    ) -> Deployment:
        tools = self.tools
        errands = Errands(
            name,
            generation=generation,
            store=tools.store,
            clock=tools.clock,
            cadence=tools.tuner.tuning(switches.overrides).cadence,
        )

        def on_effect(effect: Effect, _: DeploymentState) -> None:
            self._counting.performed(self._deployments[name], effect)
            self._teller.tell(self._deployments[name], effect)

        driver = DeploymentDriver(state, errands=errands, hooks=Hooks(on_effect, self.step_down))
        deployment = Deployment(driver, switches, tools.tuner, spent=spent)
        self._deployments[name] = deployment
        self._counting.begin(name)
        assert self._tasks is not None
        self._tasks.create_task(driver.run(), name=f"deployment {name}")
        return deployment

    def step_down(self, fenced: StoreConflict) -> None:
        """Another controller leads: say nothing more to anybody."""
        log.error("controller fenced", extra={"error": str(fenced)})
        self.generation = Generation(0)
        for deployment in self._deployments.values():
            deployment.driver.errands.close("another controller leads now; connect again")
        self.fenced.set()
