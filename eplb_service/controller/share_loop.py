"""Shares for every deployment at their own, fast interval: no weight moves for them."""

import asyncio
import logging
from dataclasses import dataclass, replace

from eplb_service.controller.deployment import Deployment
from eplb_service.controller.foresight import expected
from eplb_service.controller.looks import heat_now, measured_window
from eplb_service.controller.machine_state import DeploymentState
from eplb_service.controller.ports import PlanRunner
from eplb_service.controller.registry import Registry
from eplb_service.controller.revisions import (
    InUse,
    held_up,
    is_even,
    is_overtaken,
    lacking_ranks,
    name_of,
    ownership_of,
    tables_in_use,
    with_spent,
    word_for,
)
from eplb_service.controller.sharing import Proposal, ShareTask
from eplb_service.controller.standing import evidence_of, standing_of
from eplb_service.controller.teller import Teller
from eplb_service.domain.errors import EplbError, StoreConflict
from eplb_service.domain.heat import Heat, mean_with_data
from eplb_service.domain.ids import Incarnation
from eplb_service.domain.metric_names import SHARE_REVISIONS
from eplb_service.domain.shares import ShareName, Shares
from eplb_service.gates.timely import frozen, lacking

log = logging.getLogger(__name__)

POLL_S = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    """A revision on its way to all ranks."""

    name: ShareName
    incarnation: Incarnation
    shares: Shares
    proposal: Proposal


class ShareLoop:
    """Draws shares when they are due, and says them until every rank uses them."""

    def __init__(self, registry: Registry, teller: Teller, runner: PlanRunner) -> None:
        self._registry = registry
        self._runner = runner
        self._teller = teller
        self._busy: set[str] = set()
        self._next_s: dict[str, float] = {}

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Share for every deployment at its interval, until cancelled."""
        clock = self._registry.tools.clock
        while True:
            await asyncio.sleep(POLL_S)
            now_s = clock.monotonic_s()
            for deployment in self._registry.all():
                terms, name = deployment.tuning.shares, deployment.name
                is_due = now_s >= self._next_s.setdefault(name, now_s + terms.interval_s)
                if terms.is_automatic and is_due and name not in self._busy:
                    self._next_s[name] = now_s + terms.interval_s
                    self._busy.add(name)
                    tasks.create_task(self.share_once(deployment), name=f"shares {name}")

    async def share_once(self, deployment: Deployment) -> None:
        """Run one turn; whatever it meets is told and counted, and nothing is raised."""
        try:
            await self._share(deployment)
        except StoreConflict as fenced:
            self._registry.step_down(fenced)
        except EplbError as refused:
            self._failed(deployment, str(refused))
        except Exception as failed:
            # A revision changes nothing until ranks use it, so that a fault of ours ends one turn.
            log.exception("sharing failed", extra={"deployment": deployment.name})
            self._failed(deployment, f"{type(failed).__name__}: {failed}")
        finally:
            self._busy.discard(deployment.name)

    async def _share(self, deployment: Deployment) -> None:
        heat = None if self._is_held_up(deployment) else self._heat(deployment)
        if heat is None:
            return
        deadline_s = deployment.tuning.planning.deadline_s
        task, before = _task(deployment, heat), deployment.driver.state
        proposal = await self._runner.share(task, deadline_s=deadline_s)
        # A plan may have started meanwhile, or another placement come into use.
        if proposal is None or self._is_held_up(deployment):
            return
        if not _is_same(before, deployment.driver.state):
            return
        sent = await self._spent(deployment, proposal, heat)
        outcome = await self._said(deployment, sent)
        self._registry.tools.recorder.add(SHARE_REVISIONS, (deployment.name, outcome), 1)

    def _is_held_up(self, deployment: Deployment) -> bool:
        standing = standing_of(deployment, self._registry.tools.clock)
        return bool(held_up(deployment.driver.state) or frozen(standing))

    def _heat(self, deployment: Deployment) -> Heat | None:
        """Return the heat to share by: counted under this epoch, or, once, that before it."""
        evidence = evidence_of(deployment, measured_window(deployment))
        if not lacking(evidence, deployment.tuning.gates):
            found = heat_now(deployment)
            is_enough = found.by_source is not None or not deployment.needs_sources
            return expected(deployment, found) if is_enough else None
        stand, state = deployment.shares, deployment.driver.state
        shape = state.serving.placement.replica_count().shape
        is_fresh = stand.carried_to != state.serving.wave.epoch
        is_fit = stand.heat is not None and stand.heat.tokens.shape == shape
        return stand.heat if is_fresh and is_fit else None

    async def _spent(self, deployment: Deployment, proposal: Proposal, heat: Heat) -> _Sent:
        """Spend the revision's number, durably, before any rank hears of it."""
        state, errands = deployment.driver.state, deployment.driver.errands
        assert state.membership is not None
        serving = state.serving
        revision = deployment.shares.next_revision(state)
        epoch = serving.wave.epoch
        name = name_of(proposal.shares, serving.placement, epoch=epoch, revision=revision)
        # A number whose record got lost on the way is not used again: the next one is higher.
        deployment.shares = with_spent(deployment.shares, name, heat)
        store = self._registry.tools.store
        await store.spend_revision(errands.generation, errands.deployment, epoch, revision)
        return _Sent(name, state.membership.incarnation, proposal.shares, proposal)

    async def _said(self, deployment: Deployment, sent: _Sent) -> str:
        """Say it until every rank uses it, the time is over, or it is overtaken."""
        clock, tuning = self._registry.tools.clock, deployment.tuning
        say_at_s = last_s = clock.monotonic_s()
        waited_s = 0.0
        while not is_overtaken(sent.name, sent.incarnation, deployment.driver.state):
            state, now_s = deployment.driver.state, clock.monotonic_s()
            lacking_now = lacking_ranks(sent.name, state)
            if not lacking_now:
                self._in_use(deployment, sent)
                return "in_use"
            is_idle = state.membership is not None and state.membership.is_idle
            waited_s, last_s = waited_s + (0.0 if is_idle else now_s - last_s), now_s
            if waited_s >= tuning.shares.deadline_s:
                self._late(deployment, sent, lacking_now)
                return "late"
            if now_s >= say_at_s:
                say_at_s = now_s + tuning.pace.nudge_interval_s
                self._say(deployment, sent, lacking_now)
            await asyncio.sleep(POLL_S)
        return "overtaken"

    def _say(self, deployment: Deployment, sent: _Sent, ranks: tuple[int, ...]) -> None:
        errands = deployment.driver.errands
        for rank in ranks:
            by = errands.generation, sent.incarnation
            errands.tell(rank, word_for(rank, sent.name, sent.shares, by))

    def _in_use(self, deployment: Deployment, sent: _Sent) -> None:
        stand, proposal, state = deployment.shares, sent.proposal, deployment.driver.state
        assert state.membership is not None
        before, after = mean_with_data(proposal.before), mean_with_data(proposal.after)
        used = InUse(
            sent.name, sent.incarnation, sent.shares, after, before, state.membership.step()
        )
        deployment.shares = replace(stand, in_use=used, num_revisions=stand.num_revisions + 1)
        text = (
            f"revision {sent.name.revision} of epoch {sent.name.epoch} in use on all ranks: "
            f"{proposal.num_layers} of {len(proposal.after)} layers, imbalance "
            f"{before:.3f} to {after:.3f} predicted, no weight moved"
        )
        self._teller.note(deployment, "shares", text)

    def _late(self, deployment: Deployment, sent: _Sent, ranks: tuple[int, ...]) -> None:
        text = (
            f"revision {sent.name.revision} of epoch {sent.name.epoch} was not in use on ranks "
            f"{list(ranks)} within {deployment.tuning.shares.deadline_s:g} s; tables stay sound "
            "wherever they are, and the next turn draws new ones for all"
        )
        self._teller.note(deployment, "failure", text)

    def _failed(self, deployment: Deployment, text: str) -> None:
        self._registry.tools.recorder.add(SHARE_REVISIONS, (deployment.name, "failed"), 1)
        if deployment.is_news(text, "shares"):
            self._teller.note(deployment, "failure", f"sharing failed: {text}")


def _is_same(before: DeploymentState, now: DeploymentState) -> bool:
    """Whether the same group serves the same placement: another may have epoch 0 too."""
    groups = [state.membership.incarnation if state.membership else None for state in (before, now)]
    serving = [(state.serving.wave, state.serving.placement.digest()) for state in (before, now)]
    return groups[0] == groups[1] and serving[0] == serving[1]


def _task(deployment: Deployment, heat: Heat) -> ShareTask:
    state, terms = deployment.driver.state, deployment.tuning.shares
    assert state.membership is not None
    return ShareTask(
        heat=heat,
        placement=state.serving.placement,
        ownership=ownership_of(state),
        in_use=tables_in_use(deployment.shares, state),
        is_even=is_even(state),
        nodes=tuple(member.profile.node for member in state.membership.known),
        min_gain=terms.min_gain,
        locality_price=terms.locality_price,
        terms=deployment.tuning.planning.costs.terms(
            num_ranks=state.serving.placement.layout.num_ranks, num_steps=heat.num_steps
        ),
    )
