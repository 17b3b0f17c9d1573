"""Recording the controller's load windows into a file, until told to stop.

The recorder is this command itself, in the foreground: no part of the controller knows of it.
While it records it holds a lock on FILE.recording, and `record stop FILE` writes there that it
shall end.
"""

import fcntl
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from types import FrameType
from typing import IO

import numpy as np
from eplb.v1 import admin_pb2 as pb

from eplb_service.cli.client import Client
from eplb_service.cli.durations import show_duration
from eplb_service.cli.ends import Answer, Exit, Failure, Misfit, invalid
from eplb_service.cli.files import write_whole
from eplb_service.cli.options import CALL_TIMEOUT_S, Options
from eplb_service.cli.plain import Plain
from eplb_service.cli.progress import bar, progress
from eplb_service.cli.recordings import MOST_TOKEN_BYTES, Recording, Window, encode_recording
from eplb_service.cli.waiting import until
from eplb_service.cli.words import count
from eplb_service.controller.views import HeatView
from eplb_service.server.admin_wire.status import decode_heat

TICK_S = 0.2
STOP = b"stop"
GROWTH = 1.1
"""The file is written anew whenever so many times as many windows are there."""
PASSING = (Exit.REFUSED, Exit.NO_ANSWER)
"""Failures that pass: no load yet, no leader for a while, a controller that restarts."""


@dataclass(slots=True)
class _Tape:
    """What was recorded so far."""

    path: Path
    deployment: str
    windows: list[Window] = field(default_factory=list[Window])
    model_layers: tuple[int, ...] = ()
    placement: str = ""
    num_written: int = 0
    num_missed: int = 0
    why: str = ""
    """Why it ended; empty while it goes on."""

    def take(self, view: HeatView, placement: str) -> None:
        """Keep a window, unless it is the one that is kept already or nothing was counted."""
        last = self.windows[-1] if self.windows else None
        if not view.tokens.any():
            return
        if last is not None and last.tokens.shape != view.tokens.shape:
            self.why = (
                f"the deployment has {list(view.tokens.shape)} layers and experts now, not "
                f"{list(last.tokens.shape)}"
            )
            return
        if last is not None and np.array_equal(last.tokens, view.tokens):
            return
        if (len(self.windows) + 1) * view.tokens.nbytes > MOST_TOKEN_BYTES:
            self.why = f"{MOST_TOKEN_BYTES >> 20} MiB of windows is the most that a file holds"
            return
        self.deployment, self.model_layers = view.deployment, view.model_layers
        self.placement = placement
        self.windows.append(Window(time.time(), view.num_steps, view.coverage, view.tokens))
        if len(self.windows) >= GROWTH * self.num_written:
            self.write()

    def write(self) -> None:
        """Put all that is there into the file, at once."""
        if len(self.windows) > self.num_written:
            recording = Recording(
                self.deployment, self.placement, self.model_layers, tuple(self.windows)
            )
            write_whole(self.path, encode_recording(recording))
            self.num_written = len(self.windows)


def start(client: Client, options: Options, args: Namespace) -> Answer:
    """Record until the time is over, an interrupt or a signal to end, or `record stop`."""
    path: Path = args.file
    tape = _Tape(path, options.deployment)
    with _held(path) as control, _ended_by_signals(tape):
        if path.exists():
            raise invalid(f"{path} exists already; name another, nothing was recorded")
        try:
            _record(tape, client, args, control)
        except KeyboardInterrupt:
            tape.why = "interrupted"
        tape.write()
    facts: Plain = {
        "file": str(path) if tape.windows else None,
        "windows": len(tape.windows),
        "missed": tape.num_missed,
        "ended": tape.why,
    }
    missed = f"; {count(tape.num_missed, 'look')} found nothing" if tape.num_missed else ""
    if not tape.windows:
        raise Failure(Exit.FAILED, f"no window had load ({tape.why}{missed}); no file was written")
    text = f"{count(len(tape.windows), 'window')} of {tape.deployment} recorded to {path}"
    return Answer(f"{text} ({tape.why}{missed})", facts)


def stop(client: Client, options: Options, args: Namespace) -> Answer:
    """End a recording, and wait until its file is whole."""
    del options
    path: Path = args.file
    control = _control(path)
    try:
        with control.open("r+b", buffering=0) as held:
            if _locked(held):
                control.unlink(missing_ok=True)
                raise _nobody(path)
            held.write(STOP)
            until(client, lambda: _locked(held), every_s=TICK_S, what=f"the recording to {path}")
    except FileNotFoundError as error:
        raise _nobody(path) from error
    except OSError as error:
        raise Failure(Exit.FAILED, f"{control}: {error.strerror}") from error
    return Answer(f"the recording to {path} is over", {"file": str(path)})


def _record(tape: _Tape, client: Client, args: Namespace, control: IO[bytes]) -> None:
    began_s = time.monotonic()
    is_first = True
    with progress() as draw:
        while not tape.why:
            look_s = time.monotonic()
            draw("")
            _look(tape, client, is_first=is_first)
            is_first = False
            while not tape.why and (now_s := time.monotonic()) < look_s + args.every:
                control.seek(0)
                if control.read():
                    tape.why = "stopped"
                elif now_s >= began_s + args.seconds:
                    tape.why = f"{show_duration(args.seconds)} are over"
                else:
                    draw(_how_far(tape, now_s - began_s, args.seconds))
                    time.sleep(min(TICK_S, max(0.0, look_s + args.every - now_s)))


def _how_far(tape: _Tape, passed_s: float, of_s: float) -> str:
    kept = f"{count(len(tape.windows), 'window')}, {show_duration(passed_s)}"
    if not isfinite(of_s):
        return f"recording: {kept}, until stopped"
    return bar(passed_s, of_s, f"{kept} of {show_duration(of_s)}")


def _look(tape: _Tape, asker: Client, *, is_first: bool) -> None:
    """Ask once; what passes is counted, and said on stderr the first time in a row."""
    named = tape.deployment
    try:
        with Client(asker.endpoint, timeout_s=CALL_TIMEOUT_S, keys=asker.keys) as client:
            heat = client.ask(client.stub.Heat, pb.HeatRequest(deployment=named))
            export = client.ask(client.stub.Export, pb.ExportRequest(deployment=named))
    except Failure as failure:
        passes = failure.exit in PASSING or isinstance(failure, Misfit)
        if not passes or (is_first and failure.exit is not Exit.REFUSED):
            raise
        if not tape.num_missed:
            print(f"nothing to record yet: {failure}", file=sys.stderr)
        tape.num_missed += 1
    else:
        tape.take(decode_heat(heat), export.text)


def _control(path: Path) -> Path:
    return path.with_name(f"{path.name}.recording")


@contextmanager
def _held(path: Path) -> Generator[IO[bytes]]:
    """Hold the lock of a recording; raises Failure where another holds it."""
    control = _control(path)
    try:
        with control.open("w+b", buffering=0) as held:
            if not _locked(held):
                raise Failure(Exit.REFUSED, f"{path} is being recorded to; nothing was done")
            try:
                yield held
            finally:
                control.unlink(missing_ok=True)
    except OSError as error:
        raise Failure(Exit.FAILED, f"{control} cannot be written: {error.strerror}") from error


def _locked(held: IO[bytes]) -> bool:
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _ended_by_signals(tape: _Tape) -> Generator[None]:
    """Let SIGTERM end the recording as `record stop` does."""

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        tape.why = signal.Signals(number).name

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _nobody(path: Path) -> Failure:
    return Failure(Exit.FAILED, f"nobody records to {path}; what was recorded there is whole")
