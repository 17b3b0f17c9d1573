"""Verbs that look again and again: until something is so, or until they are stopped."""

import json
import sys
from argparse import Namespace
from collections import deque
from enum import StrEnum

from eplb.v1 import admin_pb2 as pb

from eplb_service.cli.acts import UNDER_WAY, only_status
from eplb_service.cli.client import Client
from eplb_service.cli.ends import Answer, invalid
from eplb_service.cli.options import Options, Output
from eplb_service.cli.plain import plain
from eplb_service.cli.saying import say
from eplb_service.cli.show_status import show_heat, show_history, show_status
from eplb_service.cli.waiting import looks, until
from eplb_service.cli.words import GAP, clock_time, visible
from eplb_service.controller.records import HistoryEntry
from eplb_service.controller.views import HistoryView, StatusView
from eplb_service.server.admin_wire.plans import decode_history
from eplb_service.server.admin_wire.status import decode_heat

EVERY_S = 0.5
CLEAR = "\x1b[H\x1b[2J"
"""Home, then erase: what every terminal of the last forty years understands."""
KNOWN = 100
"""History lines asked for at each look; more than happen between two."""
EVENTS = 8


class Goal(StrEnum):
    """What can be waited for."""

    SETTLED = "settled"
    """No plan runs, and all ranks are connected at the served epoch."""
    CONNECTED = "connected"
    IDLE = "idle"
    """The group runs no steps."""
    LOAD = "load"
    """A window with load of enough ranks is there."""


def wait(client: Client, options: Options, args: Namespace) -> Answer:
    """Wait until the deployment is as asked for; raises Failure at the deadline."""
    goal = Goal(args.goal)
    view: StatusView | None = None

    def is_over() -> bool:
        nonlocal view
        view = only_status(client, options)
        return reached(goal, view)

    until(client, is_over, every_s=EVERY_S, what=f"what was waited for ({goal})")
    assert view is not None
    return Answer(show_status(view), plain(view))


def reached(goal: Goal, view: StatusView) -> bool:
    """Whether a deployment is as asked for."""
    match goal:
        case Goal.SETTLED:
            running = view.operation.running
            is_moving = running is not None and running.phase in UNDER_WAY
            halted = view.operation.halt.is_active
            return not is_moving and not halted and _all_there(view)
        case Goal.CONNECTED:
            return bool(view.ranks) and all(rank.is_connected for rank in view.ranks)
        case Goal.IDLE:
            return view.operation.is_idle
        case Goal.LOAD:
            return view.window.num_steps > 0 and view.imbalance.worst_layer >= 0


def _all_there(view: StatusView) -> bool:
    return bool(view.ranks) and all(r.is_connected and r.epoch == view.epoch for r in view.ranks)


def watch(client: Client, options: Options, args: Namespace) -> Answer:
    """Print each event of the history as it happens, oldest first, until stopped."""
    request = pb.HistoryRequest(deployment=options.deployment, limit=KNOWN)
    told: deque[HistoryEntry] = deque(maxlen=2 * KNOWN)
    left: int = args.count or sys.maxsize

    def look() -> HistoryView:
        return decode_history(client.ask(client.stub.History, request))

    for view in looks(client, look, every_s=EVERY_S):
        fresh = [entry for entry in reversed(view.entries) if entry not in told][:left]
        for entry in fresh:
            told.append(entry)
            say(f"{_event(entry, options.output)}\n")
        left -= len(fresh)
        if not left:
            break
    return Answer("", None)


def _event(entry: HistoryEntry, output: Output) -> str:
    if output is not Output.TABLE:
        return json.dumps(plain(entry), allow_nan=False)
    about = (clock_time(entry.at_s), entry.kind, f"epoch {entry.epoch}", entry.plan_id, entry.who)
    return GAP.join(visible(word) for word in (*about, entry.text) if word)


def top(client: Client, options: Options, args: Namespace) -> Answer:
    """Draw status, hottest experts and last events over and over, until stopped."""
    if options.output is not Output.TABLE:
        raise invalid("top draws for people; for machines there are `status -o json` and `watch`")
    clear = CLEAR if sys.stdout and sys.stdout.isatty() else ""
    left: int = args.count or sys.maxsize
    for frame in looks(client, lambda: _frame(client, options), every_s=args.every):
        say(f"{clear}{frame}\n")
        left -= 1
        if not left:
            break
    return Answer("", None)


def _frame(client: Client, options: Options) -> str:
    status = only_status(client, options)
    named = status.deployment
    heat = decode_heat(client.ask(client.stub.Heat, pb.HeatRequest(deployment=named)))
    asked = pb.HistoryRequest(deployment=named, limit=EVENTS)
    history = decode_history(client.ask(client.stub.History, asked))
    return "\n\n".join((show_status(status), show_heat(heat), show_history(history)))
