"""The rank processes, as the supervisor holds them: each is ended by its own pid, always."""

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from benchmarks.demo.records import Begin, Failed, Progress, Ready, SegmentDone, Serve, Stop
from benchmarks.demo.worker import Place, run
from moe_runtime.runtime import SlotLayout

__all__ = ["RankFailed", "Ranks"]

Command = Serve | Begin | Stop
Word = Ready | Progress | SegmentDone

_END_S = 3.0


class _Pipe(Protocol):
    """The supervisor's end of what joins it to a rank."""

    def send(self, obj: Command) -> None: ...
    def recv(self) -> Word | Failed: ...
    def close(self) -> None: ...
    def fileno(self) -> int: ...


class RankFailed(Exception):
    """A rank raised or died; the text has what it said."""


class Ranks:
    """All ranks of the group. Use it in a `with`; at its end no process is left.

    Torch is imported once, by a server from which the ranks are forked, before it has threads.
    """

    def __init__(self, layout: SlotLayout, *, staging_rows: int, device: str = "cpu") -> None:
        self.num_ranks = layout.num_ranks
        self._layout = layout
        self._staging_rows = staging_rows
        self._device = device
        self._folder = tempfile.TemporaryDirectory(prefix="eplb-ranks-")
        self._processes: list[ForkServerProcess] = []
        self._pipes: list[_Pipe] = []

    def __enter__(self) -> Self:
        context = get_context("forkserver")
        context.set_forkserver_preload(["benchmarks.demo.worker", "benchmarks.demo.ranks"])
        try:
            for rank in range(self.num_ranks):
                ours, theirs = context.Pipe()
                rendezvous = Path(self._folder.name) / "rendezvous"
                place = Place(rank, self._layout, self._staging_rows, rendezvous, self._device)
                process = context.Process(target=run, args=(place, theirs), name=f"rank-{rank}")
                self._pipes.append(ours)
                self._processes.append(process)
                process.start()
                theirs.close()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            with suppress(BrokenPipeError, ConnectionResetError):  # it has ended already
                self._send(Stop())
        self._end(grace_s=_END_S if kind is None else 0.0)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the ranks, in order."""
        return tuple(process.pid for process in self._processes if process.pid is not None)

    def tell(self, command: Serve | Begin) -> None:
        """Tell every rank what to do next."""
        self._send(command)

    def words(self, *, timeout_s: float) -> Iterator[Word]:
        """Yield what ranks have said, after waiting for the first word at most so long.

        Raises RankFailed for the first rank that could not go on.
        """
        ready = wait([pipe.fileno() for pipe in self._pipes], timeout_s)
        for rank, pipe in enumerate(self._pipes):
            if pipe.fileno() not in ready:
                continue
            try:
                word = pipe.recv()
            except (EOFError, ConnectionResetError):
                raise RankFailed(f"rank {rank} died without a word") from None
            if isinstance(word, Failed):
                raise RankFailed(f"rank {rank} could not go on:\n{word.text}")
            yield word

    def _send(self, command: Command) -> None:
        for pipe in self._pipes:
            pipe.send(command)

    def _end(self, *, grace_s: float = 0.0) -> None:
        for process in self._processes:
            if process.pid is None:
                continue
            process.join(grace_s)
            if process.is_alive():
                process.kill()
                process.join(_END_S)
        for pipe in self._pipes:
            pipe.close()
        self._folder.cleanup()
