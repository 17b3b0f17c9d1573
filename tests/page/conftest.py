"""One controller, one group and one headless Chromium for all tests of the page."""

from collections.abc import Generator
from pathlib import Path
from shutil import which

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.host.processes import await_so
from tests.observe.house import House, flat, house, skewed_heat

QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PLACEMENT = flat(layers=4, experts=16, ranks=4, slots=5)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Generator[House]:
    with house(tmp_path_factory.mktemp("page")) as one:
        group = one.serve("tiny", PLACEMENT, skewed_heat(PLACEMENT))
        await_so(lambda: one.has_window(group.name), within_s=60, what="a load window")
        yield one


@pytest.fixture(scope="session")
def name() -> str:
    return "tiny/a/serve/0/ep0"


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    """One browser for a module: its event loop runs while it lives, and asyncio tests could not."""
    chromium = which("chromium")
    assert chromium, "chromium is missing; make deps installs it"
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=str(Path(chromium)), args=QUIET)
        yield started
        started.close()
