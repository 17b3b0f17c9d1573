"""Status, heat and history as people read them. Pure: a view goes in, text comes out."""

import json
from collections.abc import Iterator, Mapping
from math import isnan

import numpy as np

from eplb_service.cli.durations import show_duration
from eplb_service.cli.words import (
    NO_DATA,
    clock_time,
    count,
    figure,
    imbalance,
    line,
    table,
    visible,
)
from eplb_service.controller.views import (
    HeatView,
    HistoryView,
    OperationView,
    RefusalView,
    StatusView,
)

HOTTEST = 4
MAX_RANKS_LISTED = 8


def show_statuses(views: tuple[StatusView, ...], refused: tuple[RefusalView, ...] = ()) -> str:
    """Every deployment, and the ranks that none takes in."""
    parts = [show_status(view) for view in views]
    if not views and not refused:
        parts = ["no deployment is registered yet; one appears when its first rank connects"]
    if refused:
        parts.append("\n".join(show_refusals(refused)))
    return "\n\n".join(parts)


def show_refusals(refused: tuple[RefusalView, ...]) -> Iterator[str]:
    """Each rank that was refused, with why; ranks refused for one reason share a line."""
    alike: dict[tuple[str, str], list[RefusalView]] = {}
    for refusal in refused:
        alike.setdefault((refusal.deployment, _reason(refusal)), []).append(refusal)
    for (deployment, why), of in list(alike.items())[:MAX_RANKS_LISTED]:
        ranks = ", ".join(str(refusal.rank) for refusal in of[:MAX_RANKS_LISTED])
        more = f" and {len(of) - MAX_RANKS_LISTED} more" if len(of) > MAX_RANKS_LISTED else ""
        who = f"rank {ranks}" if len(of) == 1 else f"ranks {ranks}{more}"
        age = _ago(min(refusal.age_s for refusal in of))
        yield line("refused", f"{who} of {deployment}, last {age}", visible(why))
    if len(alike) > MAX_RANKS_LISTED:
        yield line("", f"and for {len(alike) - MAX_RANKS_LISTED} more reasons")


def _reason(refusal: RefusalView) -> str:
    """Why, without the rank's name at the beginning, which the line has."""
    return refusal.why.removeprefix(f"rank {refusal.rank} of {refusal.deployment} is refused: ")


def show_status(view: StatusView) -> str:
    """One deployment."""
    settled = show_duration(view.settled_age_s)
    window, planning = view.window, view.operation.planning
    lines = [
        line(
            "deployment",
            view.deployment,
            f"epoch {view.epoch}" + (f".{view.revision}" if view.revision else ""),
            f"generation {view.generation}",
            "settled " + (settled if settled == NO_DATA else f"{settled} ago"),
        ),
        *_ranks(view),
        line(
            "window",
            count(window.num_steps, "step"),
            f"coverage {figure(window.coverage)}",
            f"newest report {_ago(window.age_s)}",
            *([f"{window.rejected_reports} refused"] if window.rejected_reports else []),
        ),
        imbalance(view.imbalance.mean, view.imbalance.worst, view.imbalance.worst_layer),
        *_shares(view),
        *_operation(view.operation),
    ]
    if planning.num_skipped or planning.num_failed:
        lines.append(
            line(
                "planning",
                f"{planning.num_skipped} skipped" + _because(planning.last_skip),
                f"{planning.num_failed} failed" + _because(planning.last_error),
            )
        )
    return "\n".join(lines)


def _ranks(view: StatusView) -> Iterator[str]:
    connected = sum(rank.is_connected for rank in view.ranks)
    there = sum(rank.epoch == view.epoch for rank in view.ranks)
    all_of = "" if connected == len(view.ranks) else f" of {len(view.ranks)}"
    yield line("ranks", f"{connected}{all_of} connected, {there} at epoch {view.epoch}")
    apart = [rank for rank in view.ranks if not rank.is_connected or rank.epoch != view.epoch]
    for rank in apart[:MAX_RANKS_LISTED]:
        yield line(
            "",
            f"rank {rank.rank} on {rank.node}",
            "connected" if rank.is_connected else "away",
            f"epoch {rank.epoch}",
            rank.phase,
            f"last report {_ago(rank.report_age_s)}",
        )
    if len(apart) > MAX_RANKS_LISTED:
        yield line("", f"and {len(apart) - MAX_RANKS_LISTED} more; see -o json")


def _shares(view: StatusView) -> Iterator[str]:
    shares = view.shares
    if view.revision and isnan(shares.predicted):
        yield line("shares", f"revision {view.revision}, sent by an earlier controller")
    elif view.revision:
        yield line(
            "shares",
            f"revision {view.revision}",
            f"imbalance {figure(shares.before)} to {figure(shares.predicted)} predicted",
            f"{figure(shares.measured)} measured since",
        )
    if shares.even_because:
        yield line("shares", f"none are drawn: {shares.even_because}")


def _operation(view: OperationView) -> Iterator[str]:
    running = view.running
    if running is None:
        yield line("plan", "none")
    else:
        yield line(
            "plan",
            f"{running.plan_id} {running.phase}",
            f"wave {running.wave} of {running.num_waves} settled",
            *([f"the next is {running.wave_phase}"] if running.wave_phase else []),
            *([running.reason] if running.reason else []),
        )
    if view.is_idle:
        yield line("idle", "the group runs no steps; limits counted in steps stand still")
    if view.degraded:
        yield line("away", view.degraded)
    if view.halt.is_active:
        yield line("halt", f"{view.halt.number}: {view.halt.reason}")
    if view.drained:
        ranks = ", ".join(map(str, view.drained))
        who = f"rank {ranks}" if len(view.drained) == 1 else f"ranks {ranks}"
        yield line("drained", who, *([view.drained_so_far] if view.drained_so_far else []))
    if view.freeze:
        until = clock_time(view.freeze.until_s)
        yield line("frozen", f"until {until} by {view.freeze.who}: {view.freeze.reason}")


def show_heat(view: HeatView) -> str:
    """Heat by layer: how uneven, and which experts and rank carry most."""
    head = line(
        "deployment",
        view.deployment,
        count(view.num_steps, "step"),
        f"coverage {figure(view.coverage)}",
    )
    heads = ("layer", "model layer", "tokens", "imbalance", "busiest rank", "hottest experts")
    rows = [_heat_row(view, at) for at in range(len(view.layers))]
    return f"{head}\n\n{table(heads, rows, right=(0, 1, 2, 3))}"


def heat_csv(view: HeatView) -> str:
    """Heat as comma-separated values, one line per layer and expert."""
    lines = ["layer,model_layer,expert,tokens"]
    for at, layer in enumerate(view.layers):
        lines += [
            f"{layer},{view.model_layers[at]},{expert},{tokens:.15g}"
            for expert, tokens in enumerate(view.tokens[at].tolist())
        ]
    return "\n".join(lines)


def _heat_row(view: HeatView, at: int) -> tuple[str, ...]:
    tokens, load = view.tokens[at], view.rank_load[at]
    total = float(tokens.sum())
    place = (str(view.layers[at]), str(view.model_layers[at]))
    if not total > 0:
        return (*place, "0", NO_DATA, NO_DATA, NO_DATA)
    hottest = np.argsort(-tokens, kind="stable")[:HOTTEST].tolist()
    experts = ", ".join(f"{expert} ({100 * tokens[expert] / total:.1f} %)" for expert in hottest)
    busiest = int(load.argmax())
    share = f"rank {busiest} ({100 * load[busiest] / load.sum():.1f} %)"
    return (*place, f"{total:.0f}", figure(float(view.imbalance[at])), share, experts)


def show_history(view: HistoryView) -> str:
    """What happened, newest first."""
    if not view.entries:
        return f"nothing has happened to {view.deployment or 'the deployment'} yet"
    rows = [
        (
            clock_time(entry.at_s),
            entry.kind,
            str(entry.epoch),
            entry.plan_id or "-",
            entry.who or "-",
            entry.text,
        )
        for entry in view.entries
    ]
    return table(("time", "kind", "epoch", "plan", "who", "what"), rows, right=(2,))


def show_config(values: Mapping[str, str]) -> str:
    """Settings by name, with their values as JSON."""
    rows = [(name, json.dumps(json.loads(value))) for name, value in sorted(values.items())]
    return table(("setting", "value"), rows)


def _ago(seconds: float) -> str:
    shown = show_duration(seconds)
    return shown if shown == NO_DATA else f"{shown} ago"


def _because(text: str) -> str:
    return f" (last: {text})" if text else ""
