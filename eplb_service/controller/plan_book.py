"""Plans that are kept to be explained and applied: a bounded number, the newest."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from eplb_service.controller.machine_state import PlanPhase
from eplb_service.controller.views import PlanView
from eplb_service.domain.errors import InvalidRequest, UnknownPlan
from eplb_service.domain.placement import Placement
from eplb_service.domain.plan import Plan, Verdict

NUM_KEPT = 64
SHORTEST_ID = 4
"""Characters of an id from which its beginning stands for it."""


@dataclass(frozen=True, slots=True, eq=False)
class KeptPlan:
    """A plan, what the gates said of it, and what became of it."""

    plan: Plan
    verdict: Verdict
    phase: PlanPhase
    is_dry_run: bool
    drawn_at_s: float
    base: Placement
    """The placement that it starts from."""
    num_settled: int = 0
    ending: str = ""
    """Why it ended as it did."""
    bytes_moved: int = 0
    moves: int = 0


class PlanBook:
    """The plans of one deployment."""

    def __init__(self) -> None:
        self._plans: OrderedDict[str, KeptPlan] = OrderedDict()
        self._latest_run = ""

    def keep(self, kept: KeptPlan) -> None:
        """Take a plan in, or replace what is kept under its id; the oldest beyond the limit go.

        A plan that runs stays as it is: the same one drawn again is only looked at.
        """
        plan_id = kept.plan.plan_id
        before = self._plans.get(plan_id)
        if before is None or before.phase is not PlanPhase.RUNNING:
            self._plans[plan_id] = kept
        self._plans.move_to_end(plan_id)
        if self._latest_run in self._plans:
            self._plans.move_to_end(self._latest_run)
        while len(self._plans) > NUM_KEPT:
            self._plans.popitem(last=False)

    def find(self, plan_id: str) -> KeptPlan:
        """Return the kept plan of an id, or of the beginning of one.

        Raises UnknownPlan, naming the newest ones, and InvalidRequest where several begin so.
        """
        kept = self._plans.get(plan_id) or self._beginning_with(plan_id)
        if kept is None:
            newest = ", ".join(list(self._plans)[-5:]) or "none"
            raise UnknownPlan(
                f"no plan {plan_id} is kept (the newest are: {newest}); plans are kept until "
                f"{NUM_KEPT} newer ones were drawn or the controller restarts; draw a new one"
            )
        return kept

    def _beginning_with(self, start: str) -> KeptPlan | None:
        found = [plan_id for plan_id in self._plans if plan_id.startswith(start)]
        if len(start) < SHORTEST_ID or not found:
            return None
        if len(found) > 1:
            raise InvalidRequest(
                f"several plans begin with {start}: {', '.join(found)}; nothing was done, write "
                "more of the one that is meant"
            )
        return self._plans[found[0]]

    def started(self, plan_id: str) -> KeptPlan | None:
        """The plan begins to run, maybe once more; returns what is kept of it, if anything."""
        self._latest_run = plan_id
        kept = self._plans.get(plan_id)
        if kept is None:
            return None
        running = KeptPlan(
            kept.plan,
            kept.verdict,
            PlanPhase.RUNNING,
            is_dry_run=False,
            drawn_at_s=kept.drawn_at_s,
            base=kept.base,
        )
        self.keep(running)
        return running

    def wave_settled(self, plan_id: str, *, moves: int, num_bytes: int) -> None:
        """One of its waves settled."""
        kept = self._plans.get(plan_id)
        if kept is not None:
            self._plans[plan_id] = replace(
                kept,
                num_settled=kept.num_settled + 1,
                moves=kept.moves + moves,
                bytes_moved=kept.bytes_moved + num_bytes,
            )

    def ended(self, plan_id: str, phase: PlanPhase, reason: str) -> None:
        """The plan is over."""
        kept = self._plans.get(plan_id)
        if kept is not None:
            self._plans[plan_id] = replace(kept, phase=phase, ending=reason)

    def newest_first(self) -> Iterator[KeptPlan]:
        """Every kept plan, by when it was drawn."""
        return iter(sorted(self._plans.values(), key=lambda kept: -kept.drawn_at_s))

    def latest_run(self) -> KeptPlan | None:
        """Return the plan that runs, or ran last."""
        return self._plans.get(self._latest_run)


def plan_view(deployment: str, kept: KeptPlan) -> PlanView:
    """What operators are shown of a kept plan."""
    return PlanView(
        deployment=deployment,
        plan=kept.plan,
        verdict=kept.verdict,
        phase=kept.phase,
        is_dry_run=kept.is_dry_run,
        drawn_at_s=kept.drawn_at_s,
    )
