"""The two ranks of one vLLM engine, as a measurement holds them; each is ended by its own pid."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO, cast

from benchmarks.demo_vllm.parts import free_port, serving_environment

NUM_RANKS = 2
END_S = 30.0


class RankFailed(Exception):
    """A rank raised or died."""


class Group:
    """Use `kill` at its end."""

    def __init__(self, name: str, model: Path, folder: Path, extra: Mapping[str, str]) -> None:
        self.name = name
        self._members: list[tuple[subprocess.Popen[str], TextIO, Path]] = []
        port = free_port()
        for rank in range(NUM_RANKS):
            log = folder / f"{name}-{rank}.log"
            read, write = os.pipe()
            words = [str(write), str(model), name]
            with log.open("ab") as output:
                process = subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.balance_vllm.rank", *words],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=[write],
                    env={**os.environ, **serving_environment(), **ranks(rank, port), **extra},
                    text=True,
                )
            os.close(write)
            self._members.append((process, os.fdopen(read), log))

    def await_ready(self) -> None:
        """Wait until both ranks have loaded. Raises RankFailed."""
        self._hear()

    def ask(self, **command: object) -> list[Any]:
        """Have both ranks do the same, at the same time; return their answers."""
        for process, _, _ in self._members:
            stdin = cast("TextIO", process.stdin)
            stdin.write(json.dumps(command) + "\n")
            stdin.flush()
        return self._hear()

    def kill(self) -> None:
        """End both ranks at once."""
        for process, answers, _ in self._members:
            process.kill()
            process.wait(END_S)
            answers.close()
            with suppress(BrokenPipeError):  # it may have died with something unread
                cast("TextIO", process.stdin).close()

    def _hear(self) -> list[Any]:
        heard: list[Any] = []
        for _, answers, log in self._members:
            line = answers.readline()
            told: dict[str, object] = json.loads(line) if line else {}
            if "is" not in told:
                tail = log.read_text(errors="replace")[-3000:]
                raise RankFailed(f"{log.stem}: {told.get('failed', 'it died')}\n{tail}")
            heard.append(told["is"])
        return heard


def ranks(rank: int, port: int) -> dict[str, str]:
    """What tells a rank who it is."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(NUM_RANKS),
        "LOCAL_WORLD_SIZE": str(NUM_RANKS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
