"""A street between ranks and controller that can be made to swallow everything."""

import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Lock, Thread

CHUNK = 1 << 16


class Proxy:
    """Forwards TCP connections on 127.0.0.1; use `close` at its end."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._opens = Event()
        self._opens.set()
        self._lock = Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)

    def swallow(self) -> None:
        """From now on nothing comes through, and nobody is told."""
        self._opens.clear()

    def forward(self) -> None:
        """Forward what waits and what comes."""
        self._opens.set()

    def close(self) -> None:
        """End every connection."""
        self._opens.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            sockets = tuple(self._sockets)
        for one in sockets:
            _hang_up(one)
        for thread in tuple(self._threads):
            thread.join(5.0)

    def _start(self, work: Callable[..., None], *args: socket.socket) -> None:
        thread = Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                near, _ = self._listener.accept()
                self._start(self._connect, near)

    def _connect(self, near: socket.socket) -> None:
        """Join a connection to one to the target; who calls a closed target is hung up on."""
        try:
            far = socket.create_connection(self._target, timeout=5.0)
        except OSError:
            near.close()
            return
        far.settimeout(None)
        with self._lock:
            self._sockets |= {near, far}
        back = Thread(target=self._pump, args=(far, near), daemon=True)
        back.start()
        self._pump(near, far)
        back.join()
        with self._lock:
            self._sockets -= {near, far}
        near.close()
        far.close()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK):
                self._opens.wait()
                sink.sendall(data)
        _hang_up(source)
        _hang_up(sink)


def _hang_up(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
