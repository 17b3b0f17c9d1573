"""What is wrong with a deployment, in words, with what to do. Pure: a view goes in."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from eplb_service.cli.durations import show_duration
from eplb_service.cli.words import clock_time, count, figure
from eplb_service.controller.views import StatusView

STALE_S = 60.0
"""Age from which the newest report of a group that runs steps is old, and the time after a cutover
in which a window may be without load."""
CLOCK_S = 5.0
"""Difference of two clocks that no network explains; HTTP tells whole seconds."""
MAX_NAMED = 8


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    NOTE = "note"
    """As somebody wanted it, or not known; worth knowing."""
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    level: Level
    text: str
    advice: str = ""
    """What to do; empty where nothing needs doing."""


def check(view: StatusView) -> Iterator[Finding]:
    """Look at one deployment from all sides."""
    yield _ranks(view)
    yield _epochs(view)
    yield from _window(view)
    yield _halt(view)
    yield _freeze(view)
    yield _planning(view)


def clock(theirs_s: float, ours_s: float) -> Finding:
    """Hold the controller's clock against this machine's."""
    apart = theirs_s - ours_s
    if abs(apart) <= CLOCK_S:
        return Finding("clock", Level.OK, f"within {CLOCK_S:.0f} s of this machine's")
    way = "ahead of" if apart > 0 else "behind"
    return Finding(
        "clock",
        Level.WRONG,
        f"the controller's is {show_duration(abs(apart))} {way} this machine's",
        "synchronize both (NTP): freezes and history go by the controller's clock",
    )


def version(theirs: str, ours: str) -> Finding:
    """Hold the controller's version against eplbctl's."""
    if theirs == ours:
        return Finding("version", Level.OK, f"{ours} on both sides")
    return Finding(
        "version",
        Level.NOTE,
        f"the controller is {theirs}, this eplbctl {ours}",
        "install the eplbctl that came with the controller if an answer looks odd",
    )


def _ranks(view: StatusView) -> Finding:
    away = [rank for rank in view.ranks if not rank.is_connected]
    if not view.ranks:
        return Finding(
            "ranks",
            Level.WRONG,
            "none has connected",
            "look at the agents' logs: is EPLB_ENDPOINT theirs, and does it reach the controller?",
        )
    if not away:
        return Finding("ranks", Level.OK, f"all {len(view.ranks)} connected")
    named = ", ".join(f"{rank.rank} on {rank.node}" for rank in away[:MAX_NAMED])
    more = f" and {len(away) - MAX_NAMED} more" if len(away) > MAX_NAMED else ""
    return Finding(
        "ranks",
        Level.WRONG,
        f"{len(away)} of {len(view.ranks)} away: {named}{more}",
        "look at the agents' logs there; nothing moves until all ranks are connected",
    )


def _epochs(view: StatusView) -> Finding:
    apart = [rank for rank in view.ranks if rank.is_connected and rank.epoch != view.epoch]
    if not apart:
        return Finding("epochs", Level.OK, f"every connected rank serves epoch {view.epoch}")
    named = ", ".join(f"rank {rank.rank} at {rank.epoch}" for rank in apart[:MAX_NAMED])
    return Finding(
        "epochs",
        Level.WRONG,
        f"{count(len(apart), 'rank')} not at epoch {view.epoch}: {named}",
        "a moment of this is a cutover; if it stays: docs/runbook.md, EplbEpochsApart",
    )


def _window(view: StatusView) -> Iterator[Finding]:
    window = view.window
    if view.operation.is_idle:
        yield Finding("window", Level.NOTE, "the group runs no steps, so nothing is counted")
    elif view.settled_age_s < STALE_S and window.age_s > view.settled_age_s:
        yield _counting_anew(view, "no report has come since")
    elif view.settled_age_s < STALE_S and (not window.num_steps or window.coverage < 1):
        yield _counting_anew(view, f"{count(window.num_steps, 'step')} of all ranks so far")
    elif not window.num_steps or window.coverage < 1 or window.age_s > STALE_S:
        yield Finding(
            "window",
            Level.WRONG,
            f"{count(window.num_steps, 'step')}, coverage {figure(window.coverage)}, newest report "
            f"{show_duration(window.age_s)} old",
            "no plan is drawn without enough load of all ranks: find ranks that do not report "
            "(`eplbctl status -o json`, report_age_s)",
        )
    else:
        yield Finding(
            "window", Level.OK, f"{count(window.num_steps, 'step')} of all ranks, and fresh"
        )
    if window.rejected_reports:
        yield Finding(
            "reports",
            Level.WRONG,
            f"{count(window.rejected_reports, 'report')} refused since the controller started",
            "the controller's log says why; eplb_reports_rejected_total counts them by reason",
        )


def _counting_anew(view: StatusView, so_far: str) -> Finding:
    """A cutover ends the window: what was counted before it is of another placement."""
    return Finding(
        "window",
        Level.NOTE,
        f"counting began anew at the cutover {show_duration(view.settled_age_s)} ago; {so_far}",
        f"ask again; ranks that do not report are told of {STALE_S:.0f} s after a cutover",
    )


def _halt(view: StatusView) -> Finding:
    halt = view.operation.halt
    if not halt.is_active:
        return Finding("halt", Level.OK, "none")
    return Finding(
        "halt",
        Level.WRONG,
        f"halt {halt.number} stands: {halt.reason}",
        f"find its cause first (docs/runbook.md), then `eplbctl resume {halt.number}`",
    )


def _freeze(view: StatusView) -> Finding:
    freeze = view.operation.freeze
    if freeze is None:
        return Finding("freeze", Level.OK, "none")
    return Finding(
        "freeze",
        Level.NOTE,
        f"until {clock_time(freeze.until_s)} by {freeze.who}: {freeze.reason}",
        "`eplbctl unfreeze` lifts it",
    )


def _planning(view: StatusView) -> Finding:
    planning = view.operation.planning
    if not planning.num_failed:
        return Finding("planning", Level.OK, "no plan failed to be drawn")
    return Finding(
        "planning",
        Level.WRONG,
        f"{count(planning.num_failed, 'plan')} could not be drawn; last: {planning.last_error}",
        "try another policy with `eplbctl plan --policy NAME`; serving goes on as it is",
    )
