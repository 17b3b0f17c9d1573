"""Writes the page's pictures in docs/images anew: `make screenshots`.

A real controller with one scripted group, asked by a real headless Chromium, as in the tests. The
load is drawn from a seed; ids of plans and moments are those of the run.
"""

import sys
import tempfile
from pathlib import Path
from shutil import which

import numpy as np
from eplb.v1 import admin_pb2
from playwright.sync_api import Page, expect, sync_playwright

from eplb_service.domain.ids import FloatArray
from tests.host.processes import await_so
from tests.observe.house import CALL_S, House, flat, house
from tests.page.conftest import QUIET

IMAGES = Path(__file__).parents[2] / "docs" / "images"
PLACEMENT = flat(layers=16, experts=64, ranks=8, slots=10)
TOKENS = 25_600
"""Of a layer in one turn."""
SEED = 7
HOT = 3
"""Experts of each layer that are far hotter than the rest."""
PATIENCE_MS = 60_000
WHY = "morning traffic made three experts of each layer hot"


def main() -> int:
    """Look at the page before and after a plan, and keep what it shows."""
    chromium = which("chromium")
    if chromium is None:
        raise RuntimeError("chromium is missing; make deps installs it")
    with tempfile.TemporaryDirectory() as folder, house(Path(folder)) as home:
        group = home.serve("moe-16x64", PLACEMENT, heat())
        await_so(lambda: home.has_window(group.name), within_s=60, what="a load window")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=QUIET)
            page = browser.new_page(viewport={"width": 1180, "height": 900})
            page.set_default_timeout(PATIENCE_MS)
            expect.set_options(timeout=PATIENCE_MS)
            page.goto(f"{home.url}/")
            page.wait_for_selector("#experts[data-updates]")
            shoot_heat(page)
            shoot_plan(page, home, group.name)
            shoot_timeline(page)
            browser.close()
    return 0


def heat() -> FloatArray:
    """[L, E] the same number of tokens in every layer, most of them for few experts."""
    rng = np.random.default_rng(SEED)
    likely = rng.lognormal(0.0, 0.6, (PLACEMENT.num_layers, PLACEMENT.num_experts))
    for row in likely:
        row[rng.choice(PLACEMENT.num_experts, HOT, replace=False)] *= 8.0
    likely /= likely.sum(axis=1, keepdims=True)
    return np.stack([rng.multinomial(TOKENS, row) for row in likely]).astype(np.float64)


def shoot_heat(page: Page) -> None:
    """Both maps, with the pointer on a cell."""
    box = page.locator("#experts").bounding_box()
    assert box
    page.mouse.move(box["x"] + 0.32 * box["width"], box["y"] + 0.4 * box["height"])
    expect(page.get_by_role("tooltip")).to_be_visible()
    keep(page, "page-heat")


def shoot_plan(page: Page, home: House, name: str) -> None:
    """The table of plans and what the newest moves."""
    freeze = admin_pb2.FreezeRequest(act=home.act(name, "release 1.4 goes out"), seconds=3600.0)
    home.admin.Freeze(freeze, timeout=CALL_S)
    home.plan(name, "incremental", "would a small plan do?")
    plan = home.apply(name, "packing", WHY)
    row = page.locator("#plans tbody tr", has_text=plan)
    expect(row).to_contain_text("done")
    row.get_by_role("button").click()
    page.wait_for_selector("#plan:not([hidden])")
    show(page, "#plans-title")
    keep(page, "page-plan")


def shoot_timeline(page: Page) -> None:
    """Who did what, and why."""
    expect(page.locator("#history li").first).to_be_visible()
    show(page, "#history-title")
    keep(page, "page-timeline")


def show(page: Page, selector: str) -> None:
    """Bring a heading under the page's own head."""
    page.evaluate(
        "(at) => window.scrollTo(0, document.querySelector(at).getBoundingClientRect().top"
        " + window.scrollY - 72)",
        selector,
    )
    page.mouse.move(2, 2)


def keep(page: Page, name: str) -> None:
    """Write what the window shows."""
    path = IMAGES / f"{name}.png"
    page.screenshot(path=path, animations="disabled")
    sys.stdout.write(f"written to {path.relative_to(IMAGES.parents[1])}\n")


if __name__ == "__main__":
    raise SystemExit(main())
