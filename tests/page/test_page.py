"""The page in a real browser: it shows, follows, and can be used without a mouse or a network."""

from collections.abc import Generator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.observe.house import House

pytestmark = [pytest.mark.slow]
PATIENCE_MS = 30_000


class Visit:
    """One open page and what the browser said about it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.hosts: set[str] = set()
        page.on("console", lambda said: self.complaints.append(f"{said.type}: {said.text}"))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda asked: self.hosts.add(urlsplit(asked.url).netloc))

    def open(self, home: House) -> None:
        self.page.goto(f"{home.url}/")
        self.page.wait_for_selector("#experts[data-updates]")


@pytest.fixture
def visit(browser: Browser, home: House) -> Generator[Visit]:
    context = browser.new_context(viewport={"width": 1200, "height": 1400})
    context.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    one = Visit(context.new_page())
    one.open(home)
    yield one
    assert one.complaints == []
    assert one.hosts == {urlsplit(home.url).netloc}, "a request left the host"
    context.close()


def updates(page: Page) -> int:
    return int(page.get_attribute("#experts", "data-updates") or 0)


def test_it_shows_how_the_deployment_stands(visit: Visit, name: str) -> None:
    page = visit.page
    expect(page.locator("#live-text")).to_have_text("live")
    expect(page.locator("#deployment")).to_have_value(name)
    expect(page.locator("#cards")).to_contain_text("4 of 4")
    assert page.evaluate("[...document.styleSheets].length") == 1
    headings = page.locator("h2").all_text_contents()
    assert headings[:2] == ["Heat of experts", "Load of ranks"]


def test_pointing_at_a_cell_says_what_it_is(visit: Visit) -> None:
    page = visit.page
    box = page.locator("#experts").bounding_box()
    assert box
    page.mouse.move(box["x"] + 2, box["y"] + 2)
    tip = page.get_by_role("tooltip")
    expect(tip).to_contain_text("layer 0 (model layer 1), expert 0")
    expect(tip).to_contain_text("4.57 times the layer's mean")
    expect(tip).to_contain_text("on rank 0, ")
    page.mouse.move(2, 2)
    expect(tip).to_be_hidden()


def test_cells_are_reached_by_keys_and_said_aloud(visit: Visit) -> None:
    page = visit.page
    page.locator("#experts").focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
    said = page.locator("#experts-said")
    expect(said).to_contain_text("layer 1 (model layer 2), expert 1;")
    assert said.get_attribute("aria-live") == "polite"
    page.keyboard.press("End")
    page.keyboard.press("PageDown")
    expect(said).to_contain_text("layer 3 (model layer 4), expert 15;")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "ranks"
    expect(page.locator("#ranks-said")).to_contain_text("rank 0")


def test_a_rebalance_is_seen_without_a_reload(visit: Visit, home: House, name: str) -> None:
    page = visit.page
    epoch = page.locator("#cards dd").first
    expect(epoch).to_contain_text(str(home.status(name).epoch))
    page.evaluate("window.stayed = true")
    plan = home.apply(name, "packing", "a hot expert in every layer")
    expect(epoch).to_contain_text(str(home.status(name).epoch + 1))
    row = page.locator("#plans tbody tr", has_text=plan)
    expect(row).to_contain_text("done")
    expect(row.locator("td").nth(2)).to_have_text("ada")
    expect(row).to_contain_text("a hot expert in every layer")
    told = page.locator("#history li", has_text="plan yes: ").first
    expect(told).to_contain_text("a hot expert in every layer")
    expect(told.locator(".who")).to_have_text("ada")
    before = updates(page)
    page.wait_for_selector(f"#experts[data-updates='{before + 1}']")
    assert page.evaluate("window.stayed")


def test_a_plan_shows_what_it_moves(visit: Visit, home: House, name: str) -> None:
    page = visit.page
    home.plan(name, "random", "only to look at")
    page.locator("#plans tbody tr", has_text="only to look at").first.get_by_role("button").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#plan:not([hidden])")
    for side in ("before", "after"):
        assert page.locator(f"#{side} .row").count() == 4
        assert page.locator(f"#{side} i").count() == 20
    moved = page.locator("#after i.moved").count()
    assert 0 < moved == page.locator("#moves tbody tr").count()
    changed = [
        one != other
        for one, other in zip(
            page.locator("#before i").all_text_contents(),
            page.locator("#after i").all_text_contents(),
            strict=True,
        )
    ]
    assert sum(changed) == moved
    assert page.locator("#verdict li").count() >= 3


def test_no_colour_is_the_only_sign(visit: Visit) -> None:
    """Order is carried by lightness: grey values of the heat scale only rise."""
    greys = visit.page.evaluate(
        """async () => {
          const { heatScale } = await import("/colours.js");
          return [...Array(64).keys()].map((i) => {
            const c = heatScale.colour(i / 8);
            return 0.2126 * (c & 255) + 0.7152 * (c >> 8 & 255) + 0.0722 * (c >> 16 & 255);
          });
        }"""
    )
    assert greys == sorted(greys)
    assert greys[-1] - greys[0] > 120
