"""The verdict on a plan: every gate speaks, and what they say together."""

from collections.abc import Callable

from eplb_service.domain.heat import mean_with_data
from eplb_service.domain.plan import Answer, Finding, Origin, Verdict
from eplb_service.gates.advice import Prospects, advise
from eplb_service.gates.binding import BINDING, affordable_waves
from eplb_service.gates.context import GateContext
from eplb_service.gates.timely import cooldown, freeze, gain, lacking, payback, samples, trigger

TIMELY: tuple[Callable[[GateContext], Finding], ...] = (
    samples,
    trigger,
    gain,
    payback,
    cooldown,
    freeze,
)


def advice(context: GateContext) -> Finding:
    """Say whether balancing pays here at all; it binds nobody."""
    price, evidence, settings = context.plan.price, context.evidence, context.settings
    found = advise(
        Prospects(
            lack=lacking(evidence, settings),
            imbalance_now=mean_with_data(price.imbalance_before),
            imbalance_then=mean_with_data(price.imbalance_after),
            noise=evidence.noise,
            step_s=price.step_s,
            expert_s=price.expert_s,
            stall_s=price.stall_s,
            horizon_s=settings.max_payback_steps * price.step_s,
        )
    )
    return Finding("advice", Answer.YES, f"{found.advice}: {found.text}")


def judge(context: GateContext) -> Verdict:
    """Ask every gate; an operator's plan is bound only by halts and budgets.

    Throttle means yes to the first `num_waves` waves.
    """
    bound = tuple(gate(context) for gate in BINDING)
    timely = tuple(gate(context) for gate in TIMELY)
    asked = bound if context.plan.cause.origin is Origin.OPERATOR else (*bound, *timely)
    answers = {finding.answer for finding in asked}
    findings = (*bound, *timely, advice(context))
    if Answer.NO in answers:
        return Verdict(Answer.NO, 0, findings)
    if Answer.THROTTLE in answers:
        return Verdict(Answer.THROTTLE, affordable_waves(context), findings)
    return Verdict(Answer.YES, len(context.plan.waves), findings)
