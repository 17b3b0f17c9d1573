"""Asking until something is so, over times in which no controller answers."""

import sys
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from eplb_service.cli.client import Client
from eplb_service.cli.durations import show_duration
from eplb_service.cli.ends import Absent, Elsewhere, Exit, Failure, Misfit, Unanswered
from eplb_service.cli.progress import progress

LOOK_S = 10.0
"""A look that takes longer is given up, and the next one asks over a connection of its own."""
Seen = TypeVar("Seen")
AWAY = "the controller does not answer just now, "


def until(
    client: Client,
    is_over: Callable[[], bool],
    *,
    every_s: float,
    what: str,
    how_far: Callable[[], str] = lambda: "",
) -> None:
    """Ask until something is over, which a terminal shows; raises Failure at the deadline.

    A look that nobody answers is no end: a controller that restarts is asked again, and one
    that came back without its ranks is given time for them.
    """
    began_s, was_away = time.monotonic(), False
    client.longest_call_s = LOOK_S
    with progress() as draw:
        while True:
            missed = ""
            try:
                if is_over():
                    return
            except Failure as failure:
                if not _passes(client, failure, was_away=was_away):
                    raise _told(failure, was_away=was_away) from failure
                missed, was_away = str(failure), True
                client.reconnect(failure.endpoint if isinstance(failure, Elsewhere) else "")
            waited = show_duration(time.monotonic() - began_s)
            draw(f"waiting for {what}: {AWAY if missed else how_far()}{waited}")
            if client.remaining_s <= every_s:
                raise _late(client, what, missed)
            time.sleep(every_s)


def looks(client: Client, look: Callable[[], Seen], *, every_s: float) -> Iterator[Seen]:
    """Yield what is seen again and again until the command's deadline; raises Failure.

    Once there was something to see, a look that nobody answers is no end. It is said on stderr,
    once, and so is that somebody answers again.
    """
    client.longest_call_s = LOOK_S
    missed: Failure | None = None
    while True:
        try:
            seen = look()
        except Failure as failure:
            has_seen = client.has_been_answered
            if not (has_seen and _passes(client, failure, was_away=missed is not None)):
                raise
            if missed is None:
                print(f"{failure.word}: {failure}; it is asked on and on", file=sys.stderr)
            missed = failure
            client.reconnect(failure.endpoint if isinstance(failure, Elsewhere) else "")
        else:
            if missed is not None:
                print(f"the controller at {client.endpoint} answers again", file=sys.stderr)
                missed = None
            yield seen
        if client.remaining_s <= every_s:
            if missed is not None:
                raise missed
            return
        time.sleep(every_s)


def _passes(client: Client, failure: Failure, *, was_away: bool) -> bool:
    """Whether a look that failed so may do better later on."""
    match failure:
        case Unanswered() | Elsewhere():
            return True
        case Misfit():
            return client.has_been_answered  # the keys fitted before
        case Absent():
            return was_away  # its ranks have yet to come back
        case _:
            return False


def _told(failure: Failure, *, was_away: bool) -> Failure:
    if not was_away:
        return failure
    text = (
        f"{failure}. The controller was away while this command waited; `eplbctl history` shows "
        "what came of it, `eplbctl status` what is served"
    )
    return Failure(failure.exit, text, word=failure.word)


def _late(client: Client, what: str, missed: str) -> Failure:
    late = f"{what} is not over after {show_duration(client.timeout_s)}"
    if missed:
        return Failure(Exit.NO_ANSWER, f"{late}, and at the last look {missed}")
    return Failure(Exit.NO_ANSWER, f"{late}; it goes on, `eplbctl status` shows how far it is")
