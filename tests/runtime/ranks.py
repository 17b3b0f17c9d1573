"""Real rank processes for tests: one function run on every rank of a gloo group.

Nothing binds to anything but the loopback interface, every wait has a deadline,
and every process is ended by its own pid whatever happens.
"""

import os
import pickle
import tempfile
import traceback
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from time import monotonic
from typing import Generic, Protocol, TypeVar

import torch
import torch.distributed as dist

from moe_runtime.exchange.peers import GroupPeers

__all__ = ["RanksFailed", "run_ranks"]

P = TypeVar("P")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)

_JOIN_S = 5.0


class RanksFailed(Exception):
    """A rank raised, died or was late; the text has what each rank said."""


@dataclass(frozen=True, slots=True)
class _Word(Generic[R_co]):
    """What a rank has to say at its end: a result, or else a traceback."""

    results: tuple[R_co, ...]
    """One, or none."""
    trouble: str


class _Reader(Protocol):
    """The end of a pipe that a rank's word comes out of."""

    def recv_bytes(self) -> bytes: ...
    def close(self) -> None: ...
    def fileno(self) -> int: ...


def run_ranks(
    work: Callable[[int, P], T],
    payload: P,
    *,
    num_ranks: int,
    deadline_s: float = 60.0,
    dying: Collection[int] = (),
) -> list[T]:
    """Return work(rank, payload) of every rank that lives, run in a process each.

    work          importable by name; it finds the default process group set up
    deadline_s    for all of it, from the start of the first process
    dying         ranks that must die without a word; those that live then leave as they are done

    Raises RanksFailed at the first rank that fails, or at the deadline. No process is left.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed"])
    with tempfile.TemporaryDirectory() as folder:
        processes: list[ForkServerProcess] = []
        readers: list[_Reader] = []
        patience_s = 0.0
        try:
            for rank in range(num_ranks):
                reader, writer = context.Pipe(duplex=False)
                rendezvous = Path(folder) / "rendezvous"
                where = _Where(rank, num_ranks, rendezvous, deadline_s, is_any_dying=bool(dying))
                process = context.Process(
                    target=_rank_main, args=(where, writer, work, payload), daemon=True
                )
                process.start()
                writer.close()
                processes.append(process)
                readers.append(reader)
            results: list[T] = _collect(readers, deadline_s, dying)
            patience_s = _JOIN_S
        finally:
            _end(processes, patience_s=patience_s)
            for reader in readers:
                reader.close()
    return results


@dataclass(frozen=True, slots=True)
class _Where:
    rank: int
    num_ranks: int
    rendezvous: Path
    deadline_s: float
    is_any_dying: bool


def _rank_main(where: _Where, writer: Connection, work: Callable[[int, P], T], payload: P) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=where.rendezvous.as_uri(),
            rank=where.rank,
            world_size=where.num_ranks,
            timeout=timedelta(seconds=where.deadline_s),
        )
        _say(writer, _Word((work(where.rank, payload),), ""))
        if where.is_any_dying:
            return
        # A rank that leaves early takes its connections with it, so all leave together.
        GroupPeers().all_gather(torch.zeros(1), [1] * where.num_ranks)
        dist.destroy_process_group()
    except Exception:  # noqa: BLE001  whatever a rank raised is the test's to report
        _say(writer, _Word((), traceback.format_exc()))


def _say(writer: Connection, word: _Word[T]) -> None:
    """Send a word by value: torch would share its tensors' memory, which ends with the rank."""
    writer.send_bytes(pickle.dumps(word))


def _collect(readers: list[_Reader], deadline_s: float, dying: Collection[int]) -> list[T]:
    give_up_at = monotonic() + deadline_s
    results: dict[int, T] = {}
    waiting = {reader.fileno(): rank for rank, reader in enumerate(readers)}
    while waiting:
        ready = wait(waiting, max(0.0, give_up_at - monotonic()))
        if not ready:
            raise RanksFailed(f"ranks {sorted(waiting.values())} were not done in {deadline_s} s")
        for fileno in [f for f in waiting if f in ready]:
            rank = waiting.pop(fileno)
            if rank in dying:
                _require_dead(rank, readers[rank])
                continue
            word: _Word[T] = _hear(rank, readers[rank])
            results[rank] = word.results[0]
    return [results[rank] for rank in sorted(results)]


def _require_dead(rank: int, reader: _Reader) -> None:
    with suppress(EOFError):
        word: _Word[object] = pickle.loads(reader.recv_bytes())
        raise RanksFailed(f"rank {rank} did not die, but said:\n{word}")


def _hear(rank: int, reader: _Reader) -> _Word[T]:
    try:
        word: _Word[T] = pickle.loads(reader.recv_bytes())
    except EOFError:
        raise RanksFailed(f"rank {rank} died without a word") from None
    if word.trouble:
        raise RanksFailed(f"rank {rank} raised:\n{word.trouble}")
    return word


def _end(processes: list[ForkServerProcess], *, patience_s: float) -> None:
    for process in processes:
        process.join(patience_s)
        if process.is_alive():
            process.kill()
            process.join(_JOIN_S)
        process.close()
