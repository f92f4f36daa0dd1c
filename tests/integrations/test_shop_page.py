"""The shop's page shows what the gate is for, in a real browser: on a phone."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from ..fixtures import fixture_of, fixture_with
from .shops import ShopProcess, until
from .visitors import Visitor, send_crowd, turn_gate, visit

pytestmark = pytest.mark.timeout(120)

STOCK = 10
PHONE: Any = {"viewport": {"width": 360, "height": 740}}


shop = fixture_of(ShopProcess, "--stock", str(STOCK), scope="module")


@pytest.fixture
def full(shop: ShopProcess) -> ShopProcess:
    """The shop, with all of its stock on the shelf."""
    shop.sell_out()
    shop.restock()
    return shop


ada = fixture_with(lambda browser, full: visit(browser, full, "Ada", **PHONE))


# Sold out


def test_sold_out_is_said_before_anybody_clicks(ada: Visitor) -> None:
    expect(ada.tab.locator("[data-countdown]")).to_have_text("Open now")
    ada.shop.sell_out()
    for tab in (ada.tab, ada.new_tab()):  # the page that was open already says so too
        expect(tab.locator("[data-countdown]")).to_have_text("Sold out")
        expect(tab.locator("#buy")).to_be_disabled()
        expect(tab.get_by_text("Every one has found its owner")).to_be_visible()
    ada.shop.restock()
    expect(ada.tab.locator("[data-countdown]")).to_have_text("Open now")
    expect(ada.tab.locator("#buy")).to_be_enabled()


def test_a_sent_form_shows_its_order_after_the_sale(ada: Visitor) -> None:
    first = ada.buy()
    ada.shop.sell_out()
    ada.back()
    expect(ada.tab.locator("[data-countdown]")).to_have_text("Sold out")
    again = ada.buy()
    assert (again.html, again.replayed) == (first.html, True)


# The crowd's boxes


def test_every_answer_of_the_crowd_is_in_a_box(ada: Visitor) -> None:
    before = ada.shop.settled_stats()
    boxes = send_crowd(ada.tab, 2 * STOCK)
    wanted = {"ordered": STOCK, "replayed": 4 * STOCK, "sold_out": STOCK, "later": 0, "refused": 0, "none": 0}
    assert boxes == wanted
    assert sum(boxes.values()) == 6 * STOCK
    expect(ada.tab.locator("#crowd-said")).to_have_text("60 requests sent, 60 in the boxes: it adds up.")
    counted = {name: count for name, count in wanted.items() if name != "none"} | {"answered": 6 * STOCK}

    def all_counted() -> dict[str, Any] | None:  # the other worker writes its counts four times a second
        after = ada.shop.stats()
        return after if {name: after[name] - before[name] for name in counted} == counted else None

    after = until(all_counted, description="both workers' counts add up to the boxes")
    for name in ("sold", "left", "replayed"):
        expect(ada.tab.locator(f"[data-figure={name}]").first).to_have_text(str(after[name]))


def test_an_answer_without_a_box_is_said_to_be_missing(ada: Visitor) -> None:
    ada.tab.route("**/api/orders", lambda route: route.fulfill(status=200, body="{}"))
    assert sum(send_crowd(ada.tab, 1).values()) == 0
    expect(ada.tab.locator("#crowd-said")).to_contain_text("3 are missing")


# The gate's switch


def seen_together(page: Page, *parts: Locator) -> bool:
    """Whether all parts are on the screen at the same time, whole."""
    size = page.viewport_size
    assert size
    boxes = [part.bounding_box() for part in parts]
    return all(box and box["y"] >= 0 and box["y"] + box["height"] <= size["height"] for box in boxes)


def test_the_gate_off_oversells_before_your_eyes(ada: Visitor) -> None:
    turn_gate(ada.tab, "off")
    assert ada.tab.is_checked("#gate-off")
    before = ada.shop.stats()
    boxes = send_crowd(ada.tab, 2)
    assert boxes == {"ordered": 6, "replayed": 0, "sold_out": 0, "later": 0, "refused": 0, "none": 0}
    after = ada.shop.stats()
    assert (after["sold"] - before["sold"], before["left"] - after["left"]) == (6, 2)
    assert after["oversold"] - before["oversold"] == 4
    shown = ada.tab.locator("main .oversold")
    expect(shown).to_have_text(f"{after['oversold']} sold that we do not have")
    expect(ada.tab.locator("#oversold dd")).to_have_text(str(after["oversold"]))
    warning = ada.tab.locator("#unguarded")
    ada.tab.locator("#oversold").evaluate("figure => figure.scrollIntoView()")
    assert seen_together(ada.tab, warning, ada.tab.locator("#oversold"), ada.tab.locator("#send-crowd"))
    ada.tab.evaluate("() => scrollTo(0, 0)")
    assert seen_together(ada.tab, warning, shown, ada.tab.locator("#buy"))

    turn_gate(ada.tab, "on")
    assert send_crowd(ada.tab, 2)["replayed"] == 4
    last = ada.shop.stats()
    assert (last["sold"] - after["sold"], last["oversold"]) == (2, after["oversold"])


def test_the_gate_off_is_said_on_every_page_and_refreshing_buys_again(ada: Visitor) -> None:
    turn_gate(ada.tab, "off")
    first = ada.buy()
    again = ada.reload()
    assert (first.status, again.status, again.replayed) == (201, 201, False)
    assert first.html != again.html
    expect(ada.tab.get_by_role("alert")).to_contain_text("Protection is off")
    expect(ada.tab.get_by_text("now you get another order")).to_be_visible()
    ada.tab.click("#protect")
    expect(ada.tab.locator("#unguarded")).to_be_hidden()
    assert ada.tab.is_checked("#gate-on")
    first, again = ada.reload(), ada.reload()
    assert (again.html, again.replayed) == (first.html, True)


def test_going_back_shows_the_gate_as_it_is_now(ada: Visitor) -> None:
    ada.buy()
    turn_gate(ada.tab, "off")
    ada.back()
    expect(ada.tab.locator("#unguarded")).to_be_visible()
    assert ada.tab.is_checked("#gate-off")
