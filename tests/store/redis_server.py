"""A real Redis server for tests, on a socket of its own, ended by its own pid."""

import socket
import subprocess
import time
from pathlib import Path

START_S = 20.0
END_S = 10.0


class RedisServer:
    """redis-server on a port of this machine; `close` ends it."""

    def __init__(self, folder: Path, *, appendfsync: str = "always") -> None:
        self.folder = folder
        self.port = _free_port()
        self.appendfsync = appendfsync
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it, on what it wrote before."""
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(self.port)]
        command += ["--dir", str(self.folder), "--appendonly", "yes", "--save", ""]
        command += ["--appendfsync", self.appendfsync]
        with (self.folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        until = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                text = (self.folder / "redis.log").read_text(errors="replace")
                self.kill()
                raise AssertionError(f"redis-server does not answer:\n{text[-2000:]}")
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1.0) as talk:
                talk.sendall(b"PING\r\n")
                return talk.recv(16) == b"+PONG\r\n"
        except OSError:
            return False

    def kill(self) -> None:
        """End it at once, as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(END_S)


def _free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return door.getsockname()[1]
