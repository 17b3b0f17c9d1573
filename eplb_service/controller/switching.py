"""The verbs that set a deployment's switches: freeze, resume, settings."""

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite

from eplb_service.controller.acting import why
from eplb_service.controller.deployment import Deployment
from eplb_service.controller.desk import ActRequest
from eplb_service.controller.looks import status_view
from eplb_service.controller.machine_state import FaultCleared
from eplb_service.controller.once import once
from eplb_service.controller.reading import name_of
from eplb_service.controller.records import Freeze, FreezeNote, SettingsNote
from eplb_service.controller.registry import Registry
from eplb_service.controller.runs import missing_ranks
from eplb_service.controller.teller import Teller
from eplb_service.controller.views import StatusView
from eplb_service.domain.errors import DeploymentHalted, InvalidRequest, NotReady
from eplb_service.protocol.messages import Resume

LONGEST_FREEZE_S = 366 * 86_400.0
"""A freeze is a pause; planning is switched off by its setting."""


class SwitchVerbs:
    """freeze, resume and set_config of a desk.ActDesk."""

    def __init__(self, registry: Registry, teller: Teller) -> None:
        self._registry = registry
        self._teller = teller

    async def freeze(self, act: ActRequest, seconds: float) -> StatusView:
        """Allow no automatic plan for a time; 0 seconds lifts it."""
        deployment = self._registry.find(act.deployment)
        verb = f"freeze {seconds}" if seconds else "unfreeze"
        return await once(deployment, act, verb, lambda: self._freeze(deployment, act, seconds))

    async def resume(self, act: ActRequest, halt_number: int) -> StatusView:
        """Ask all ranks to clear a halt, or clear the controller's own fault (number 0)."""
        deployment = self._registry.find(act.deployment)
        verb = f"resume {halt_number}"
        return await once(deployment, act, verb, lambda: self._resume(deployment, act, halt_number))

    async def set_config(self, act: ActRequest, values: Mapping[str, str]) -> Mapping[str, str]:
        """Change settings by dotted name; all or none."""
        deployment = self._registry.find(act.deployment)
        verb = f"config {sorted(values.items())}"
        return await once(deployment, act, verb, lambda: self._set(deployment, act, values))

    async def _freeze(self, deployment: Deployment, act: ActRequest, seconds: float) -> StatusView:
        clock = self._registry.tools.clock
        if not (isfinite(seconds) and 0 <= seconds <= LONGEST_FREEZE_S):
            raise InvalidRequest(
                f"a freeze of {seconds:g} s; expected more than 0 and at most "
                f"{LONGEST_FREEZE_S:.0f} s (a year), or 0 to lift it; nothing changed"
            )
        freeze = Freeze(clock.wall_s() + seconds, act.who, act.reason) if seconds else None
        await self._registry.keep(deployment, FreezeNote(freeze))
        deployment.switches = replace(deployment.switches, freeze=freeze)
        text = f"plans frozen for {seconds:.0f} s" if seconds else "freeze lifted"
        kind = "freeze" if seconds else "unfreeze"
        self._teller.note(deployment, kind, f"{text}: {why(act)}", who=name_of(act.who))
        return status_view(deployment, now_s=clock.monotonic_s(), wall_s=clock.wall_s())

    async def _resume(
        self, deployment: Deployment, act: ActRequest, halt_number: int
    ) -> StatusView:
        clock = self._registry.tools.clock
        state, errands = deployment.driver.state, deployment.driver.errands
        halts = {m.status.halt for m in (state.membership.known if state.membership else ())}
        active = {halt.number for halt in halts if halt.is_active}
        if not active and not state.fault:
            raise InvalidRequest(f"no halt stands at {deployment.name}; nothing to resume")
        if active and halt_number not in active:
            raise DeploymentHalted(
                f"halt {halt_number} does not stand; halt {max(active)} does; "
                f"resume it by its number once its cause is dealt with"
            )
        away = missing_ranks(state)
        if active and away:
            raise NotReady(
                f"ranks {away} are not connected and would not hear of it, and a halt ends only "
                f"where all ranks wish so; halt {halt_number} stands, resume it when they are back"
            )
        if state.fault:
            await deployment.driver.ask(FaultCleared())
        for rank in range(len(state.membership.members) if active and state.membership else 0):
            membership = state.membership
            assert membership is not None
            errands.tell(rank, Resume(errands.generation, membership.incarnation, halt_number))
        what = f"halt {halt_number}" if active else f"fault ({state.fault})"
        text = f"{what} resumed: {why(act)}"
        self._teller.note(deployment, "resume", text, who=name_of(act.who))
        return status_view(deployment, now_s=clock.monotonic_s(), wall_s=clock.wall_s())

    async def _set(
        self, deployment: Deployment, act: ActRequest, values: Mapping[str, str]
    ) -> Mapping[str, str]:
        tools = self._registry.tools
        while True:
            before = deployment.switches.overrides
            merged = tools.tuner.merged(before, values)
            await self._registry.keep(deployment, SettingsNote(merged))
            if deployment.switches.overrides == before:
                break  # else another change came meanwhile, and this one builds on it
        deployment.switches = replace(deployment.switches, overrides=merged)
        changed = ", ".join(f"{name}={value}" for name, value in sorted(values.items()))
        text = f"{changed}: {why(act)}"
        self._teller.note(deployment, "config", text, who=name_of(act.who))
        return tools.tuner.shown(merged)
