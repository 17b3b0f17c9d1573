"""Gauges of a deployment's ranks: who is here, who is behind, and what rests on whom.

Axes    L MoE layers   E logical experts   N ranks
"""

from collections.abc import Sequence

import numpy as np

from eplb_service.controller.deployment import Deployment
from eplb_service.controller.looks import rank_views
from eplb_service.controller.registry import Tools
from eplb_service.controller.views import RankView
from eplb_service.domain.metric_names import (
    AT_RISK,
    EPOCH_SKEW,
    RANK_EPOCH,
    RANK_SILENCE,
    RANKS,
    REPORT_AGE,
    REPORT_LAG,
    SINGLE_REPLICA,
)
from eplb_service.domain.placement import Placement

SILENT_REPORTS = 3
"""Reporting intervals behind its group from which on a rank counts as silent."""


def show_ranks(deployment: Deployment, tools: Tools) -> None:
    """Set every gauge of the deployment's ranks."""
    name, record = deployment.name, tools.recorder
    ranks = rank_views(deployment, now_s=tools.clock.monotonic_s())
    away = [rank.rank for rank in ranks if not rank.is_connected]
    record.set(RANKS, (name, "connected"), len(ranks) - len(away))
    record.set(RANKS, (name, "away"), len(away))
    _show_epochs(name, ranks, tools)
    _show_reports(deployment, ranks, tools)
    single, at_risk = _single(deployment, tuple(away))
    record.set(SINGLE_REPLICA, (name,), single)
    record.set(AT_RISK, (name,), at_risk)


def _show_epochs(name: str, ranks: tuple[RankView, ...], tools: Tools) -> None:
    told = [rank for rank in ranks if rank.epoch >= 0]
    for rank in told:
        tools.recorder.set(RANK_EPOCH, (name, str(rank.rank)), rank.epoch)
    epochs = [rank.epoch for rank in told]
    tools.recorder.set(EPOCH_SKEW, (name,), max(epochs) - min(epochs) if epochs else 0)


def _show_reports(deployment: Deployment, ranks: tuple[RankView, ...], tools: Tools) -> None:
    name, record, tally = deployment.name, tools.recorder, deployment.meter.tally
    steps = {rank.rank: tally.last_step(rank.rank) for rank in ranks}
    known = [step for step in steps.values() if step is not None]
    newest = max(known, default=0)
    patience = SILENT_REPORTS * deployment.tuning.windows.report_steps
    for rank in ranks:
        labels, step = (name, str(rank.rank)), steps[rank.rank]
        is_behind = step is not None and newest - step >= patience
        if np.isfinite(rank.report_age_s) and (is_behind or not rank.is_connected):
            record.set(RANK_SILENCE, labels, rank.report_age_s)
        else:
            record.forget(RANK_SILENCE, labels)
    record.set(REPORT_LAG, (name,), newest - min(known, default=0))
    ages = [rank.report_age_s for rank in ranks if np.isfinite(rank.report_age_s)]
    if ages:
        record.set(REPORT_AGE, (name,), max(ages))


def _single(deployment: Deployment, away: tuple[int, ...]) -> tuple[int, int]:
    """Count as below; what was counted already is not counted again every second."""
    placement, known = deployment.driver.state.serving.placement, deployment.meter.shown.single
    if known is None or known[0] is not placement or known[1] != away:
        known = placement, away, single_replicas(placement, away)
        deployment.meter.shown.single = known
    return known[2]


def single_replicas(placement: Placement, away: Sequence[int]) -> tuple[int, int]:
    """Experts with one replica, over all layers, and those of them on one of these ranks.

    >>> from eplb_service.domain.placement import placement_from_ranks
    >>> single_replicas(placement_from_ranks([[[0, 1], [0, 2]]], num_experts=3), [1])
    (2, 1)
    """
    is_single = placement.replica_count() == 1
    layers, slots = np.nonzero(placement.routed())
    alone = is_single[layers, placement.phy2log[layers, slots]]
    is_away = np.isin(placement.layout.rank_of_slot()[slots], away)
    return int(is_single.sum()), int((alone & is_away).sum())
