"""Writes the dashboards beside this file: `python deploy/grafana/generate.py`.

Every panel says in its description which question it answers, and has a unit.
"""

import json
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
D = '{deployment=~"$deployment"}'
RUNBOOK = "docs/runbook.md"

Json = dict[str, object]


def target(
    expr: str, legend: str = "", *, is_table: bool = False, is_instant: bool = False
) -> Json:
    """One query of a panel; refId is given by the panel."""
    return {
        "datasource": SOURCE,
        "expr": expr,
        "legendFormat": legend or "__auto",
        "format": "table" if is_table else "time_series",
        "instant": is_instant or is_table,
        "range": not (is_instant or is_table),
    }


def steps(*values: tuple[str, float | None]) -> Json:
    """Colour thresholds, lowest first; text tells the same as colour everywhere."""
    return {"mode": "absolute", "steps": [{"color": c, "value": v} for c, v in values]}


CALM = steps(("blue", None))
BAD_ABOVE_0 = steps(("blue", None), ("orange", 1))
IMBALANCE = steps(("blue", None), ("yellow", 1.2), ("orange", 1.5))


def panel(kind: str, title: str, description: str, targets: Sequence[Json], **rest: object) -> Json:
    """A panel without place; rest: unit, thresholds, options, custom, overrides, transformations."""
    defaults: Json = {
        "unit": rest.get("unit", "short"),
        "thresholds": rest.get("thresholds", CALM),
        "color": {"mode": rest.get("color", "palette-classic")},
        "custom": rest.get("custom", {}),
    }
    for name in ("min", "max", "decimals"):
        if name in rest:
            defaults[name] = rest[name]
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": SOURCE,
        "targets": [{**t, "refId": chr(ord("A") + i)} for i, t in enumerate(targets)],
        "fieldConfig": {"defaults": defaults, "overrides": rest.get("overrides", [])},
        "options": rest.get("options", {}),
        "transformations": rest.get("transformations", []),
    }


def stat(title: str, question: str, expr: str, **rest: object) -> Json:
    """One number now."""
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "auto",
        "wideLayout": True,
        "showPercentChange": False,
        "percentChangeColorMode": "standard",
    }
    legend = str(rest.pop("legend", ""))
    rest.setdefault("color", "thresholds")
    return panel("stat", title, question, [target(expr, legend)], options=options, **rest)


def lines(
    title: str, question: str, *targets: Json, draw: Json | None = None, **rest: object
) -> Json:
    """Values over time."""
    options = {
        "legend": {
            "displayMode": "list",
            "placement": "bottom",
            "showLegend": True,
            "calcs": ["lastNotNull"],
        },
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    custom = {"lineWidth": 1, "fillOpacity": 5, "showPoints": "never", **(draw or {})}
    return panel("timeseries", title, question, targets, options=options, custom=custom, **rest)


def table(title: str, question: str, *targets: Json, **rest: object) -> Json:
    """Rows of now."""
    options = {"showHeader": True, "cellHeight": "sm"}
    return panel("table", title, question, targets, options=options, **rest)


def without_time(by_name: dict[str, str], *hidden: str) -> Json:
    """Take the columns out that no reader needs, and name the others."""
    gone = dict.fromkeys(("Time", "__name__", "instance", "job", *hidden), True)
    return {
        "id": "organize",
        "options": {"excludeByName": gone, "indexByName": {}, "renameByName": by_name},
    }


def dashboard(
    uid: str,
    title: str,
    description: str,
    rows: list[list[tuple[int, int, Json]]],
    *,
    by_deployment: bool,
) -> Json:
    """Rows of (width, height, panel), laid out left to right; the grid is 24 wide."""
    panels: list[Json] = []
    y = 0
    for row in rows:
        x = 0
        for width, height, one in row:
            panels.append(
                {"id": len(panels) + 1, **one, "gridPos": {"x": x, "y": y, "w": width, "h": height}}
            )
            x += width
        y += max(height for _, height, _ in row)
    variables: list[Json] = [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    ]
    if by_deployment:
        variables.append(
            {
                "name": "deployment",
                "label": "Deployment",
                "type": "query",
                "datasource": SOURCE,
                "query": "label_values(eplb_halted, deployment)",
                "refresh": 2,
                "includeAll": False,
                "multi": False,
                "sort": 1,
            }
        )
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["eplb"],
        "schemaVersion": 42,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": [
            {
                "title": "EPLB dashboards",
                "type": "dashboards",
                "tags": ["eplb"],
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
                "icon": "external link",
                "targetBlank": False,
                "tooltip": "",
                "url": "",
            },
            {
                "title": "Runbook",
                "type": "link",
                "url": RUNBOOK,
                "icon": "doc",
                "tags": [],
                "asDropdown": False,
                "includeVars": False,
                "keepTime": False,
                "targetBlank": True,
                "tooltip": "What to do about each alert",
            },
        ],
        "annotations": {"list": [PLAN_MARKS] if by_deployment else []},
        "templating": {"list": variables},
        "panels": panels,
    }


PLAN_MARKS: Json = {
    "name": "Plans that ran",
    "datasource": SOURCE,
    "enable": True,
    "iconColor": "purple",
    "expr": f"sum by (outcome) (increase(eplb_plans_ended_total{D}[1m])) > 0",
    "titleFormat": "plan {{outcome}}",
}


def fleet() -> Json:
    """All deployments of all controllers."""
    worst = table(
        "Deployments",
        "Which deployment needs a look? One row each: mean and worst imbalance over layers, share of ranks in the window, ranks away, halted.",
        target("avg by (deployment) (eplb_layer_imbalance_ratio)", is_table=True),
        target("max by (deployment) (eplb_layer_imbalance_ratio)", is_table=True),
        target("min by (deployment) (eplb_window_coverage_ratio)", is_table=True),
        target('max by (deployment) (eplb_ranks{state="away"})', is_table=True),
        target("max by (deployment) (eplb_halted)", is_table=True),
        transformations=[
            {"id": "merge", "options": {}},
            without_time(
                {
                    "Value #A": "imbalance, mean",
                    "Value #B": "imbalance, worst layer",
                    "Value #C": "coverage",
                    "Value #D": "ranks away",
                    "Value #E": "halted",
                }
            ),
        ],
        unit="none",
        decimals=2,
    )
    return dashboard(
        "eplb-fleet",
        "EPLB fleet",
        "All deployments: which of them needs a look?",
        [
            [
                (
                    6,
                    4,
                    stat(
                        "Controllers that lead",
                        "Does exactly one controller lead for each store? 0: nothing is balanced.",
                        "sum(eplb_leader)",
                        unit="none",
                        thresholds=steps(("orange", None), ("blue", 1)),
                    ),
                ),
                (
                    6,
                    4,
                    stat(
                        "Deployments",
                        "How many deployments have registered?",
                        "count(count by (deployment) (eplb_halted))",
                        unit="none",
                    ),
                ),
                (
                    6,
                    4,
                    stat(
                        "Ranks connected",
                        "How many ranks have a stream to their controller?",
                        'sum(eplb_ranks{state="connected"})',
                        unit="none",
                    ),
                ),
                (
                    6,
                    4,
                    stat(
                        "Alerts firing",
                        "Is anybody told something? The watchdog, which always fires, is left out.",
                        'sum(ALERTS{alertname=~"Eplb.+", alertname!="EplbWatchdog", alertstate="firing"}) or vector(0)',
                        unit="none",
                        thresholds=BAD_ABOVE_0,
                    ),
                ),
            ],
            [(24, 8, worst)],
            [
                (
                    12,
                    8,
                    lines(
                        "Imbalance, mean over layers",
                        "How uneven is the load of each deployment, and does it get better? Peak over mean of the ranks' load; 1 is perfect.",
                        target(
                            "avg by (deployment) (eplb_layer_imbalance_ratio)", "{{deployment}}"
                        ),
                        unit="none",
                        min=1,
                    ),
                ),
                (
                    12,
                    8,
                    lines(
                        "Tokens routed",
                        "How much traffic is there to balance?",
                        target(
                            "sum by (deployment) (rate(eplb_tokens_total[$__rate_interval]))",
                            "{{deployment}}",
                        ),
                        unit="cps",
                    ),
                ),
            ],
            [
                (
                    12,
                    8,
                    lines(
                        "Plans that ended",
                        "How often does anything move, and how does it end?",
                        target(
                            "sum by (deployment, outcome) (increase(eplb_plans_ended_total[$__rate_interval]))",
                            "{{deployment}} {{outcome}}",
                        ),
                        unit="none",
                    ),
                ),
                (
                    12,
                    8,
                    lines(
                        "Weights sent",
                        "How much do ranks send each other?",
                        target(
                            "sum by (deployment) (rate(eplb_moved_bytes_total[$__rate_interval]))",
                            "{{deployment}}",
                        ),
                        unit="Bps",
                    ),
                ),
            ],
        ],
        by_deployment=False,
    )


def deployment() -> Json:
    """One deployment: heat, plans, migrations."""
    matrix = table(
        "Load of ranks by layer",
        "Which ranks does a layer wait for? Rows are layers, columns ranks; tokens computed over the mean of the ranks. Needs server.expert_metrics and a scrape of /metrics/experts.",
        target(f"max by (layer, rank) (eplb_layer_rank_load_ratio{D})", is_table=True),
        transformations=[
            {
                "id": "groupingToMatrix",
                "options": {"rowField": "layer", "columnField": "rank", "valueField": "Value"},
            }
        ],
        unit="none",
        decimals=2,
        min=0,
        max=2,
        color="continuous-BlYlRd",
        custom={
            "cellOptions": {"type": "color-background", "mode": "gradient"},
            "align": "auto",
            "inspect": False,
        },
    )
    over_time = panel(
        "heatmap",
        "Imbalance of layers over time",
        "Which layers are uneven, and since when? One row for each layer; peak over mean of the ranks' load.",
        [target(f"max by (layer) (eplb_layer_imbalance_ratio{D})", "{{layer}}")],
        unit="none",
        color="thresholds",
        options={
            "calculate": False,
            "yAxis": {"axisPlacement": "left", "unit": "none"},
            "rowsFrame": {"layout": "auto"},
            "color": {
                "mode": "scheme",
                "scheme": "Cividis",
                "steps": 64,
                "exponent": 0.5,
                "fill": "dark-blue",
                "reverse": False,
                "min": 1,
                "max": 2,
            },
            "cellGap": 0,
            "cellValues": {"unit": "none", "decimals": 2},
            "filterValues": {"le": 1e-9},
            "showValue": "never",
            "tooltip": {"mode": "single", "yHistogram": False},
            "legend": {"show": True},
            "exemplars": {"color": "rgba(255,0,255,0.7)"},
        },
    )
    effect = panel(
        "barchart",
        "Before and after the last plan",
        "Did the last plan bring what it promised? Imbalance by layer as seen now, as planned, and as realised in the first sufficient window after it.",
        [
            target(f"max by (layer) (eplb_layer_imbalance_ratio{D})", is_table=True),
            target(f"max by (layer) (eplb_layer_planned_imbalance_ratio{D})", is_table=True),
            target(f"max by (layer) (eplb_layer_realised_imbalance_ratio{D})", is_table=True),
        ],
        transformations=[
            {"id": "joinByField", "options": {"byField": "layer", "mode": "outer"}},
            {
                "id": "organize",
                "options": {
                    "excludeByName": {"Time": True, "Time 1": True, "Time 2": True, "Time 3": True},
                    "indexByName": {},
                    "renameByName": {
                        "Value #A": "seen",
                        "Value #B": "planned",
                        "Value #C": "realised",
                    },
                },
            },
        ],
        unit="none",
        decimals=2,
        min=0,
        options={
            "orientation": "auto",
            "xField": "layer",
            "stacking": "none",
            "showValue": "never",
            "groupWidth": 0.8,
            "barWidth": 0.95,
            "barRadius": 0,
            "fullHighlight": False,
            "xTickLabelRotation": 0,
            "xTickLabelSpacing": 0,
            "legend": {
                "displayMode": "list",
                "placement": "bottom",
                "showLegend": True,
                "calcs": [],
            },
            "tooltip": {"mode": "multi", "sort": "none"},
        },
    )
    hottest = table(
        "Hottest experts",
        "Which experts are hot now? The five highest of all layers, as tokens over the mean of their layer.",
        target(f"topk(5, max by (layer, expert) (eplb_hot_expert_ratio{D}))", is_table=True),
        transformations=[
            without_time({"Value": "times the mean"}),
            {
                "id": "sortBy",
                "options": {"fields": {}, "sort": [{"field": "times the mean", "desc": True}]},
            },
        ],
        unit="none",
        decimals=1,
    )
    ttft = "histogram_quantile({q}, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[$__rate_interval])))"
    tpot = "histogram_quantile({q}, sum by (le) (rate(vllm:inter_token_latency_seconds_bucket[$__rate_interval])))"
    bars = {"drawStyle": "bars", "fillOpacity": 60, "stacking": {"mode": "normal", "group": "A"}}
    return dashboard(
        "eplb-deployment",
        "EPLB deployment",
        "One deployment: where the heat is, what plans did about it, and what serving noticed.",
        [
            [
                (
                    4,
                    4,
                    stat(
                        "Epoch",
                        "Which placement is served?",
                        f"max(eplb_rank_epoch{D})",
                        unit="none",
                    ),
                ),
                (
                    4,
                    4,
                    stat(
                        "Imbalance, mean",
                        "How uneven is the load now? Peak over mean; 1 is perfect.",
                        f"avg(eplb_layer_imbalance_ratio{D})",
                        unit="none",
                        decimals=2,
                        thresholds=IMBALANCE,
                    ),
                ),
                (
                    4,
                    4,
                    stat(
                        "Imbalance, worst layer",
                        "How bad is the worst layer?",
                        f"max(eplb_layer_imbalance_ratio{D})",
                        unit="none",
                        decimals=2,
                        thresholds=IMBALANCE,
                    ),
                ),
                (
                    4,
                    4,
                    stat(
                        "Coverage",
                        "Do all ranks report? Share of ranks in the newest window.",
                        f"max(eplb_window_coverage_ratio{D})",
                        unit="percentunit",
                        thresholds=steps(("orange", None), ("blue", 0.9)),
                    ),
                ),
                (
                    4,
                    4,
                    stat(
                        "Halted",
                        "Does a halt stand?",
                        f"max(eplb_halted{D})",
                        unit="bool_yes_no",
                        thresholds=BAD_ABOVE_0,
                    ),
                ),
                (
                    4,
                    4,
                    stat(
                        "Frozen until",
                        "Are automatic plans frozen, and until when? 1970 means no.",
                        f"1000 * max(eplb_frozen_until_timestamp_seconds{D})",
                        unit="dateTimeAsIso",
                    ),
                ),
            ],
            [(14, 10, matrix), (10, 10, over_time)],
            [(14, 8, effect), (10, 8, hottest)],
            [
                (
                    8,
                    8,
                    lines(
                        "Plans by verdict and reason",
                        "What did the planner decide, and which gate said no?",
                        target(
                            f"sum by (verdict, reason) (increase(eplb_plans_total{D}[$__rate_interval]))",
                            "{{verdict}} {{reason}}",
                        ),
                        unit="none",
                        draw=bars,
                    ),
                ),
                (
                    8,
                    8,
                    lines(
                        "Time to first token",
                        "Does the first token notice plans? From vLLM's own metrics; plans that ran are marked.",
                        target(ttft.format(q=0.5), "p50"),
                        target(ttft.format(q=0.99), "p99"),
                        unit="s",
                        min=0,
                    ),
                ),
                (
                    8,
                    8,
                    lines(
                        "Time per output token",
                        "Do later tokens notice plans? From vLLM's own metrics; plans that ran are marked.",
                        target(tpot.format(q=0.5), "p50"),
                        target(tpot.format(q=0.99), "p99"),
                        unit="s",
                        min=0,
                    ),
                ),
            ],
            [
                (
                    8,
                    8,
                    lines(
                        "Load of ranks",
                        "Which rank has more to do than the others, over all layers? 1 is the mean.",
                        target(f"max by (rank) (eplb_rank_load_ratio{D})", "rank {{rank}}"),
                        unit="none",
                    ),
                ),
                (
                    8,
                    8,
                    lines(
                        "Mean step",
                        "Are steps longer while weights move?",
                        target(
                            f"sum by (during) (rate(eplb_step_seconds_total{D}[$__rate_interval])) / (sum by (during) (rate(eplb_steps_total{D}[$__rate_interval])) > 0)",
                            "{{during}}",
                        ),
                        unit="s",
                        min=0,
                    ),
                ),
                (
                    8,
                    8,
                    lines(
                        "Stall of migrations",
                        "How much time did serving lose to moves within an hour, summed over ranks?",
                        target(f"eplb:migration_stall_seconds:increase1h{D}", "stall"),
                        unit="s",
                        min=0,
                    ),
                ),
            ],
            [
                (
                    8,
                    8,
                    lines(
                        "Moves",
                        "How much moves, and does later movement undo earlier?",
                        target(
                            f"sum by (outcome) (increase(eplb_moves_total{D}[$__rate_interval]))",
                            "{{outcome}}",
                        ),
                        target(
                            f"sum(increase(eplb_moves_undone_total{D}[$__rate_interval]))", "undone"
                        ),
                        unit="none",
                    ),
                ),
                (
                    8,
                    8,
                    lines(
                        "Weights sent",
                        "How many bytes do ranks send each other, and for nothing?",
                        target(
                            f"sum by (outcome) (rate(eplb_moved_bytes_total{D}[$__rate_interval]))",
                            "{{outcome}}",
                        ),
                        unit="Bps",
                    ),
                ),
                (
                    8,
                    8,
                    lines(
                        "Waves",
                        "How do waves end?",
                        target(
                            f"sum by (outcome) (increase(eplb_waves_total{D}[$__rate_interval]))",
                            "{{outcome}}",
                        ),
                        target(
                            f"sum(increase(eplb_digest_mismatches_total{D}[$__rate_interval]))",
                            "digest mismatches",
                        ),
                        unit="none",
                    ),
                ),
            ],
            [
                (
                    8,
                    8,
                    lines(
                        "Reports",
                        "Do reports arrive, get lost, or get refused?",
                        target(f"sum(rate(eplb_reports_total{D}[$__rate_interval]))", "accepted"),
                        target(f"sum(rate(eplb_reports_lost_total{D}[$__rate_interval]))", "lost"),
                        target(
                            f"sum(rate(eplb_reports_rejected_total{D}[$__rate_interval])) or vector(0)",
                            "rejected",
                        ),
                        unit="cps",
                    ),
                ),
                (
                    8,
                    8,
                    lines(
                        "Age and lag of reports",
                        "How old is what plans rest on?",
                        target(f"max(eplb_report_age_seconds{D})", "oldest rank's newest"),
                        target(f"max(eplb_window_age_seconds{D})", "newest"),
                        target(f"max(eplb_rank_silence_seconds{D}) or vector(0)", "silent rank"),
                        unit="s",
                        min=0,
                    ),
                ),
                (
                    8,
                    8,
                    lines(
                        "Window",
                        "How many steps do plans rest on, and how far are ranks apart?",
                        target(f"max(eplb_window_steps{D})", "steps in the window"),
                        target(f"max(eplb_report_lag_steps{D})", "lag of the last rank"),
                        unit="none",
                        min=0,
                    ),
                ),
            ],
            [
                (
                    8,
                    8,
                    lines(
                        "Tokens that are no load",
                        "How much is computed that nobody asked for, or overflows?",
                        target(
                            f"sum by (kind) (rate(eplb_excluded_tokens_total{D}[$__rate_interval]))",
                            "{{kind}}",
                        ),
                        target(
                            f"sum by (kind) (rate(eplb_excluded_steps_total{D}[$__rate_interval]))",
                            "{{kind}} steps",
                        ),
                        target(
                            f"sum(rate(eplb_overflow_tokens_total{D}[$__rate_interval]))",
                            "overflow",
                        ),
                        unit="cps",
                        min=0,
                    ),
                ),
                (
                    8,
                    8,
                    lines(
                        "Epochs of ranks",
                        "Do all ranks serve the same?",
                        target(f"max(eplb_rank_epoch{D})", "highest"),
                        target(f"min(eplb_rank_epoch{D})", "lowest"),
                        target(f"max(eplb_epoch_skew{D})", "apart"),
                        unit="none",
                    ),
                ),
                (
                    8,
                    8,
                    lines(
                        "Experts with one replica",
                        "What is lost with a rank?",
                        target(f"max(eplb_single_replica_experts{D})", "one replica"),
                        target(
                            f"max(eplb_single_replica_experts_at_risk{D})", "on a rank that is away"
                        ),
                        unit="none",
                        min=0,
                    ),
                ),
            ],
            [
                (
                    12,
                    8,
                    lines(
                        "Heat by layer, quantiles over experts",
                        "Is heat spread or concentrated? Tokens over the layer's mean, highest layer. Needs /metrics/experts.",
                        target(
                            f"max by (quantile) (eplb_layer_heat_ratio{D})", "quantile {{quantile}}"
                        ),
                        unit="none",
                        min=0,
                    ),
                ),
                (
                    12,
                    8,
                    lines(
                        "Tokens of the hottest experts",
                        "How do the hottest experts develop? Needs /metrics/experts.",
                        target(
                            f"topk(5, max by (layer, expert) (eplb_expert_tokens{D}))",
                            "layer {{layer}} expert {{expert}}",
                        ),
                        unit="none",
                        min=0,
                    ),
                ),
            ],
        ],
        by_deployment=True,
    )


def controller() -> Json:
    """Health of the controllers themselves."""
    slow = "histogram_quantile(0.95, sum by (le, phase) (rate(eplb_phase_duration_seconds_bucket[$__rate_interval])))"
    return dashboard(
        "eplb-controller",
        "EPLB controller health",
        "Is the control plane itself well?",
        [
            [
                (
                    6,
                    4,
                    stat(
                        "Leads",
                        "Which controller leads?",
                        "max by (instance) (eplb_leader)",
                        legend="{{instance}}",
                        unit="bool_yes_no",
                    ),
                ),
                (
                    6,
                    4,
                    stat(
                        "Generation",
                        "How often was leadership taken?",
                        "max(eplb_generation)",
                        unit="none",
                    ),
                ),
                (
                    6,
                    4,
                    stat(
                        "Store answers",
                        "Was the newest call to the store answered?",
                        "min(eplb_store_up)",
                        unit="bool_yes_no",
                        thresholds=steps(("orange", None), ("blue", 1)),
                    ),
                ),
                (
                    6,
                    4,
                    stat(
                        "Version",
                        "What runs?",
                        "max by (version) (eplb_build_info)",
                        legend="{{version}}",
                        unit="none",
                    ),
                ),
            ],
            [
                (
                    8,
                    8,
                    lines(
                        "Calls to the store",
                        "Does the store keep up?",
                        target(
                            "sum by (outcome) (rate(eplb_store_calls_total[$__rate_interval]))",
                            "{{outcome}}",
                        ),
                        unit="cps",
                    ),
                ),
                (
                    8,
                    8,
                    lines(
                        "Streams",
                        "Are ranks connected, and do they come back all the time?",
                        target("sum by (state) (eplb_ranks)", "{{state}}"),
                        target(
                            "sum(increase(eplb_streams_opened_total[$__rate_interval]))", "opened"
                        ),
                        unit="none",
                        min=0,
                    ),
                ),
                (
                    8,
                    8,
                    lines(
                        "Reports",
                        "How much does the controller take in?",
                        target("sum(rate(eplb_reports_total[$__rate_interval]))", "accepted"),
                        target(
                            "sum by (reason) (rate(eplb_reports_rejected_total[$__rate_interval])) or vector(0)",
                            "rejected {{reason}}",
                        ),
                        unit="cps",
                        min=0,
                    ),
                ),
            ],
            [
                (
                    8,
                    8,
                    lines(
                        "Planner, last success",
                        "When did automatic planning last end well? Against five intervals, from which on somebody is told.",
                        target(
                            "time() - (eplb_planner_last_success_timestamp_seconds > 0) or vector(0)",
                            "{{deployment}}",
                        ),
                        target("5 * max(eplb_planning_interval_seconds)", "told from"),
                        target("max(eplb_planning_enabled)", "planning is on"),
                        unit="s",
                        min=0,
                    ),
                ),
                (
                    8,
                    8,
                    lines(
                        "Drawing, staging, cutover: 95th percentile",
                        "What takes long?",
                        target(slow, "{{phase}}"),
                        unit="s",
                        min=0,
                    ),
                ),
                (
                    8,
                    8,
                    lines(
                        "Failures",
                        "What goes wrong?",
                        target(
                            "sum(increase(eplb_planner_failures_total[$__rate_interval]))",
                            "planner",
                        ),
                        target("sum(increase(eplb_halts_total[$__rate_interval]))", "halts"),
                        target(
                            'sum(increase(eplb_waves_total{outcome="aborted"}[$__rate_interval]))',
                            "waves aborted",
                        ),
                        unit="none",
                        min=0,
                    ),
                ),
            ],
            [
                (
                    12,
                    8,
                    lines(
                        "Wave in flight",
                        "Is a wave stuck? Seconds since its epoch was spent; 0 when none is in flight.",
                        target(
                            "time() - (eplb_wave_started_timestamp_seconds > 0) or 0 * eplb_wave_started_timestamp_seconds",
                            "{{deployment}}",
                        ),
                        unit="s",
                        min=0,
                    ),
                ),
                (
                    12,
                    8,
                    lines(
                        "Staging memory",
                        "How much of what ranks reserve for staging does the wave in flight use?",
                        target(
                            "sum by (deployment, state) (eplb_staging_bytes)",
                            "{{deployment}} {{state}}",
                        ),
                        unit="bytes",
                        min=0,
                    ),
                ),
            ],
        ],
        by_deployment=False,
    )


def rendered() -> dict[str, str]:
    """Every dashboard as JSON text, by file name."""
    made = {"fleet.json": fleet(), "deployment.json": deployment(), "controller.json": controller()}
    return {name: json.dumps(tree, indent=1) + "\n" for name, tree in made.items()}


if __name__ == "__main__":
    for name, text in rendered().items():
        (HERE / name).write_text(text, encoding="utf-8")
