"""From new heat to its picture, in headless Chromium, at the size of Kimi K3."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from shutil import which
from threading import Thread

import numpy as np
from playwright.sync_api import Page, sync_playwright

from benchmarks.figures import Figure
from benchmarks.page.desk import NUM_EXPERTS, NUM_LAYERS, RestlessDesk
from eplb_service.metrics import MetricsServer, PrometheusRecorder
from eplb_service.web import Feed, PageApp

__all__ = ["measure"]

_NUM_UPDATES = 12
_WARM_UP = 2
_PATIENCE_MS = 60_000.0
_LOOK_MS = 50.0
_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
_WATCH_TASKS = """
window.longest = 0;
new PerformanceObserver((list) => {
  for (const task of list.getEntries()) window.longest = Math.max(window.longest, task.duration);
}).observe({ type: "longtask" });
"""


def measure() -> list[Figure]:
    """Let the page be updated a dozen times and ask it how long each drawing took."""
    chromium = which("chromium")
    if chromium is None:
        raise RuntimeError("chromium is missing; make deps installs it")
    with _served() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=_ARGUMENTS)
        try:
            page = browser.new_page(viewport={"width": 1440, "height": 1400})
            page.set_default_timeout(_PATIENCE_MS)
            page.goto(url)
            took_ms = [_update(page, number) for number in range(1, _NUM_UPDATES + 1)]
            longest = float(page.evaluate("window.longest"))
        finally:
            browser.close()
    drawn_ms = np.array(took_ms[_WARM_UP:])
    return [
        Figure("cells of the heat map", float(NUM_LAYERS * NUM_EXPERTS), ""),
        Figure("updates", float(len(drawn_ms)), ""),
        Figure("drawing of an update, median", float(np.median(drawn_ms)), "ms"),
        Figure("drawing of an update, longest", float(drawn_ms.max()), "ms", 100.0),
        Figure("longest task of the page's thread (0: under 50)", longest, "ms"),
    ]


def _update(page: Page, number: int) -> float:
    """Wait for one more update; returns what both maps took, in ms."""
    experts, drawn = page.locator("#experts[data-updates]"), page.locator("#drawn[data-ms]")
    while int(experts.get_attribute("data-updates") or 0) < number:
        page.wait_for_timeout(_LOOK_MS)
    took_ms = float(drawn.get_attribute("data-ms") or "nan")
    if number == _WARM_UP:
        page.evaluate(_WATCH_TASKS)
    return took_ms


@contextmanager
def _served() -> Generator[str]:
    """The page on a port of its own, as the controller serves it; yields its address."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, name="desk", daemon=True)
    thread.start()
    feed = Feed(RestlessDesk(), loop)
    server = MetricsServer(PrometheusRecorder(), host="127.0.0.1", port=0, page=PageApp(feed))
    try:
        yield f"http://127.0.0.1:{server.port}/"
    finally:
        feed.closed.set()
        server.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
