"""A controller that follows a script, in the rank's own process, behind the agent's port.

It welcomes, sends the orders it is given, and arms a rank as soon as that rank is
staged: what the real one does once all are, which the agreement makes no different.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from threading import Lock

import numpy as np

from eplb_service.domain.ids import Epoch, Generation, Incarnation
from eplb_service.domain.placement import Placement
from eplb_service.domain.plan import PlannedWave
from eplb_service.domain.report import LoadReport
from eplb_service.domain.shares import Ownership, Shares, even_shares
from eplb_service.domain.wave import Order
from eplb_service.domain.waves import WaveLimits, split
from eplb_service.protocol.messages import Arm, Down, Hello, Staged, Up, Welcome, Word

GENERATION = Generation(1)


class ScriptedStream:
    """One stream to the script."""

    def __init__(self, script: "Script", ring: Callable[[], None]) -> None:
        self._script = script
        self.ring = ring
        self.down: SimpleQueue[Down] = SimpleQueue()

    def send(self, word: Up) -> bool:
        self._script.hear(self, word)
        return True

    def receive(self) -> Down | None:
        try:
            return self.down.get_nowait()
        except Empty:
            return None

    def close(self) -> None:
        self._script.close(self)

    def say(self, word: Down) -> None:
        self.down.put(word)
        self.ring()


class Script:
    """Meets ChannelPort for one rank."""

    def __init__(self, *, report_every_steps: int = 10) -> None:
        self._lock = Lock()
        self._stream: ScriptedStream | None = None
        self._report_every_steps = report_every_steps
        self.hellos: list[Hello] = []
        self.words: list[Word] = []
        self.reports: list[LoadReport] = []

    def open(self, ring: Callable[[], None]) -> ScriptedStream:
        with self._lock:
            self._stream = ScriptedStream(self, ring)
        return self._stream

    def close(self, stream: ScriptedStream) -> None:
        with self._lock:
            if self._stream is stream:
                self._stream = None

    def say(self, word: Down) -> None:
        with self._lock:
            stream = self._stream
        assert stream is not None, "the agent is not connected"
        stream.say(word)

    def hear(self, stream: ScriptedStream, word: Up) -> None:
        match word:
            case Hello():
                self.hellos.append(word)
                stream.say(self.welcome(word))
            case LoadReport():
                self.reports.append(word)
            case Staged(wave):
                self.words.append(word)
                stream.say(Arm(GENERATION, self.incarnation, wave))
            case _:
                self.words.append(word)

    @property
    def incarnation(self) -> Incarnation:
        return self.hellos[-1].incarnation

    def welcome(self, hello: Hello) -> Welcome:
        return Welcome(
            generation=GENERATION,
            incarnation=hello.incarnation,
            epoch=hello.status.served.epoch,
            placement=hello.placement,
            shares=own_shares(hello.placement, hello.profile.rank),
            report_every_steps=self._report_every_steps,
            sent_every_reports=2,
        )


def own_shares(placement: Placement, rank: int) -> Shares:
    """One rank's table alone, as a controller sends it."""
    table = even_shares(placement, Ownership.OWN).table_of(rank)
    return Shares(table[None].copy(), Ownership.OWN)


def wave_limits(placement: Placement, *, staging_rows: int, round_rows: int) -> WaveLimits:
    """Limits under which an expert has one byte, so that rounds are counted in experts."""
    return WaveLimits(
        staging_rows=(staging_rows,) * placement.layout.num_ranks,
        round_bytes=round_rows,
        bytes_per_expert=1,
        ownership=Ownership.OWN,
    )


def waves_between(
    old: Placement, new: Placement, *, staging_rows: int, round_rows: int = 2
) -> tuple[PlannedWave, ...]:
    """The waves of the way from one placement to another."""
    limits = wave_limits(old, staging_rows=staging_rows, round_rows=round_rows)
    return split(old, new, limits=limits, base_epoch=Epoch(0))


def table_after(wave: PlannedWave, rank: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    """[L, E, J] of one rank."""
    return even_shares(wave.placement, Ownership.OWN).table_of(rank)


@dataclass(frozen=True, slots=True)
class Spent:
    """A wave with its numbers."""

    wave: PlannedWave
    base_epoch: int
    epoch: int
    expires_at_step: int


def order_of(spent: Spent, *, rank: int, incarnation: Incarnation) -> Order:
    """One rank's part of a wave."""
    wave = spent.wave
    return Order(
        epoch=Epoch(spent.epoch),
        generation=GENERATION,
        incarnation=incarnation,
        expires_at_step=spent.expires_at_step,
        content=replace(wave.content, base_epoch=Epoch(spent.base_epoch)),
        dispatch=table_after(wave, rank)[wave.content.layers],
    )
