"""/metrics over HTTP, in threads of its own: scraping never delays the event loop."""

from collections.abc import Iterable
from http import HTTPStatus
from socketserver import ThreadingMixIn
from threading import Thread
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from eplb_service.domain.errors import BindFailed
from eplb_service.metrics.recorder import PrometheusRecorder

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

PATH = "/metrics"
EXPERTS_PATH = "/metrics/experts"
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
    """Serves one recorder at http://host:port/metrics until it is closed."""

    def __init__(
        self,
        recorder: PrometheusRecorder,
        *,
        host: str,
        port: int,
        has_experts: bool = False,
        page: "WSGIApplication | None" = None,
    ) -> None:
        """Bind and serve; raises BindFailed. Port 0 takes any free port.

        has_experts    whether the heat of every expert is served too, at /metrics/experts
        page           answers every other path
        """
        metrics = _metrics_of(recorder, has_experts=has_experts)
        answer = _beside(metrics, page) if page else metrics
        try:
            self._server = make_server(host, port, answer, _Server, _Quiet)
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


def _metrics_of(recorder: PrometheusRecorder, *, has_experts: bool) -> "WSGIApplication":
    def answer(environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == PATH:
            start(_line(HTTPStatus.OK), [("Content-Type", CONTENT_TYPE_LATEST)])
            return [generate_latest(recorder.registry)]
        if path == EXPERTS_PATH and has_experts:
            start(_line(HTTPStatus.OK), [("Content-Type", CONTENT_TYPE_LATEST)])
            return [recorder.heat.text()]
        start(_line(HTTPStatus.NOT_FOUND), [("Content-Type", "text/plain")])
        experts = "" if has_experts else "; server.expert_metrics adds every expert's"
        return [f"nothing here; metrics are at {PATH}{experts}\n".encode()]

    return answer


def _beside(metrics: "WSGIApplication", page: "WSGIApplication") -> "WSGIApplication":
    def answer(environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        is_metrics = environ["PATH_INFO"] in (PATH, EXPERTS_PATH)
        return (metrics if is_metrics else page)(environ, start)

    return answer


def _line(status: HTTPStatus) -> str:
    return f"{status.value} {status.phrase}"
