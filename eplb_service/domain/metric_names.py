"""The one table of metric names, with help that carries the formula.

Names follow Prometheus's rules: base units, `_total` on counters.
"""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Prometheus type."""

    GAUGE = "gauge"
    COUNTER = "counter"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]


DEPLOYMENT = ("deployment",)
BY_LAYER = ("deployment", "layer")
BY_RANK = ("deployment", "rank")

LAYER_IMBALANCE = Metric(
    "eplb_layer_imbalance_ratio",
    Kind.GAUGE,
    "Peak over mean of the ranks' measured load in the newest window, by MoE layer; 1 is perfect, "
    "absent without load.",
    BY_LAYER,
)
RANK_LOAD = Metric(
    "eplb_rank_load_ratio",
    Kind.GAUGE,
    "Tokens the rank computed over the mean of all ranks, all layers of the newest window.",
    BY_RANK,
)
REPORT_AGE = Metric(
    "eplb_report_age_seconds",
    Kind.GAUGE,
    "Seconds since the rank's newest accepted load report.",
    BY_RANK,
)
RANK_EPOCH = Metric(
    "eplb_rank_epoch",
    Kind.GAUGE,
    "Epoch that the rank last said it serves.",
    BY_RANK,
)
REPORTS_REJECTED = Metric(
    "eplb_reports_rejected_total",
    Kind.COUNTER,
    "Load reports refused, by reason.",
    (*DEPLOYMENT, "reason"),
)
WINDOW_COVERAGE = Metric(
    "eplb_window_coverage_ratio",
    Kind.GAUGE,
    "Ranks in the newest window over all ranks.",
    DEPLOYMENT,
)
PLANS = Metric(
    "eplb_plans_total",
    Kind.COUNTER,
    "Plans drawn, by verdict (yes, throttle, no, nothing_to_do, failed).",
    (*DEPLOYMENT, "verdict"),
)
PLANNER_FAILURES = Metric(
    "eplb_planner_failures_total",
    Kind.COUNTER,
    "Plans that raised, ran out of time or returned something unsound.",
    DEPLOYMENT,
)
WAVES = Metric(
    "eplb_waves_total",
    Kind.COUNTER,
    "Waves ended, by outcome (settled, aborted).",
    (*DEPLOYMENT, "outcome"),
)
MOVES = Metric(
    "eplb_moves_total",
    Kind.COUNTER,
    "Slots that got another expert, in settled waves.",
    DEPLOYMENT,
)
MOVED_BYTES = Metric(
    "eplb_moved_bytes_total",
    Kind.COUNTER,
    "Bytes of expert weights sent between ranks, in settled waves.",
    DEPLOYMENT,
)
SHARE_REVISIONS = Metric(
    "eplb_share_revisions_total",
    Kind.COUNTER,
    "Share revisions drawn, by outcome (in_use, late, overtaken, failed); none moves a weight.",
    (*DEPLOYMENT, "outcome"),
)
SHARE_REVISION = Metric(
    "eplb_share_revision",
    Kind.GAUGE,
    "Share revision that all ranks use, 0 while shares are even.",
    DEPLOYMENT,
)
SHARE_IMBALANCE = Metric(
    "eplb_share_predicted_imbalance_ratio",
    Kind.GAUGE,
    "Peak over mean of the ranks' load that the share revision in use promised, mean over layers "
    "with data; absent while shares are even.",
    DEPLOYMENT,
)
FROZEN_UNTIL = Metric(
    "eplb_frozen_until_timestamp_seconds",
    Kind.GAUGE,
    "Unix time until which plans are frozen; 0 when they are not.",
    DEPLOYMENT,
)
HALTED = Metric(
    "eplb_halted",
    Kind.GAUGE,
    "1 while a halt stands, else 0.",
    DEPLOYMENT,
)

METRICS: tuple[Metric, ...] = (
    LAYER_IMBALANCE,
    RANK_LOAD,
    REPORT_AGE,
    RANK_EPOCH,
    REPORTS_REJECTED,
    WINDOW_COVERAGE,
    PLANS,
    PLANNER_FAILURES,
    WAVES,
    MOVES,
    MOVED_BYTES,
    SHARE_REVISIONS,
    SHARE_REVISION,
    SHARE_IMBALANCE,
    FROZEN_UNTIL,
    HALTED,
)
