"""/metrics is served beside the event loop, on a port that is freed again."""

import asyncio
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from eplb_service.domain.errors import BindFailed
from eplb_service.domain.metric_names import MOVES
from eplb_service.metrics import MetricsServer, PrometheusRecorder

HOST = "127.0.0.1"


@pytest.fixture
def recorder() -> PrometheusRecorder:
    recorder = PrometheusRecorder()
    recorder.add(MOVES, ["demo", "settled"], 7)
    return recorder


@pytest.fixture
def server(recorder: PrometheusRecorder) -> Iterator[MetricsServer]:
    server = MetricsServer(recorder, host=HOST, port=0)
    yield server
    server.close()


def get(server: MetricsServer, path: str = "/metrics") -> tuple[str, str]:
    with urllib.request.urlopen(f"http://{HOST}:{server.port}{path}", timeout=10) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_a_scrape_gets_the_newest_figures(
    server: MetricsServer, recorder: PrometheusRecorder
) -> None:
    kind, text = get(server)
    assert kind.startswith("text/plain; version=")
    assert 'eplb_moves_total{deployment="demo",outcome="settled"} 7.0' in text
    recorder.add(MOVES, ["demo", "settled"], 1)
    assert 'eplb_moves_total{deployment="demo",outcome="settled"} 8.0' in get(server)[1]


def test_other_paths_say_where_the_metrics_are(server: MetricsServer) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404") as refused:
        get(server, "/")
    with refused.value as answer:
        assert b"metrics are at /metrics" in answer.read()


def test_a_port_that_is_taken_is_a_named_failure(
    server: MetricsServer, recorder: PrometheusRecorder
) -> None:
    with pytest.raises(BindFailed, match=rf"{HOST}:{server.port}: .*metrics_port"):
        MetricsServer(recorder, host=HOST, port=server.port)


def test_closing_frees_the_port(recorder: PrometheusRecorder) -> None:
    server = MetricsServer(recorder, host=HOST, port=0)
    server.close()
    MetricsServer(recorder, host=HOST, port=server.port).close()


def test_a_client_that_says_nothing_holds_up_nobody(server: MetricsServer) -> None:
    with socket.create_connection((HOST, server.port), timeout=10):
        assert "eplb_moves_total" in get(server)[1]


async def test_a_scrape_never_delays_the_event_loop(recorder: PrometheusRecorder) -> None:
    """The registry's lock is held by a writer for a while; the scrape waits, the loop does not."""
    server = MetricsServer(recorder, host=HOST, port=0)
    release = threading.Event()
    slow = threading.Thread(target=hold, args=(recorder, release))
    slow.start()
    scrape = asyncio.ensure_future(asyncio.to_thread(get, server))
    turns, until = 0, time.monotonic() + 0.1
    while time.monotonic() < until:
        await asyncio.sleep(0)
        turns += 1
    assert not scrape.done()
    release.set()
    _, text = await asyncio.wait_for(scrape, 10)
    slow.join(10)
    await asyncio.to_thread(server.close)
    assert turns > 10
    assert "eplb_moves_total" in text


def hold(recorder: PrometheusRecorder, release: threading.Event) -> None:
    with recorder._lock:  # pyright: ignore[reportPrivateUsage]
        release.wait(10)
