"""Sets a deployment's gauges from what the controller holds."""

import numpy as np

from eplb_service.controller.deployment import Deployment
from eplb_service.controller.looks import newest_window, rank_views
from eplb_service.controller.registry import Tools
from eplb_service.controller.revisions import current
from eplb_service.controller.runs import halt_text
from eplb_service.domain.metric_names import (
    FROZEN_UNTIL,
    HALTED,
    LAYER_IMBALANCE,
    RANK_EPOCH,
    RANK_LOAD,
    REPORT_AGE,
    SHARE_IMBALANCE,
    SHARE_REVISION,
    WINDOW_COVERAGE,
)
from eplb_service.load.fold import measured_imbalance, measured_load
from eplb_service.load.window import LoadWindow


def show(deployment: Deployment, tools: Tools) -> None:
    """Set every gauge of one deployment."""
    name, record = deployment.name, tools.recorder
    window = newest_window(deployment)
    if window is not None:
        _show_window(deployment, window, tools)
    for rank in rank_views(deployment, now_s=tools.clock.monotonic_s()):
        record.set(RANK_EPOCH, (name, str(rank.rank)), rank.epoch)
        if np.isfinite(rank.report_age_s):
            record.set(REPORT_AGE, (name, str(rank.rank)), rank.report_age_s)
    _show_shares(deployment, tools)
    freeze = deployment.switches.freeze
    is_frozen = freeze is not None and freeze.until_s > tools.clock.wall_s()
    record.set(FROZEN_UNTIL, (name,), freeze.until_s if freeze and is_frozen else 0.0)
    record.set(HALTED, (name,), 1.0 if halt_text(deployment.driver.state) else 0.0)


def _show_shares(deployment: Deployment, tools: Tools) -> None:
    used = current(deployment.shares, deployment.driver.state)
    name = deployment.name
    tools.recorder.set(SHARE_REVISION, (name,), used.name.revision if used else 0)
    if used is None:
        tools.recorder.forget(SHARE_IMBALANCE, (name,))
    else:
        tools.recorder.set(SHARE_IMBALANCE, (name,), used.predicted)


def _show_window(deployment: Deployment, window: LoadWindow, tools: Tools) -> None:
    name, record = deployment.name, tools.recorder
    placement = deployment.counted_placement
    record.set(WINDOW_COVERAGE, (name,), window.coverage)
    for layer, value in enumerate(measured_imbalance(window, placement).tolist()):
        labels = (name, str(layer))
        if np.isnan(value):
            record.forget(LAYER_IMBALANCE, labels)
        else:
            record.set(LAYER_IMBALANCE, labels, value)
    load = np.nansum(measured_load(window, placement), axis=0)
    mean = load[window.is_known].mean() if window.is_known.any() else 0.0
    for rank, value in enumerate(load.tolist()):
        labels = (name, str(rank))
        if mean > 0 and window.is_known[rank]:
            record.set(RANK_LOAD, labels, value / mean)
        else:
            record.forget(RANK_LOAD, labels)
