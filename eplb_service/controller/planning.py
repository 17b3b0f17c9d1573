"""Drawing a plan: a pure function from heat and what is served to waves with a price.

Axes    L MoE layers   E logical experts   N ranks

It runs in a process of its own that is killed at its deadline. Policies are
untrusted: whatever they return passes the same rules as everybody's placement, and
a plan that breaks one is refused whole.
"""

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from eplb_service.controller.pricing import Timing, moving, payback_steps, won_seconds
from eplb_service.domain.errors import EplbError, InvalidPlacement, InvalidRequest, PlannerFailed
from eplb_service.domain.heat import Heat, imbalance_where_held, mean_with_data
from eplb_service.domain.ids import Epoch, FloatArray, array_bytes
from eplb_service.domain.moves import align
from eplb_service.domain.placement import Placement
from eplb_service.domain.plan import Cause, Plan, PlannedWave, Price
from eplb_service.domain.rules import (
    require_emptied,
    require_fit,
    require_sound,
    require_unmasked,
    shared_slots_stay,
)
from eplb_service.domain.shares import Ownership
from eplb_service.domain.waves import WaveLimits, split
from eplb_service.policies.bounds import Bounds, Topology
from eplb_service.policies.catalog import suited, unjoined
from eplb_service.policies.evacuation import emptied_before
from eplb_service.policies.request import (
    PolicyRequest,
    even_split,
    predicted_load,
    split_by_source,
)
from eplb_service.policies.split import exact_split, split_imbalance


@dataclass(frozen=True, slots=True)
class ByPolicy:
    """Let a policy choose the target."""

    policy: str
    max_moves: int | None
    seed: int
    is_forced: bool
    """Asked for by name, so that another one must not take its place."""
    per_layer: int | None = None
    """Slots of one layer that may get another expert."""
    per_rank: int | None = None
    """Slots of one rank that may, in all layers."""


@dataclass(frozen=True, slots=True, eq=False)
class ToPlacement:
    """Go to a placement that is given."""

    target: Placement


Goal = ByPolicy | ToPlacement


@dataclass(frozen=True, slots=True, eq=False)
class PlanningInput:
    """Everything that a plan is drawn from."""

    base_epoch: Epoch
    current: Placement
    heat: Heat
    sources: FloatArray
    """[N] tokens that each rank routed in the window."""
    goal: Goal
    layers: tuple[int, ...]
    """Layers that may change; empty: all."""
    num_groups: int
    """Groups into which the router divides the experts; 1 where it has none."""
    limits: WaveLimits
    timing: Timing
    cause: Cause


@dataclass(frozen=True, slots=True)
class NothingToDo:
    """No plan, and that is no failure."""

    reason: str
    """Code: balanced, insufficient_samples, same_placement."""
    text: str


def draft(task: PlanningInput) -> Plan | NothingToDo:
    """Draw one plan.

    Raises UnknownPolicy, PlannerFailed (with what the policy raised or broke),
    InvalidPlacement or MisfitPlacement (for a target that was given).
    """
    _require_counts(task)
    target, policy, note = _target(task)
    if task.layers:
        target = _only(task.layers, task.current, target)
    if (target.phy2log == task.current.phy2log).all():
        return NothingToDo(*_why_nothing(task, policy))
    price_of = Pricing(task)
    before = price_of.imbalance(task.current)
    worst_first = np.argsort(-np.nan_to_num(before), kind="stable").tolist()
    waves = split(
        task.current,
        target,
        limits=task.limits,
        base_epoch=task.base_epoch,
        layer_order=worst_first,
    )
    price = price_of.price(waves, before, price_of.imbalance(target))
    return Plan(
        plan_id=_plan_id(task, target),
        policy=policy,
        cause=task.cause,
        base_epoch=task.base_epoch,
        base=task.current.digest(),
        waves=waves,
        price=price,
        heat_note=_heat_note(task.heat, note),
    )


def _require_counts(task: PlanningInput) -> None:
    """Raise PlannerFailed for heat that was not counted: every policy would believe it."""
    tokens, current = task.heat.tokens, task.current
    expected = (current.num_layers, current.num_experts)
    if tokens.shape != expected:
        raise PlannerFailed(
            f"heat has shape {list(tokens.shape)}, expected {list(expected)}; nothing changed"
        )
    wrong = np.argwhere(~(np.isfinite(tokens) & (tokens >= 0)))
    if wrong.size:
        layer, expert = wrong[0].tolist()
        raise PlannerFailed(
            f"heat of layer {layer} expert {expert} is {tokens[layer, expert]:g}, expected a count "
            f"of 0 or more; {len(wrong)} such in all, nothing changed"
        )


def _target(task: PlanningInput) -> tuple[Placement, str, str]:
    """The sound placement to go to, who chose it, and a warning."""
    match task.goal:
        case ToPlacement(target):
            require_fit(target, task.current)
            require_sound(target)
            target = align(task.current, target)
            _require_kept(task, target)
            return target, "given", ""
        case ByPolicy():
            return _by_policy(task, task.goal)


def _by_policy(task: PlanningInput, goal: ByPolicy) -> tuple[Placement, str, str]:
    request = PolicyRequest(
        heat=task.heat.tokens,
        placement=task.current,
        split=_split(task),
        layers=task.layers or tuple(range(task.current.num_layers)),
        topology=Topology(task.limits.nodes, task.num_groups),
        max_moves=goal.max_moves,
        seed=goal.seed,
        terms=task.timing.terms,
        bounds=Bounds(
            task.limits.masked,
            emptied_before(task.current, task.limits.masked),
            goal.per_layer,
            goal.per_rank,
        ),
    )
    can_share, is_forced = task.limits.sets_shares, goal.is_forced
    listed, note = suited(goal.policy, request, is_forced=is_forced, sets_shares=can_share)
    note = note or unjoined(listed, request)
    try:
        target = listed.draw(request)
        require_fit(target, task.current)
        require_sound(target)
        _require_kept(task, target)
        require_emptied(target, request.layers, request.bounds.masked)
    except InvalidRequest:
        raise  # what was asked of it cannot be done, and it says why
    except EplbError as broken:
        raise PlannerFailed(
            f"policy {listed.name} returned something unsound: {broken}"
        ) from broken
    except Exception as raised:
        raise PlannerFailed(
            f"policy {listed.name} raised {type(raised).__name__}: {raised}; nothing changed"
        ) from raised
    return target, listed.name, note


def _require_kept(task: PlanningInput, target: Placement) -> None:
    """Raise InvalidPlacement where shared experts move or ranks that take no part are used."""
    found = tuple(shared_slots_stay(task.current, target))
    if found:
        raise InvalidPlacement(f"layer {found[0].layer}: {found[0].text}; nothing changed")
    require_unmasked(task.current, target, task.limits.masked)


def _only(layers: tuple[int, ...], current: Placement, target: Placement) -> Placement:
    wrong = [layer for layer in layers if not 0 <= layer < current.num_layers]
    if wrong:
        raise InvalidRequest(
            f"layer {wrong[0]} does not exist; there are MoE layers 0 to "
            f"{current.num_layers - 1}; nothing was planned"
        )
    phy2log = current.phy2log.copy()
    chosen = list(layers)
    phy2log[chosen] = target.phy2log[chosen]
    return Placement(phy2log, current.num_experts, current.layout, current.num_shared)


def _split(task: PlanningInput) -> FloatArray:
    """How tokens of a replicated expert divide over its replicas, see policies.request."""
    num_ranks = task.current.layout.num_ranks
    if task.limits.ownership is Ownership.REPLICATED or not task.sources.sum():
        return even_split(num_ranks)
    return split_by_source(task.sources)


def _why_nothing(task: PlanningInput, policy: str) -> tuple[str, str]:
    if isinstance(task.goal, ToPlacement):
        return "same_placement", "the placement asked for is the one that is served"
    if not task.heat.tokens.any():
        return "insufficient_samples", "there is no load in any layer"
    return "balanced", f"policy {policy} finds nothing that is worth a move"


class Pricing:
    """Prices placements and waves under one task's heat."""

    def __init__(self, task: PlanningInput) -> None:
        self._task = task
        self._split = _split(task)

    def imbalance(self, placement: Placement) -> FloatArray:
        """[L] predicted by the tables that ranks will use; NaN where a layer has no load."""
        heat, terms = self._task.heat.tokens, self._task.timing.terms
        if self._task.limits.sets_shares:
            split = exact_split(heat, placement, terms=terms)
            return split_imbalance(heat, placement, split, terms)
        load = predicted_load(heat, placement, self._split, terms)
        speed = terms.speed(placement.layout.num_ranks)
        return imbalance_where_held(load * speed, placement, speed)

    def price(self, waves: tuple[PlannedWave, ...], before: FloatArray, after: FloatArray) -> Price:
        """What the waves cost and what they promise."""
        current = self._task.current
        moved = [wave.content.transfers for wave in waves]
        mean_before, mean_after = mean_with_data(before), mean_with_data(after)
        known = self._task.timing
        each = self._task.limits.bytes_per_expert
        costs = moving(moved, current, known, bytes_per_expert=each)
        num_bytes = int(costs.num_bytes.sum())
        timing = replace(known, stall_s=known.stall_of(num_bytes))
        return Price(
            num_moves=int(costs.num_moves.sum()),
            num_bytes=num_bytes,
            imbalance_before=before,
            imbalance_after=after,
            payback_steps=payback_steps(
                timing, before=mean_before, after=mean_after, transfer_s=costs.whole_s
            ),
            step_s=timing.step_s,
            expert_s=timing.expert_s,
            won_s=won_seconds(timing, before=mean_before, after=mean_after),
            stall_s=timing.stall_s,
            moving=costs,
        )


def _plan_id(task: PlanningInput, target: Placement) -> str:
    """Short name that the same plan from the same epoch always gets."""
    parts = (
        str(task.base_epoch).encode(),
        array_bytes(task.current.phy2log),
        array_bytes(target.phy2log),
        array_bytes(task.heat.tokens),
    )
    return hashlib.blake2b(b"|".join(parts), digest_size=4).hexdigest()


def _heat_note(heat: Heat, note: str) -> str:
    phase = heat.phase.value if heat.phase else "all phases"
    said = f"{phase}, {heat.num_steps} steps, coverage {heat.coverage:.2f}"
    return f"{said}; {note}" if note else said
