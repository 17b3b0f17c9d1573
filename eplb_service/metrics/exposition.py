"""/metrics over HTTP, in threads of its own: scraping never delays the event loop."""

from collections.abc import Callable, Iterable
from http import HTTPStatus
from socketserver import ThreadingMixIn
from threading import Thread
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from eplb_service.domain.errors import BindFailed

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

PATH = "/metrics"
POLL_S = 0.1
"""Seconds until the thread notices that it should end."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    timeout = 10.0
    """Seconds that a client may take to say what it wants."""

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are no news."""


class MetricsServer:
    """Serves one registry at http://host:port/metrics until it is closed."""

    def __init__(self, registry: CollectorRegistry, *, host: str, port: int) -> None:
        """Bind and serve; raises BindFailed. Port 0 takes any free port."""
        try:
            self._server = make_server(host, port, _only_metrics(registry), _Server, _Quiet)
        except OSError as error:
            raise BindFailed(
                f"metrics cannot be served at {host}:{port}: {error.strerror or error}; choose "
                "another server.metrics_port, or end what holds this one"
            ) from error
        self._thread = Thread(
            target=self._server.serve_forever, args=(POLL_S,), name="metrics", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that was bound."""
        return self._server.server_port

    def close(self) -> None:
        """Stop serving; returns when the port is free."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _only_metrics(
    registry: CollectorRegistry,
) -> "Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]":
    def answer(environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        if environ["PATH_INFO"] == PATH:
            start(_line(HTTPStatus.OK), [("Content-Type", CONTENT_TYPE_LATEST)])
            return [generate_latest(registry)]
        start(_line(HTTPStatus.NOT_FOUND), [("Content-Type", "text/plain")])
        return [f"nothing here; metrics are at {PATH}\n".encode()]

    return answer


def _line(status: HTTPStatus) -> str:
    return f"{status.value} {status.phrase}"
