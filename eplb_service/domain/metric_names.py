"""The one table of metric names, with help that carries the formula.

Names follow Prometheus's rules: base units, `_total` on counters. What METRICS has is always
exposed and bounded; what OPT_IN has is exposed on a path of its own, if at all.
"""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Prometheus type."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram, without the infinite one."""


DEPLOYMENT = ("deployment",)
BY_LAYER = ("deployment", "layer")
BY_RANK = ("deployment", "rank")
BY_EXPERT = ("deployment", "layer", "expert")
BY_OUTCOME = ("deployment", "outcome")


def _gauge(name: str, text: str, labels: tuple[str, ...] = DEPLOYMENT) -> Metric:
    return Metric(f"eplb_{name}", Kind.GAUGE, text, labels)


def _counter(name: str, text: str, labels: tuple[str, ...] = DEPLOYMENT) -> Metric:
    return Metric(f"eplb_{name}_total", Kind.COUNTER, text, labels)


# ---- balance ------------------------------------------------------------------

LAYER_IMBALANCE = _gauge(
    "layer_imbalance_ratio",
    "Seen: peak over mean of the ranks' measured load in the newest window, by MoE layer; "
    "1 is perfect, absent without load.",
    BY_LAYER,
)
LAYER_PLANNED = _gauge(
    "layer_planned_imbalance_ratio",
    "Planned: peak over mean of the ranks' load that the newest plan carried out promised, by MoE "
    "layer; absent before the first plan.",
    BY_LAYER,
)
LAYER_REALISED = _gauge(
    "layer_realised_imbalance_ratio",
    "Realised: eplb_layer_imbalance_ratio of the first sufficient window after the newest plan "
    "was carried out; absent until there is one.",
    BY_LAYER,
)
RANK_LOAD = _gauge(
    "rank_load_ratio",
    "Tokens the rank computed over the mean of all ranks, all layers of the newest window.",
    BY_RANK,
)
HOT_EXPERT = _gauge(
    "hot_expert_ratio",
    "Tokens of the expert over the mean of its layer's experts in the newest window; the five "
    "highest of the deployment, others are absent.",
    BY_EXPERT,
)
SINGLE_REPLICA = _gauge(
    "single_replica_experts",
    "Experts that have one replica only, summed over layers.",
)
AT_RISK = _gauge(
    "single_replica_experts_at_risk",
    "Experts whose only replica lies on a rank that is not connected, summed over layers.",
)

# ---- reports and windows ------------------------------------------------------

WINDOW_COVERAGE = _gauge(
    "window_coverage_ratio", "Ranks in the newest window over all ranks, 0 to 1."
)
WINDOW_AGE = _gauge("window_age_seconds", "Seconds since the newest report that was accepted.")
WINDOW_STEPS = _gauge("window_steps", "Steps that the newest window encloses.")
REPORT_AGE = _gauge(
    "report_age_seconds",
    "Seconds since the newest accepted load report of the rank that reported longest ago.",
)
REPORT_LAG = _gauge(
    "report_lag_steps",
    "Steps between the newest reports of the rank that is furthest and of the rank that is least "
    "far.",
)
RANK_SILENCE = _gauge(
    "rank_silence_seconds",
    "Seconds since the newest accepted report of a rank that is not connected or three reports "
    "behind its group; absent for a rank that keeps up.",
    BY_RANK,
)
REPORTS = _counter("reports", "Load reports accepted, all ranks.")
REPORTS_LOST = _counter(
    "reports_lost",
    "Load reports that never came: steps between two successive reports of a rank over the "
    "reporting interval, less one.",
)
REPORTS_REJECTED = _counter(
    "reports_rejected", "Load reports refused, by reason.", (*DEPLOYMENT, "reason")
)
TOKENS = _counter("tokens", "Real tokens that the ranks routed, each once per forward pass.")
EXCLUDED_TOKENS = _counter(
    "excluded_tokens",
    "Rows that the ranks computed and that are no load: padding.",
    (*DEPLOYMENT, "kind"),
)
EXCLUDED_STEPS = _counter(
    "excluded_steps",
    "Steps whose tokens are no load, summed over ranks: dummy, warmup, profile.",
    (*DEPLOYMENT, "kind"),
)
OVERFLOW_TOKENS = _counter(
    "overflow_tokens", "Tokens beyond a rank's receive capacity, summed over ranks."
)
STEPS = _counter(
    "steps",
    "Real steps, summed over ranks, by what the controller was doing when they were reported: "
    "serving, or migration while a wave was in flight.",
    (*DEPLOYMENT, "during"),
)
STEP_SECONDS = _counter(
    "step_seconds",
    "Seconds of the steps that eplb_steps_total counts; the stall of migrations is seconds "
    "during migration less steps during migration times the mean step while serving.",
    (*DEPLOYMENT, "during"),
)

# ---- plans --------------------------------------------------------------------

PLANS = _counter(
    "plans",
    "Plans drawn, by verdict (yes, throttle, no, nothing_to_do, failed) and reason: the gate that "
    "did not say yes, why there was nothing to do, the code of the failure, or none.",
    (*DEPLOYMENT, "verdict", "reason"),
)
PLANS_ENDED = _counter(
    "plans_ended", "Plans that ran and are over, by outcome (done, stopped).", BY_OUTCOME
)
PLANNER_FAILURES = _counter(
    "planner_failures", "Plans that raised, ran out of time or returned something unsound."
)
PLANNER_SUCCESS = _gauge(
    "planner_last_success_timestamp_seconds",
    "Unix time at which the automatic planner last ended a cycle without failure, whether or not "
    "there was anything to do; 0 before the first.",
)
PLANNING_ENABLED = _gauge(
    "planning_enabled", "1 where plans are drawn without being asked for, else 0."
)
PLANNING_INTERVAL = _gauge(
    "planning_interval_seconds", "Seconds between two automatic planning cycles, as configured."
)

# ---- migrations ---------------------------------------------------------------

WAVES = _counter("waves", "Waves ended, by outcome (settled, aborted).", BY_OUTCOME)
MOVES = _counter(
    "moves",
    "Slots that got another expert, by outcome of their wave (settled, or aborted: none changed).",
    BY_OUTCOME,
)
MOVED_BYTES = _counter(
    "moved_bytes",
    "Bytes of expert weights that ranks send each other in a wave, by the wave's outcome.",
    BY_OUTCOME,
)
SHARE_REVISIONS = _counter(
    "share_revisions",
    "Share revisions drawn, by outcome (in_use, late, overtaken, failed); none moves a weight.",
    BY_OUTCOME,
)
SHARE_REVISION = _gauge(
    "share_revision", "Share revision that all ranks use, 0 while shares are even."
)
SHARE_IMBALANCE = _gauge(
    "share_predicted_imbalance_ratio",
    "Peak over mean of the ranks' load that the share revision in use promised, mean over layers "
    "with data; absent while shares are even.",
)
MOVES_UNDONE = _counter(
    "moves_undone",
    "Settled moves that bring a rank an expert back that its slots' last moves took away.",
)
DURATION = Metric(
    "eplb_phase_duration_seconds",
    Kind.HISTOGRAM,
    "Seconds that a plan took to draw (draw), a wave from its epoch's spending to MAY_COMMIT "
    "(stage), and from there to the ranks' cutover (cutover).",
    (*DEPLOYMENT, "phase"),
    (0.1, 1.0, 10.0, 60.0),
)
WAVE_STARTED = _gauge(
    "wave_started_timestamp_seconds",
    "Unix time at which the epoch of the wave in flight was spent; 0 when none is in flight.",
)
STAGING_BYTES = _gauge(
    "staging_bytes",
    "Bytes of the ranks' staging rows, summed over ranks: reserved, and used by the wave in "
    "flight.",
    (*DEPLOYMENT, "state"),
)
RANK_EPOCH = _gauge("rank_epoch", "Epoch that the rank last said it serves.", BY_RANK)
EPOCH_SKEW = _gauge("epoch_skew", "Highest less lowest epoch that the ranks last said to serve.")
DIGEST_MISMATCHES = _counter(
    "digest_mismatches", "Waves that a rank dropped because received weights had a wrong digest."
)

# ---- switches and streams -----------------------------------------------------

HALTED = _gauge("halted", "1 while a halt stands, else 0.")
HALTS = _counter("halts", "Times that a halt began.")
FROZEN_UNTIL = _gauge(
    "frozen_until_timestamp_seconds",
    "Unix time until which plans are frozen; 0 when they are not.",
)
RANKS = _gauge(
    "ranks",
    "Ranks of the group, by state of their stream (connected, away).",
    (*DEPLOYMENT, "state"),
)
STREAMS_OPENED = _counter("streams_opened", "Times that a rank's stream was welcomed.")

# ---- the controller itself ----------------------------------------------------

LEADER = _gauge("leader", "1 while this controller leads, else 0; one in a fleet may.", ())
GENERATION = _gauge("generation", "Generation under which this controller leads; 0 if not.", ())
STORE_UP = _gauge(
    "store_up",
    "1 if the newest call to the store was answered in time, and so was the newest write.",
    (),
)
STORE_CALLS = _counter("store_calls", "Calls to the store, by outcome (ok, failed).", ("outcome",))
BUILD_INFO = _gauge("build_info", "1, with the version that runs.", ("version",))

METRICS: tuple[Metric, ...] = tuple(
    found for found in tuple(globals().values()) if isinstance(found, Metric)
)
"""Always exposed, in the order above."""

# ---- opt-in: server.expert_metrics --------------------------------------------

EXPERT_TOKENS = _gauge(
    "expert_tokens", "Tokens of the expert, all replicas, in the newest window.", BY_EXPERT
)
LAYER_HEAT = _gauge(
    "layer_heat_ratio",
    "Quantiles (0.5, 0.9, 0.99, 1) over a layer's experts of tokens over the layer's mean, in the "
    "newest window.",
    (*BY_LAYER, "quantile"),
)

LAYER_RANK_LOAD = _gauge(
    "layer_rank_load_ratio",
    "Tokens the rank computed in the layer over the mean of the ranks whose load is known, in the "
    "newest window.",
    (*BY_LAYER, "rank"),
)

OPT_IN: tuple[Metric, ...] = (EXPERT_TOKENS, LAYER_HEAT, LAYER_RANK_LOAD)
"""Exposed on /metrics/experts, where the setting allows it."""
