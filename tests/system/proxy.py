"""A street between ranks and controller that can be made to swallow, delay or end everything."""

import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Lock, Thread
from time import sleep

CHUNK = 1 << 16


class Proxy:
    """Forwards TCP connections; use `close` at its end.

    host            loopback address to listen on
    idle_limit_s    a connection that is silent one way for so long is ended; None for no limit
    """

    def __init__(
        self,
        target: tuple[str, int],
        host: str = "127.0.0.1",
        *,
        idle_limit_s: float | None = None,
    ) -> None:
        self._target = target
        self._idle_limit_s = idle_limit_s
        self._delay_s = 0.0
        self._is_cut = False
        self._opens = Event()
        self._opens.set()
        self._lock = Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[Thread] = []
        self._listener = socket.create_server((host, 0))
        self.endpoint = f"{host}:{self._listener.getsockname()[1]}"
        self._start(self._accept)

    def swallow(self) -> None:
        """From now on nothing comes through, and nobody is told."""
        self._opens.clear()

    def delay(self, delay_s: float) -> None:
        """From now on every piece of up to CHUNK bytes takes so long, one after the other."""
        self._delay_s = delay_s

    def cut(self) -> None:
        """End every connection, and each new one at once."""
        self._is_cut = True
        self._hang_up()

    def forward(self) -> None:
        """Forward what waits and what comes, at once."""
        self._is_cut = False
        self._delay_s = 0.0
        self._opens.set()

    def retarget(self, target: tuple[str, int]) -> None:
        """Lead elsewhere from now on; connections to where it led before end."""
        self._target = target
        self._hang_up()

    def close(self) -> None:
        """End every connection."""
        self._opens.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._hang_up()
        for thread in tuple(self._threads):
            thread.join(5.0)

    def _hang_up(self) -> None:
        with self._lock:
            sockets = tuple(self._sockets)
        for one in sockets:
            _hang_up(one)

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
        if self._is_cut:
            near.close()
            return
        try:
            far = socket.create_connection(self._target, timeout=5.0)
        except OSError:
            near.close()
            return
        near.settimeout(self._idle_limit_s)
        far.settimeout(self._idle_limit_s)
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
                sleep(self._delay_s)
                sink.sendall(data)
        _hang_up(source)
        _hang_up(sink)


def _hang_up(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
