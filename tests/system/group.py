"""The rank processes, as a test holds them: each is ended by its own pid, always."""

import tempfile
from collections.abc import Callable, Collection, Sequence
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from time import monotonic
from typing import Protocol

from tests.system.rank import NUM_RANKS, PACE, TELL_EVERY, Place, run
from tests.system.words import (
    Command,
    Counted,
    Failed,
    FreezeAgent,
    Grant,
    HoldRounds,
    LoseArms,
    Report,
    Steps,
    StepSeen,
    Stop,
    TellCounts,
)
from worker_agent.settings.settings import PaceSettings

TOLERANCE = 1e-5
START_S = 60.0
SILENCE_S = 20.0
"""Longest wait for the next steps of ranks that are granted some."""
END_S = 10.0
AHEAD = 2 * TELL_EVERY
"""Steps granted beyond the newest that is known, so that ranks do not wait for the test."""


class RankFailed(Exception):
    """A rank raised, died or was silent."""


class _Pipe(Protocol):
    def send(self, obj: Command) -> None: ...
    def recv(self) -> Report: ...
    def close(self) -> None: ...
    def fileno(self) -> int: ...


class Group:
    """All ranks of a group of one incarnation. Use `end` or `kill` at its end, whatever happens.

    older    ranks whose messages are those of the release before
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        pace: PaceSettings = PACE,
        *,
        older: Collection[int] = (),
    ) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload(["tests.system.rank"])
        self.seen: list[list[StepSeen]] = [[] for _ in range(NUM_RANKS)]
        """[N][steps] everything that each rank has seen."""
        self._folder = tempfile.TemporaryDirectory(prefix="eplb-system-")
        self._processes: list[ForkServerProcess] = []
        self._pipes: list[_Pipe] = []
        self._counted: dict[int, Counted] = {}
        self._attached: set[int] = set()
        self._granted = 0
        try:
            for rank in range(NUM_RANKS):
                ours, theirs = context.Pipe()
                rendezvous = Path(self._folder.name) / "rendezvous"
                is_older = rank in older
                place = Place(rank, endpoints[rank], rendezvous, pace, is_older=is_older)
                process = context.Process(target=run, args=(place, theirs), daemon=True)
                self._pipes.append(ours)
                process.start()
                self._processes.append(process)
                theirs.close()
            self._await(lambda: len(self._attached) == NUM_RANKS, within_s=START_S)
        except BaseException:
            self.kill()
            raise

    @property
    def num_steps(self) -> int:
        """Steps that every rank has told of."""
        return min(len(seen) for seen in self.seen)

    @property
    def epoch(self) -> int:
        """The newest epoch that every rank has told to serve; the same step on all."""
        last = self.num_steps - 1
        return self.seen[0][last].epoch if last >= 0 else 0

    def serve(self, num_steps: int) -> tuple[int, int]:
        """Serve so many further steps; return the first and the one after the last of them."""
        first = self._granted
        until = first + num_steps
        self._grant(until)
        self._await(lambda: self.num_steps >= until, within_s=SILENCE_S)
        return first, until

    def serve_while(self, num_steps: int, act: Callable[[Sequence[int]], None]) -> tuple[int, int]:
        """Serve as `serve` does, and meanwhile do something to the ranks' processes, by pid."""
        first = self._granted
        self._grant(first + num_steps)
        act([process.pid for process in self._processes if process.pid is not None])
        self._await(lambda: self.num_steps >= self._granted, within_s=SILENCE_S)
        return first, self._granted

    def serve_until(
        self,
        is_so: Callable[[], bool],
        *,
        within_steps: int,
        what: str,
        instead: Callable[[], object] = str,
    ) -> None:
        """Serve on, without a pause for the ranks, until something is so.

        instead    what is the case where it does not come to be so; told then
        """
        limit = self._granted + within_steps
        while not is_so():
            if self.num_steps >= limit:
                raise AssertionError(f"not within {within_steps} steps: {what}; {instead()}")
            before = self.num_steps
            self._grant(max(self._granted, before + AHEAD))
            self._await(lambda before=before: self.num_steps > before, within_s=SILENCE_S)
        self._await(lambda: self.num_steps >= self._granted, within_s=SILENCE_S)

    def steps(self, first: int, until: int) -> list[list[StepSeen]]:
        """Return [N][steps] of a span of steps."""
        return [seen[first:until] for seen in self.seen]

    def hold_rounds(self, rank: int, *, is_on: bool) -> None:
        """Let a rank's mover keep its results back, or give them."""
        self._pipes[rank].send(HoldRounds(is_on))

    def lose_arms(self, rank: int, *, is_on: bool) -> None:
        """Let every Arm be lost on its way to a rank, or none."""
        self._pipes[rank].send(LoseArms(is_on))

    def freeze_agents(self, *, is_on: bool) -> None:
        """Stop every rank's agent thread, or let them go on."""
        self._tell(FreezeAgent(is_on))

    def counts(self) -> list[Counted]:
        """Ask every rank what it counted; between steps, so that all counted the same ones."""
        assert self.num_steps == self._granted
        self._counted.clear()
        self._tell(TellCounts())
        self._await(lambda: len(self._counted) == NUM_RANKS, within_s=SILENCE_S)
        return [self._counted[rank] for rank in range(NUM_RANKS)]

    def require_right(self) -> None:
        """Every step of every rank so far: outputs right, nothing left out, switched together."""
        for rank, seen in enumerate(self.seen):
            assert [one.step for one in seen] == list(range(len(seen))), f"rank {rank}: a gap"
            wrong = [(one.step, one.error) for one in seen if not one.error <= TOLERANCE]
            assert not wrong, f"rank {rank}: wrong outputs (step, error) {wrong[:5]}"
            halted = [one.step for one in seen if one.is_halted]
            assert not halted, f"rank {rank} halted at step {halted[0]}"
        for together in zip(*self.seen, strict=False):
            epochs = {one.epoch for one in together}
            assert len(epochs) == 1, f"step {together[0].step} was served at epochs {epochs}"

    def end(self) -> None:
        """Let every rank end by itself, and see that it did."""
        self._tell(Stop())
        self._join(END_S)

    def kill(self) -> None:
        """End all ranks at once, as a crash does; harmless if they have ended."""
        for process in self._processes:
            process.kill()
        self._join(END_S)

    def _join(self, patience_s: float) -> None:
        for process in self._processes:
            process.join(patience_s)
            if process.exitcode is None:
                process.kill()
                process.join(END_S)
        for pipe in self._pipes:
            pipe.close()
        self._folder.cleanup()

    def _grant(self, until: int) -> None:
        self._granted = until
        self._tell(Grant(until))

    def _tell(self, command: Command) -> None:
        for pipe in self._pipes:
            pipe.send(command)

    def _await(self, is_so: Callable[[], bool], *, within_s: float) -> None:
        """Listen until something is so; every word starts the wait anew."""
        while not is_so():
            give_up_at = monotonic() + within_s
            if not self._listen(give_up_at - monotonic()):
                raise RankFailed(
                    f"no word from any rank in {within_s} s; known steps "
                    f"{[len(seen) for seen in self.seen]}, granted {self._granted}"
                )

    def _listen(self, timeout_s: float) -> bool:
        ready = wait([pipe.fileno() for pipe in self._pipes], timeout_s)
        for rank, pipe in enumerate(self._pipes):
            if pipe.fileno() in ready:
                self._hear(rank, pipe)
        return bool(ready)

    def _hear(self, rank: int, pipe: _Pipe) -> None:
        try:
            report = pipe.recv()
        except (EOFError, ConnectionResetError):
            raise RankFailed(f"rank {rank} died without a word") from None
        match report:
            case Steps(_, seen):
                self._attached.add(rank)
                self.seen[rank].extend(seen)
            case Counted():
                self._counted[rank] = report
            case Failed(_, text):
                raise RankFailed(f"rank {rank} could not go on:\n{text}")


def seconds_of(steps: Sequence[Sequence[StepSeen]]) -> list[float]:
    """Return the duration of each step: of its slowest rank."""
    return [max(one.seconds for one in together) for together in zip(*steps, strict=True)]
