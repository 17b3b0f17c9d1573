"""What a scrape is compared with: the same lines as text, by one formatting and one join."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import generate_latest

from eplb_service.metrics import PrometheusRecorder

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

__all__ = ["PLAIN", "PLAIN_EXPERTS", "PlainText"]

PLAIN, PLAIN_EXPERTS = "/plain", "/plain/experts"


class PlainText:
    """Answers beside the metrics, by the same server: each line with its number formatted anew.

    The lines are those of the first request, so that nothing is looked up and nothing is locked:
    less than this no exposition in this language can do for as many bytes.
    """

    def __init__(self, recorder: PrometheusRecorder) -> None:
        self._recorder = recorder
        self._lines: dict[str, list[tuple[str, float]]] = {}

    def __call__(self, environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        """Answer one request."""
        path = environ["PATH_INFO"]
        lines = self._lines.get(path)
        if lines is None:
            is_experts = path == PLAIN_EXPERTS
            text = (
                self._recorder.heat.text()
                if is_experts
                else generate_latest(self._recorder.registry)
            )
            lines = self._lines[path] = [_line(line) for line in text.decode().splitlines()]
        start("200 OK", [("Content-Type", "text/plain")])
        return ["".join(map("%s %r\n".__mod__, lines)).encode()]


def _line(line: str) -> tuple[str, float]:
    begin, _, value = line.rpartition(" ")
    return (line, 0.0) if line.startswith("#") else (begin, float(value))
