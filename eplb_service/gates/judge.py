"""The verdict on a plan: every gate speaks, and what they say together."""

from collections.abc import Callable

from eplb_service.domain.plan import Answer, Finding, Origin, Verdict
from eplb_service.gates.binding import BINDING, affordable_waves
from eplb_service.gates.context import GateContext
from eplb_service.gates.timely import cooldown, freeze, gain, payback, samples, trigger

TIMELY: tuple[Callable[[GateContext], Finding], ...] = (
    samples,
    trigger,
    gain,
    payback,
    cooldown,
    freeze,
)


def judge(context: GateContext) -> Verdict:
    """Ask every gate; an operator's plan is bound only by halts and budgets.

    Throttle means yes to the first `num_waves` waves.
    """
    bound = tuple(gate(context) for gate in BINDING)
    timely = tuple(gate(context) for gate in TIMELY)
    asked = bound if context.plan.origin is Origin.OPERATOR else (*bound, *timely)
    answers = {finding.answer for finding in asked}
    findings = (*bound, *timely)
    if Answer.NO in answers:
        return Verdict(Answer.NO, 0, findings)
    if Answer.THROTTLE in answers:
        return Verdict(Answer.THROTTLE, affordable_waves(context), findings)
    return Verdict(Answer.YES, len(context.plan.waves), findings)
