"""Gates of timeliness: whether now is the time for a plan; an operator's they only annotate."""

from math import isfinite, isnan

from eplb_service.domain.heat import mean_with_data
from eplb_service.domain.plan import MOST_PAYBACK, Answer, Finding
from eplb_service.gates.context import Evidence, GateContext, Standing
from eplb_service.gates.settings import GateSettings

MOST_DOUBLINGS = 6
"""Of the cooldown: from 10 seconds to about ten minutes."""


def samples(context: GateContext) -> Finding:
    """The window must rest on enough steps, ranks and tokens."""
    lack = lacking(context.evidence, context.settings)
    lack = f"{lack} (counted since shares or placement last changed)" if lack else ""
    evidence = context.evidence
    enough = (
        f"{evidence.num_steps} steps, coverage {evidence.coverage:.2f}, "
        f"{evidence.tokens_per_expert:.1f} tokens per expert"
    )
    return Finding("insufficient_samples" if lack else "samples", _no_if(lack), lack or enough)


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
    text = (
        f"mean imbalance {evidence.imbalance_mean:.3f}, worst layer's "
        f"{evidence.imbalance_worst:.3f}; a plan is due above "
        f"{context.settings.trigger_imbalance:g} and {context.settings.trigger_worst_layer:g}"
    )
    return Finding("trigger", _no_if(calm), calm or text)


def balanced(evidence: Evidence, settings: GateSettings) -> str:
    """Why nothing needs doing, in words; empty where something does."""
    mean, worst = evidence.imbalance_mean, evidence.imbalance_worst
    if mean > settings.trigger_imbalance or worst > settings.trigger_worst_layer:
        return ""
    if isnan(mean):
        return "no imbalance was measured: no layer has load"
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
    if isnan(before) or isnan(after):
        return Finding(
            "gain", Answer.NO, f"{len(changed)} layers change, and none of them has load"
        )
    promised = (before - after) / before * context.standing.trust
    text = (
        f"imbalance of {len(changed)} layers {before:.3f} to {after:.3f}, a drop of "
        f"{promised:.1%}{_doubt(context.standing.trust)}; "
        f"at least {context.settings.min_gain:.1%} is asked"
    )
    is_enough = promised >= context.settings.min_gain
    return Finding("gain", Answer.YES if is_enough else Answer.NO, text)


def payback(context: GateContext) -> Finding:
    """The plan must win back the time that it costs."""
    price, limit = context.plan.price, context.settings.max_payback_steps
    steps = price.payback_steps
    never = f"never pays back within {MOST_PAYBACK:.0e} steps"
    pays = f"pays back after {steps:.0f} steps" if steps <= MOST_PAYBACK else never
    text = (
        f"a step of {price.step_s * 1e3:.1f} ms, experts {price.expert_s * 1e3:.1f} ms of it on "
        f"the slowest rank, wins {price.won_s * 1e3:.2f} ms; serving loses "
        f"{price.stall_s * 1e3:.1f} ms in all, so that it {pays}; at most {limit:.0f} are allowed"
    )
    return Finding("payback", Answer.YES if steps <= limit else Answer.NO, text)


def cooldown(context: GateContext) -> Finding:
    """Plans need a distance from each other."""
    standing = context.standing
    cold = cooling(standing, context.settings)
    since_s = standing.since_last_plan_s
    ended = f"the last plan ended {since_s:.0f} s ago" if isfinite(since_s) else "no plan ended yet"
    return Finding("cooldown", _no_if(cold), cold or ended)


def cooling(standing: Standing, settings: GateSettings) -> str:
    """How long the cooldown still lasts, in words; empty where it is over.

    It doubles with every plan in a row that came to nothing, so that a rank that refuses
    every wave is not asked again and again.
    """
    doubled = min(standing.num_fruitless, MOST_DOUBLINGS)
    least_s, since_s = settings.cooldown_s * 2**doubled, standing.since_last_plan_s
    if since_s >= least_s:
        return ""
    text = f"the last plan ended {since_s:.0f} s ago, at least {least_s:g} s must pass"
    if not doubled:
        return text
    why = f"{settings.cooldown_s:g} s, doubled {doubled} times for plans of which no wave settled"
    return f"{text} ({why})"


def freeze(context: GateContext) -> Finding:
    """No automatic plan runs while plans are frozen."""
    held = frozen(context.standing)
    return Finding("freeze", _no_if(held), held or "not frozen")


def frozen(standing: Standing) -> str:
    """What freeze stands, in words; empty where none does."""
    if standing.frozen_for_s <= 0:
        return ""
    return f"plans are frozen for another {standing.frozen_for_s:.0f} s: {standing.freeze_reason}"


def _doubt(trust: float) -> str:
    """Say how much of the promise is believed, where that is not all of it."""
    return f" (of which {trust:.0%} is believed, as earlier plans kept)" if trust < 1 else ""


def _no_if(trouble: str) -> Answer:
    return Answer.NO if trouble else Answer.YES
