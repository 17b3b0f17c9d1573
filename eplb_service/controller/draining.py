"""The verbs that take ranks out of a deployment's plans and let them in again.

A drained rank goes on to send its tokens; it only computes none for routed experts, once a plan
has emptied it. The set of drained ranks is written down, so that it outlives the controller.
"""

from dataclasses import replace

from eplb_service.controller.acting import Started, asked, why
from eplb_service.controller.deployment import Deployment
from eplb_service.controller.desk import ActRequest
from eplb_service.controller.drawing import Draw, Drawer, goal_of
from eplb_service.controller.once import once
from eplb_service.controller.plan_book import KeptPlan, plan_view
from eplb_service.controller.planning import NothingToDo
from eplb_service.controller.records import DrainNote
from eplb_service.controller.registry import Registry
from eplb_service.controller.rollcall import copied_first
from eplb_service.controller.teller import Teller
from eplb_service.controller.views import NothingView
from eplb_service.domain.errors import InvalidRequest, UnknownRank
from eplb_service.domain.plan import Answer, Cause


class DrainVerbs:
    """drain and undrain of a desk.DrainDesk."""

    def __init__(self, registry: Registry, drawer: Drawer, teller: Teller) -> None:
        self._registry = registry
        self._drawer = drawer
        self._teller = teller

    async def drain(self, act: ActRequest, rank: int) -> Started:
        """Empty a rank, as far as budgets let one plan go; the planner goes on from there.

        Raises UnknownRank, InvalidRequest where the other ranks have no room for all experts,
        and what else a plan is refused with; the rank is not drained then.
        """
        deployment = self._registry.find(act.deployment)

        async def work() -> Started:
            _require_rank(deployment, rank)
            wanted = tuple(sorted({*deployment.drained, rank}))
            reason = f"drain of rank {rank}: {why(act)}"
            first = copied_first(deployment.driver.state.serving.placement, wanted)
            reason = f"{reason}; {first}" if first else reason
            return await self._change(deployment, wanted, asked(act, reason))

        return await once(deployment, act, f"drain {rank}", work)

    async def undrain(self, act: ActRequest, rank: int) -> Started:
        """Use a rank again; raises UnknownRank, and InvalidRequest where it is not drained."""
        deployment = self._registry.find(act.deployment)

        async def work() -> Started:
            _require_rank(deployment, rank)
            drained = deployment.drained
            if rank not in drained:
                raise InvalidRequest(
                    f"rank {rank} is not drained; drained are {list(drained) or 'none'}; nothing "
                    "changed"
                )
            wanted = tuple(other for other in drained if other != rank)
            cause = asked(act, f"undrain of rank {rank}: {why(act)}")
            return await self._change(deployment, wanted, cause)

        return await once(deployment, act, f"undrain {rank}", work)

    async def _change(
        self, deployment: Deployment, drained: tuple[int, ...], cause: Cause
    ) -> Started:
        """Draw the plan for such drained ranks; where it may run, write them down and start it."""
        found = await self._drawer.draw(deployment, drain_draw(deployment, drained, cause))
        if isinstance(found, KeptPlan) and found.verdict.answer is Answer.NO:
            self._drawer.reject(deployment, found)
            return plan_view(deployment.name, deployment.book.find(found.plan.plan_id))
        await self._registry.keep(deployment, DrainNote(drained))
        deployment.switches = replace(deployment.switches, drained=drained)
        kind = cause.reason.partition(" ")[0]
        text = f"{cause.reason}; drained are {list(drained) or 'none'}"
        self._teller.note(deployment, kind, text, who=cause.who)
        if isinstance(found, NothingToDo):
            return NothingView(deployment.name, found.reason, found.text)
        await self._drawer.start(deployment, found)
        return plan_view(deployment.name, deployment.book.find(found.plan.plan_id))


def drain_draw(deployment: Deployment, drained: tuple[int, ...], cause: Cause) -> Draw:
    """What plan empties drained ranks and fills those that are back."""
    seed = int(deployment.driver.state.highest_epoch)
    goal = goal_of(deployment.tuning.planning, seed=seed)
    return Draw(goal, (), cause, masked=drained)


def still_full(deployment: Deployment) -> tuple[int, ...]:
    """Drained ranks that hold routed experts still."""
    placement = deployment.driver.state.serving.placement
    routed, layout = placement.routed(), placement.layout
    return tuple(rank for rank in deployment.drained if routed[:, layout.slots_of(rank)].any())


def _require_rank(deployment: Deployment, rank: int) -> None:
    num_ranks = deployment.driver.state.serving.placement.layout.num_ranks
    if not 0 <= rank < num_ranks:
        raise UnknownRank(
            f"rank {rank} does not exist; {deployment.name} has ranks 0 to {num_ranks - 1}; "
            "nothing changed"
        )
