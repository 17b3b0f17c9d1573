"""Plans, verdicts and runs as people read them. Pure: a view goes in, text comes out."""

from collections.abc import Iterator
from math import isfinite, isnan

from eplb_service.cli.words import (
    NEVER,
    NO_DATA,
    clock_time,
    count,
    figure,
    line,
    mean_and_worst,
    size,
    table,
)
from eplb_service.controller.views import NothingView, RunView
from eplb_service.domain.plan import MOST_PAYBACK, Answer, Origin, Price, Verdict
from eplb_service.server.admin_wire.plans import ShownPlan

JUDGED_AS = {
    Origin.AUTOMATIC: "an automatic one: every gate binds it",
    Origin.OPERATOR: "an operator's: gates only annotate it",
}
BY_ITSELF = "nobody: the controller drew it by itself"
UNCHANGED = "Nothing was changed."


def show_answer(answer: ShownPlan | NothingView) -> str:
    """A plan, or why there is none."""
    match answer:
        case NothingView(_, reason, text):
            return f"nothing to do: {reason}: {text}"
        case ShownPlan():
            return show_plan(answer)


def show_plan(view: ShownPlan) -> str:
    """What a plan would do, what it costs, and its verdict."""
    plan, price = view.plan, view.plan.price
    last = plan.base_epoch + len(plan.waves)
    transfers = sum(len(wave.transfers) for wave in plan.waves)
    lines = [
        f"plan {plan.plan_id}   epoch {plan.base_epoch} to {last}   policy {plan.policy}   "
        f"{view.phase}",
        _promise(view),
        line(
            "moves",
            count(price.num_moves, "slot"),
            size(price.num_bytes) + f" in {count(transfers, 'transfer')}",
            count(len(plan.waves), "wave"),
            *_takes(price.moving.whole_s),
        ),
        line("pay-back", *_payback(price)),
        line("heat", plan.heat_note or NO_DATA),
        *_verdict_lines(view.verdict),
    ]
    return "\n".join(lines)


def explain_plan(view: ShownPlan) -> str:
    """A plan with every gate that spoke and every wave."""
    gates = [(f.gate, f.answer.value, f.text) for f in view.verdict.findings]
    waves = [
        (
            str(number),
            str(view.plan.base_epoch + number),
            _layers(wave.layers.tolist()),
            str(len(wave.transfers)),
            str(wave.num_rounds),
        )
        for number, wave in enumerate(view.plan.waves, start=1)
    ]
    drawn = [
        line("drawn", clock_time(view.drawn_at_s), f"judged as {JUDGED_AS[view.plan.origin]}"),
        line("asked by", view.plan.who or BY_ITSELF),
        *([line("reason", view.plan.reason)] if view.plan.reason else []),
    ]
    parts = [
        show_plan(view) + "\n" + "\n".join(drawn),
        table(("gate", "answer", "why"), gates) if gates else "no gate spoke",
        table(("wave", "epoch", "layers", "transfers", "rounds"), waves, right=(0, 1, 3, 4)),
    ]
    return "\n\n".join(parts)


def show_run(view: RunView) -> str:
    """How an applied plan stands."""
    return "\n".join(
        [
            f"plan {view.plan_id}   {view.phase}   epoch {view.epoch}",
            line("moved", count(view.moves, "slot"), size(view.bytes_moved)),
            *([line("state", view.text)] if view.text else []),
        ]
    )


def objections(verdict: Verdict) -> str:
    """Name the gates that said no.

    >>> objections(Verdict(Answer.NO, 0, ()))
    'no gate by name'
    """
    names = [f.gate for f in verdict.findings if f.answer is Answer.NO]
    return ", ".join(names) or "no gate by name"


def _promise(view: ShownPlan) -> str:
    price = view.plan.price
    before, worst_before, layer_before = mean_and_worst(price.imbalance_before)
    after, worst_after, layer_after = mean_and_worst(price.imbalance_after)
    if isnan(before):
        return line("imbalance", NO_DATA)
    if layer_before == layer_after:
        worst = f"worst {figure(worst_before)} to {figure(worst_after)} (layer {layer_before})"
    else:
        worst = (
            f"worst {figure(worst_before)} (layer {layer_before}) to "
            f"{figure(worst_after)} (layer {layer_after})"
        )
    return line("imbalance", f"mean {figure(before)} to {figure(after)}", worst)


def _takes(seconds: float) -> Iterator[str]:
    """How long a plan moves weights, once links were measured."""
    if isfinite(seconds):
        yield f"about {seconds:.0f} s" if seconds >= 10 else f"about {seconds:.2g} s"


def _payback(price: Price) -> list[str]:
    if not price.payback_steps <= MOST_PAYBACK:
        return [NEVER]
    return [
        f"after {count(round(price.payback_steps), 'step')}",
        f"{price.won_s * 1e3:.2f} of {price.step_s * 1e3:.1f} ms won a step, "
        f"{price.expert_s * 1e3:.1f} ms experts, {price.stall_s * 1e3:.1f} ms lost",
    ]


def _verdict_lines(verdict: Verdict) -> Iterator[str]:
    """The verdict, and each gate that did not say yes on a line of its own."""
    answer = _verdict(verdict)
    first, *others = [*_spoke(verdict), ""]
    yield line("verdict", answer, first) if first else line("verdict", answer)
    for other in others[:-1]:
        yield line("", " " * len(answer), other)


def _verdict(verdict: Verdict) -> str:
    if verdict.answer is Answer.THROTTLE:
        return f"throttle to {count(verdict.num_waves, 'wave')}"
    return verdict.answer.value


def _spoke(verdict: Verdict) -> Iterator[str]:
    """Every gate that did not say yes, with its reason."""
    for finding in verdict.findings:
        if finding.answer is not Answer.YES:
            yield f"{finding.gate}: {finding.text}"


def _layers(layers: list[int]) -> str:
    """Layer numbers, runs of them as first-last.

    >>> _layers([0, 1, 2, 5])
    '0-2, 5'
    """
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs) or "-"
