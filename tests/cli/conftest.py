"""eplbctl against a real server with desks that remember what they were asked."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from eplb_service.cli.main import main
from eplb_service.server.serving import ControllerServer, Desks, Locks, ServerOptions
from tests.server.desks import Counters, Operators, Ranks

T = TypeVar("T")


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str


Ctl = Callable[..., Ran]


class Serving:
    """A server on a loop and thread of its own, as another process's would be."""

    def __init__(self, locks: Locks | None = None, *, port: int = 0) -> None:
        self.operators = Operators()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="server")
        self._thread.start()
        self.ranks = Ranks()
        desks = Desks(self.ranks, self.operators, self.operators, self.operators, self.operators)
        options = ServerOptions(port=port, stop_grace_s=0.1)
        self._server = ControllerServer(desks, Counters(), options, locks)
        self.port = self.run(self._server.start())

    def run(self, work: Coroutine[None, None, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def close(self) -> None:
        self.run(self._server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture(scope="session")
def one_server() -> Iterator[Serving]:
    serving = Serving()
    yield serving
    serving.close()


@pytest.fixture
def operators(one_server: Serving) -> Operators:
    """The desk of operators, as it is before anybody asked."""
    fresh = Operators()
    vars(one_server.operators).update(vars(fresh))
    return one_server.operators


@pytest.fixture
def silent_endpoint() -> Iterator[str]:
    """A controller that answers acts only when the test is over."""
    serving = Serving()
    gate = serving.operators.gate = asyncio.Event()
    yield f"127.0.0.1:{serving.port}"

    async def let_acts_end() -> None:
        gate.set()

    serving.run(let_acts_end())
    serving.close()


@pytest.fixture(autouse=True)
def contexts_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where contexts would be kept; not there yet."""
    path = tmp_path / "config" / "contexts.toml"
    monkeypatch.setenv("EPLB_CONTEXTS", str(path))
    monkeypatch.delenv("EPLB_CONTEXT", raising=False)
    return path


@pytest.fixture
def ctl(
    one_server: Serving,
    operators: Operators,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Ctl:
    """Run eplbctl with EPLB_ENDPOINT set to the server."""
    del operators
    monkeypatch.setenv("EPLB_ENDPOINT", f"127.0.0.1:{one_server.port}")
    monkeypatch.setenv("COLUMNS", "100")

    def run(*words: str) -> Ran:
        code = main(words)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run
