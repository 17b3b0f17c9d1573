"""The page as a WSGI application: its files, its data and its stream; GET only."""

from collections.abc import Iterable, Iterator
from http import HTTPStatus
from importlib.resources import files
from threading import BoundedSemaphore
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from eplb_service.domain.errors import (
    EplbError,
    InsufficientSamples,
    InvalidRequest,
    UnknownDeployment,
    UnknownPlan,
)
from eplb_service.web.encode import error_json
from eplb_service.web.feed import REFRESH_S, Feed

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

MAX_STREAMS = 32
"""Pages that may be open at once: each holds one thread, which sleeps."""
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
STATUS: dict[type[EplbError], HTTPStatus] = {
    InvalidRequest: HTTPStatus.BAD_REQUEST,
    UnknownDeployment: HTTPStatus.NOT_FOUND,
    UnknownPlan: HTTPStatus.NOT_FOUND,
    InsufficientSamples: HTTPStatus.NO_CONTENT,
}
"""Any other failure is one of the moment: SERVICE_UNAVAILABLE."""
HEADERS = [
    ("Cache-Control", "no-store"),
    ("Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'; base-uri 'none'"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
]
JSON = "application/json"


class PageApp:
    """Answers everything but /metrics; its streams end when the feed is closed."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._files = {
            ("/" if file.name == "index.html" else f"/{file.name}"): file.read_bytes()
            for file in files("eplb_service.web").joinpath("static").iterdir()
        }
        self._free = BoundedSemaphore(MAX_STREAMS)

    def __call__(self, environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        """Answer one request."""
        if environ["REQUEST_METHOD"] != "GET":
            text = "the page is read only; eplbctl acts"
            return _answer(start, HTTPStatus.METHOD_NOT_ALLOWED, error_json("read_only", text))
        path = environ["PATH_INFO"]
        if path in self._files:
            kind = KINDS["." + path.rpartition(".")[2]] if path != "/" else KINDS[".html"]
            return _answer(start, HTTPStatus.OK, self._files[path], kind)
        if path == "/api/v1/events":
            return self._events(start)
        try:
            return self._data(path, parse_qs(environ["QUERY_STRING"]), start)
        except EplbError as failed:
            status = STATUS.get(type(failed), HTTPStatus.SERVICE_UNAVAILABLE)
            body = b"" if status is HTTPStatus.NO_CONTENT else error_json(failed.code, str(failed))
            return _answer(start, status, body)

    def _data(
        self, path: str, query: dict[str, list[str]], start: "StartResponse"
    ) -> Iterable[bytes]:
        deployment = query.get("deployment", [""])[0]
        match path:
            case "/api/v1/looks":
                return _answer(start, HTTPStatus.OK, self._feed.looks())
            case "/api/v1/heat":
                body = self._feed.heat(deployment)
                return _answer(start, HTTPStatus.OK, body, "application/octet-stream")
            case "/api/v1/plan":
                body = self._feed.plan(deployment, query.get("plan", [""])[0])
                return _answer(start, HTTPStatus.OK, body)
            case "/api/v1/history":
                return _answer(start, HTTPStatus.OK, self._feed.history(deployment))
            case _:
                text = "nothing here; the page is at /, metrics are at /metrics"
                return _answer(start, HTTPStatus.NOT_FOUND, error_json("not_found", text))

    def _events(self, start: "StartResponse") -> Iterable[bytes]:
        if not self._free.acquire(blocking=False):
            text = f"{MAX_STREAMS} pages are open already; close one"
            return _answer(start, HTTPStatus.SERVICE_UNAVAILABLE, error_json("too_many", text))
        start(_line(HTTPStatus.OK), [("Content-Type", "text/event-stream"), *HEADERS])
        return _Stream(self._looks_for_ever(), self._free)

    def _looks_for_ever(self) -> Iterator[bytes]:
        """Server-sent events: a state when it is another, else a sign of life."""
        told = b""
        while not self._feed.closed.is_set():
            try:
                looks = self._feed.looks()
            except EplbError:
                return  # the browser asks again by itself, of whoever leads then
            yield b": alive\n\n" if looks == told else b"event: state\ndata: " + looks + b"\n\n"
            told = looks
            self._feed.closed.wait(REFRESH_S)


class _Stream(Iterator[bytes]):
    """One open page; gives its place back when the server closes it, begun or not."""

    def __init__(self, events: Iterator[bytes], free: BoundedSemaphore) -> None:
        self._events = events
        self._free = free

    def __next__(self) -> bytes:
        return next(self._events)

    def close(self) -> None:
        """Called by the server once, however the stream ended."""
        self._free.release()


def _answer(
    start: "StartResponse", status: HTTPStatus, body: bytes, kind: str = JSON
) -> Iterable[bytes]:
    start(_line(status), [("Content-Type", kind), ("Content-Length", str(len(body))), *HEADERS])
    return [body]


def _line(status: HTTPStatus) -> str:
    return f"{status.value} {status.phrase}"
