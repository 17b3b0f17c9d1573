"""The processes of one rank group, as a test holds them: each is ended by its own pid, always."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from select import select
from typing import Any, TextIO, cast

from tests.host.processes import free_port
from tests.vllm.rank import environment
from tests.vllm.words import Answer, DraftStats, Job, Layout, Stats

SILENCE_S = 900.0
"""Longest wait for an answer: starting an engine takes the longest, on a busy machine."""
END_S = 30.0


class RankFailed(Exception):
    """A rank raised, died or was silent."""


class Member:
    """One rank's process."""

    def __init__(
        self, module: str, told: Mapping[str, object], log: Path, extra: Mapping[str, str]
    ) -> None:
        self._log = log
        read, write = os.pipe()
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(write), json.dumps(told)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[write],
                env={**os.environ, **extra},
                text=True,
            )
        os.close(write)
        self._replies = os.fdopen(read)

    def say(self, command: dict[str, object]) -> None:
        """Send one command."""
        stdin = cast("TextIO", self._process.stdin)
        stdin.write(json.dumps(command) + "\n")
        stdin.flush()

    def hear(self) -> Any:
        """Return the next answer."""
        ready, _, _ = select([self._replies], [], [], SILENCE_S)
        line = self._replies.readline() if ready else ""
        told: dict[str, object] = json.loads(line) if line else {}
        if "is" not in told:
            tail = self._log.read_text(errors="replace")[-4000:]
            raise RankFailed(f"rank {self._log.stem}: {told.get('failed', 'no answer')}\n{tail}")
        return told["is"]

    def said(self) -> str:
        """Everything that the process wrote."""
        return self._log.read_text(errors="replace")

    def end(self) -> int:
        """End its input and wait; returns its exit code."""
        self.hang_up()
        try:
            return self._process.wait(END_S)
        finally:
            self.kill()

    def kill(self) -> None:
        """End it at once; harmless if it has ended."""
        self._process.kill()
        self._process.wait(END_S)
        self._replies.close()
        self.hang_up()

    def hang_up(self) -> None:
        """End its input; harmless if that has ended."""
        with suppress(BrokenPipeError):  # it may have died with something unread
            cast("TextIO", self._process.stdin).close()


class Group:
    """Processes that are told the same. Use `kill`."""

    def __init__(self) -> None:
        self.members: list[Member] = []

    def ask(self, **command: object) -> list[Any]:
        """Have all ranks do the same, at the same time."""
        for member in self.members:
            member.say(command)
        return [member.hear() for member in self.members]

    def kill(self) -> None:
        """End all ranks at once."""
        for member in self.members:
            member.kill()


class VllmGroup(Group):
    """All ranks of one engine, or of the engines that share experts. Use `end` or `kill`."""

    def __init__(
        self,
        model: Path,
        layout: Layout,
        num_ranks: int,
        folder: Path,
        extra: dict[str, str],
        **more: Any,
    ) -> None:
        super().__init__()
        folder.mkdir(parents=True, exist_ok=True)
        jobs = [Job(str(model), layout, num_ranks, 0, free_port(), **more)]
        jobs = [replace(jobs[0], rank=rank) for rank in range(jobs[0].num_processes)]
        try:
            for job in jobs:
                told, log = job.as_json(), folder / f"{layout}-{job.rank}.log"
                env = {**environment(job), **extra}
                self.members.append(Member("tests.vllm.rank", told, log, env))
            for member in self.members:
                member.hear()
        except BaseException:
            self.kill()
            raise

    def generate(self) -> list[list[Answer]]:
        """Return what every process answered to all prompts."""
        return [[Answer(**one) for one in told] for told in self.ask(do="generate")]

    def stats(self) -> list[Stats]:
        """Return what every rank counted and holds."""
        return [Stats(**told) for all_own in self.ask(do="stats") for told in all_own]

    def drafts(self) -> list[DraftStats]:
        """Return what every rank's draft model holds and counted."""
        return [DraftStats(**told) for all_own in self.ask(do="draft") for told in all_own]

    def end(self) -> list[int]:
        """Let every rank end by itself; returns their exit codes."""
        for member in self.members:
            cast("TextIO", member._process.stdin).close()  # pyright: ignore[reportPrivateUsage]
        return [member.end() for member in self.members]


def largest_difference(got: Sequence[Answer], want: Sequence[Answer]) -> float:
    """Largest difference of any log-probability."""
    return max(
        abs(a - b)
        for one, other in zip(got, want, strict=True)
        for a, b in zip(one.logprobs, other.logprobs, strict=True)
    )
