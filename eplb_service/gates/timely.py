"""Gates of timeliness: whether now is the time for a plan; an operator's they only annotate."""

from math import isfinite, isnan

from eplb_service.domain.heat import mean_with_data
from eplb_service.domain.plan import Answer, Finding
from eplb_service.gates.context import Evidence, GateContext, Standing
from eplb_service.gates.settings import GateSettings


def samples(context: GateContext) -> Finding:
    """The window must rest on enough steps, ranks and tokens."""
    lack = lacking(context.evidence, context.settings)
    return Finding("insufficient_samples" if lack else "samples", _no_if(lack), lack or "enough")


def lacking(evidence: Evidence, settings: GateSettings) -> str:
    """What a window lacks to carry a plan, in words; empty where it lacks nothing."""
    lacks: list[str] = []
    if evidence.num_steps < settings.min_steps:
        lacks.append(f"{evidence.num_steps} steps, at least {settings.min_steps} are needed")
    if evidence.coverage < settings.min_coverage:
        lacks.append(
            f"coverage {evidence.coverage:.2f}, at least {settings.min_coverage:.2f} is needed"
        )
    if isnan(evidence.imbalance_mean):
        lacks.append("no tokens in any layer")
    elif evidence.tokens_per_expert < settings.min_tokens_per_expert:
        lacks.append(
            f"{evidence.tokens_per_expert:.1f} tokens per expert, at least "
            f"{settings.min_tokens_per_expert:g} are needed"
        )
    return "; ".join(lacks)


def trigger(context: GateContext) -> Finding:
    """There must be something worth doing."""
    calm = balanced(context.evidence, context.settings)
    evidence = context.evidence
    text = calm or f"mean {evidence.imbalance_mean:.2f}, worst {evidence.imbalance_worst:.2f}"
    return Finding("trigger", _no_if(calm), text)


def balanced(evidence: Evidence, settings: GateSettings) -> str:
    """Why nothing needs doing, in words; empty where something does."""
    mean, worst = evidence.imbalance_mean, evidence.imbalance_worst
    if mean > settings.trigger_imbalance or worst > settings.trigger_worst_layer:
        return ""
    return (
        f"mean imbalance {mean:.3f} is not above {settings.trigger_imbalance:g}, and the worst "
        f"layer's {worst:.3f} not above {settings.trigger_worst_layer:g}"
    )


def gain(context: GateContext) -> Finding:
    """The layers that change must promise a drop that is worth moving them."""
    price, waves = context.plan.price, context.plan.waves
    changed = sorted({layer for wave in waves for layer in wave.content.layers.tolist()})
    before = mean_with_data(price.imbalance_before[changed])
    after = mean_with_data(price.imbalance_after[changed])
    promised = (before - after) / before
    text = (
        f"imbalance of {len(changed)} layers {before:.3f} to {after:.3f}, a drop of "
        f"{promised:.1%}; "
        f"at least {context.settings.min_gain:.1%} is asked"
    )
    is_enough = promised >= context.settings.min_gain
    return Finding("gain", Answer.YES if is_enough else Answer.NO, text)


def payback(context: GateContext) -> Finding:
    """The plan must win back the time that it costs."""
    steps, limit = context.plan.price.payback_steps, context.settings.max_payback_steps
    pays = f"pays back after {steps:.0f} steps" if isfinite(steps) else "never pays back"
    text = f"{pays}; at most {limit:.0f} are allowed"
    return Finding("payback", Answer.YES if steps <= limit else Answer.NO, text)


def cooldown(context: GateContext) -> Finding:
    """Plans need a distance from each other."""
    since_s, least_s = context.standing.since_last_plan_s, context.settings.cooldown_s
    text = f"{since_s:.0f} s since the last plan, at least {least_s:g} s"
    return Finding("cooldown", Answer.YES if since_s >= least_s else Answer.NO, text)


def freeze(context: GateContext) -> Finding:
    """No automatic plan runs while plans are frozen."""
    held = frozen(context.standing)
    return Finding("freeze", _no_if(held), held or "not frozen")


def frozen(standing: Standing) -> str:
    """What freeze stands, in words; empty where none does."""
    if standing.frozen_for_s <= 0:
        return ""
    return f"plans are frozen for another {standing.frozen_for_s:.0f} s: {standing.freeze_reason}"


def _no_if(trouble: str) -> Answer:
    return Answer.NO if trouble else Answer.YES
