"""Sets gauges from what the controller holds, about once a second."""

import numpy as np

from eplb_service.controller.counting import cost_of
from eplb_service.controller.deployment import Deployment
from eplb_service.controller.looks import imbalance_of, newest_window
from eplb_service.controller.rank_gauges import show_ranks
from eplb_service.controller.registry import Registry, Tools
from eplb_service.controller.revisions import current
from eplb_service.controller.runs import halt_text
from eplb_service.domain.ids import FloatArray
from eplb_service.domain.metric_names import (
    FROZEN_UNTIL,
    GENERATION,
    HALTED,
    HALTS,
    HOT_EXPERT,
    LAYER_IMBALANCE,
    LAYER_PLANNED,
    LAYER_REALISED,
    LEADER,
    PLANNER_SUCCESS,
    PLANNING_ENABLED,
    PLANNING_INTERVAL,
    RANK_LOAD,
    SHARE_IMBALANCE,
    SHARE_REVISION,
    STAGING_BYTES,
    WAVE_STARTED,
    WINDOW_AGE,
    WINDOW_COVERAGE,
    WINDOW_STEPS,
    Metric,
)
from eplb_service.load.fold import heat_of, measured_load
from eplb_service.load.window import LoadWindow

NUM_HOT = 5
"""Series of eplb_hot_expert_ratio in a deployment."""


def show_controller(registry: Registry) -> None:
    """Tell whether this controller leads."""
    record = registry.tools.recorder
    record.set(LEADER, (), float(registry.generation > 0))
    record.set(GENERATION, (), registry.generation)


def show(deployment: Deployment, tools: Tools) -> None:
    """Set every gauge of one deployment, and hand over what its reports added up to."""
    name, record = deployment.name, tools.recorder
    for (metric, labels), amount in deployment.meter.tally.take().items():
        record.add(metric, (name, *labels), amount)
    window = newest_window(deployment)
    if window is not None:
        record.set(WINDOW_COVERAGE, (name,), window.coverage)
        record.set(WINDOW_STEPS, (name,), window.num_steps)
        _show_window(deployment, window, tools)
    heard = deployment.heard_at_s.values()
    if heard:
        record.set(WINDOW_AGE, (name,), tools.clock.monotonic_s() - max(heard))
    show_ranks(deployment, tools)
    _show_shares(deployment, tools)
    _show_flight(deployment, tools)
    _show_switches(deployment, tools)


def _show_switches(deployment: Deployment, tools: Tools) -> None:
    name, record, meter = deployment.name, tools.recorder, deployment.meter
    freeze = deployment.switches.freeze
    is_frozen = freeze is not None and freeze.until_s > tools.clock.wall_s()
    record.set(FROZEN_UNTIL, (name,), freeze.until_s if freeze and is_frozen else 0.0)
    is_halted = bool(halt_text(deployment.driver.state))
    record.set(HALTED, (name,), float(is_halted))
    if is_halted and not meter.was_halted:
        record.add(HALTS, (name,), 1)
    meter.was_halted = is_halted
    terms = deployment.tuning.planning
    record.set(PLANNING_ENABLED, (name,), float(terms.is_automatic))
    record.set(PLANNING_INTERVAL, (name,), terms.interval_s)
    record.set(PLANNER_SUCCESS, (name,), meter.planned_at_s)


def _show_flight(deployment: Deployment, tools: Tools) -> None:
    name, record, state = deployment.name, tools.recorder, deployment.driver.state
    flight, membership = state.flight, state.membership
    record.set(WAVE_STARTED, (name,), flight.record.spent_at_s if flight else 0.0)
    used = cost_of(deployment, flight.record)[1] if flight else 0
    record.set(STAGING_BYTES, (name, "used"), used)
    if membership is not None:
        rows = sum(member.profile.staging_rows for member in membership.known)
        record.set(STAGING_BYTES, (name, "reserved"), rows * membership.shape.bytes_per_expert)


def _show_shares(deployment: Deployment, tools: Tools) -> None:
    used = current(deployment.shares, deployment.driver.state)
    name = deployment.name
    tools.recorder.set(SHARE_REVISION, (name,), used.name.revision if used else 0)
    if used is None:
        tools.recorder.forget(SHARE_IMBALANCE, (name,))
    else:
        tools.recorder.set(SHARE_IMBALANCE, (name,), used.predicted)


def _show_window(deployment: Deployment, window: LoadWindow, tools: Tools) -> None:
    """Show what a window says; one that was shown already is not folded again."""
    meter, placement = deployment.meter, deployment.counted_placement
    shown = (window.epoch, window.first_step, window.last_step, int(window.is_known.sum()))
    if shown == meter.shown.window:
        return
    meter.shown.window = shown
    seen = imbalance_of(deployment, window)
    if meter.promise.is_due(window, min_steps=deployment.tuning.gates.min_steps):
        meter.promise.realised = seen
    _show_layers(deployment, LAYER_IMBALANCE, seen, tools)
    _show_layers(deployment, LAYER_PLANNED, meter.promise.planned, tools)
    _show_layers(deployment, LAYER_REALISED, meter.promise.realised, tools)
    _show_load(deployment, window, tools)
    tokens = heat_of(window, placement).tokens
    tools.recorder.keep_heat(deployment.name, tokens, measured_load(window, placement))
    _show_hottest(deployment, tokens, tools)


def _show_layers(
    deployment: Deployment, metric: Metric, values: FloatArray | None, tools: Tools
) -> None:
    num_layers = deployment.counted_placement.num_layers
    shown = np.full(num_layers, np.nan) if values is None else values
    for layer, value in enumerate(shown.tolist()):
        labels = (deployment.name, str(layer))
        if np.isnan(value):
            tools.recorder.forget(metric, labels)
        else:
            tools.recorder.set(metric, labels, value)


def _show_load(deployment: Deployment, window: LoadWindow, tools: Tools) -> None:
    name, record = deployment.name, tools.recorder
    load = np.nansum(measured_load(window, deployment.counted_placement), axis=0)
    mean = load[window.is_known].mean() if window.is_known.any() else 0.0
    for rank, value in enumerate(load.tolist()):
        labels = (name, str(rank))
        if mean > 0 and window.is_known[rank]:
            record.set(RANK_LOAD, labels, value / mean)
        else:
            record.forget(RANK_LOAD, labels)


def _show_hottest(deployment: Deployment, tokens: FloatArray, tools: Tools) -> None:
    """Show the hottest experts, ties by layer and number; what was shown before goes."""
    record, meter = tools.recorder, deployment.meter
    for labels in meter.shown.hottest:
        record.forget(HOT_EXPERT, labels)
    mean = np.maximum(tokens.mean(axis=1, keepdims=True), 1e-9)
    ratios = (tokens / mean).ravel()
    first = np.argsort(-ratios, kind="stable")[:NUM_HOT]
    hottest: list[tuple[str, ...]] = []
    for index in first[ratios[first] > 0].tolist():
        layer, expert = divmod(index, tokens.shape[1])
        labels = (deployment.name, str(layer), str(expert))
        record.set(HOT_EXPERT, labels, float(ratios[index]))
        hottest.append(labels)
    meter.shown.hottest = tuple(hottest)
