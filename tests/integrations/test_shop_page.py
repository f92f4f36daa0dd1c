"""The shop's page shows what the gate is for, in a real browser: on a phone, in the dark, by keyboard."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from ..fixtures import fixture_of, fixture_with
from .looks import brightness, nameless_controls, pale_texts, seen_together, small_controls, too_wide
from .shops import ShopProcess, until
from .visitors import Visitor, send_crowd, turn_gate, visit

pytestmark = pytest.mark.timeout(120)

STOCK = 10
PHONE: Any = {"viewport": {"width": 360, "height": 740}}
DESKTOP: Any = {"viewport": {"width": 1280, "height": 800}}


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


def nobody_answers(route: Route) -> None:
    route.abort()


def nobody_buys(route: Route) -> None:
    route.continue_(headers=route.request.headers | {"x-buyer": ""})


@pytest.mark.parametrize(("trouble", "box"), [(nobody_answers, "none"), (nobody_buys, "refused")])
def test_an_answer_that_is_no_order_has_its_box(ada: Visitor, trouble: Any, box: str) -> None:
    ada.tab.route("**/api/orders", trouble)
    boxes = send_crowd(ada.tab, 1)
    assert (boxes[box], sum(boxes.values())) == (3, 3)


def test_an_outage_has_its_box(ada: Visitor) -> None:
    ada.tab.click("#stop-redis")
    expect(ada.tab.locator("#workers .open")).to_have_count(2)
    try:
        boxes = send_crowd(ada.tab, 1)
        assert (boxes["later"], sum(boxes.values())) == (3, 3)
    finally:
        ada.tab.click("#start-redis")
        expect(ada.tab.locator("#workers .closed")).to_have_count(2)


def test_an_answer_without_a_box_is_said_to_be_missing(ada: Visitor) -> None:
    ada.tab.route("**/api/orders", lambda route: route.fulfill(status=200, body="{}"))
    assert sum(send_crowd(ada.tab, 1).values()) == 0
    expect(ada.tab.locator("#crowd-said")).to_contain_text("3 are missing")


# The gate's switch


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


def test_the_gate_turns_without_javascript(full: ShopProcess) -> None:
    headers = {"x-buyer": "ada", "idempotency-key": str(uuid.uuid4())}

    def orders(client: httpx.Client) -> set[str]:
        return {client.post("/api/orders", json={}, headers=headers).text for _ in range(2)}

    with full.visitor("Ada") as ada, full.visitor("Grace") as grace:
        assert ada.post("/gate", data={"gate": "off"}).status_code == 303
        page = ada.get("/").text
        assert 'id="gate-off" checked' in page
        assert 'role="alert">' in page
        assert 'role="alert" hidden>' in grace.get("/").text
        assert len(orders(ada)) == 2
        assert ada.post("/gate", data={"gate": "explode"}).status_code == 422
        assert ada.post("/gate", data={"gate": "on"}).status_code == 303
        assert len(orders(ada)) == 1


# On a phone, on a desk, in the light and in the dark


def every_state(visitor: Visitor) -> Iterator[Page]:
    """Show a visitor's page in each of its states."""
    tab = visitor.tab
    expect(tab.locator("#redis-state")).to_have_text("Redis is up")
    yield tab
    turn_gate(tab, "off")
    visitor.buy()
    visitor.reload()
    expect(tab.locator("#oversold")).to_have_class("big bad")
    yield tab  # a receipt, with the warning
    turn_gate(tab, "on")
    tab.goto(visitor.shop.url)
    tab.evaluate("() => { document.querySelector('#quantity').removeAttribute('max') }")
    tab.fill("#quantity", "9")
    visitor.buy()
    yield tab  # a notice
    visitor.shop.sell_out()
    expect(tab.locator("[data-countdown]")).to_have_text("Sold out")
    yield tab
    tab.click("text=Sign out")
    tab.wait_for_selector("#sign-in")
    expect(tab.locator("#redis-state")).to_have_text("Redis is up")
    yield tab


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_every_page_whole_and_readable(
    browser: Browser, full: ShopProcess, scheme: Any
) -> None:
    with visit(browser, full, "Ada" * 13, color_scheme=scheme, **PHONE) as ada:
        assert (brightness(ada.tab) < 40) is (scheme == "dark")
        assert (brightness(ada.tab) > 220) is (scheme == "light")
        for page in every_state(ada):
            assert too_wide(page) == []
            assert pale_texts(page) == []
            assert nameless_controls(page) == []
            assert small_controls(page) == []


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_the_counters_stand_beside_the_button(browser: Browser, full: ShopProcess, size: Any) -> None:
    with visit(browser, full, "Ada", **size) as ada:
        tab = ada.tab
        figures = [tab.locator(f"main [data-figure={name}]") for name in ("sold", "left")]
        assert seen_together(tab, tab.locator("#buy"), *figures)  # without scrolling
        button, *beside = [part.bounding_box() for part in (tab.locator("#buy"), *figures)]
        assert button
        assert all(box and abs(button["y"] - box["y"]) < 120 for box in beside)
        tab.locator("#crowd-form").evaluate("form => form.scrollIntoView()")
        assert seen_together(tab, tab.locator("#send-crowd"), *tab.locator("[data-box]").all())


def test_everything_can_be_done_by_keyboard(ada: Visitor) -> None:
    tab = ada.tab
    expect(tab.locator("#redis-state")).to_have_text("Redis is up")
    reached = []
    for _ in range(20):
        tab.keyboard.press("Tab")
        focused = tab.evaluate(
            """() => {
                const control = document.activeElement, label = control.nextElementSibling;
                const ring = control.type === "radio" ? label : control;
                if (control === document.body) return ["", "none"];
                return [control.id || control.textContent.trim(), getComputedStyle(ring).outlineStyle];
            }"""
        )
        if focused[0] in [name for name, _ in reached] or focused[0] == "":
            break
        reached.append(focused)
        if focused[0] == "gate-on":
            tab.keyboard.press("ArrowRight")
            expect(tab.locator("#unguarded")).to_be_visible()
            tab.keyboard.press("ArrowLeft")
            expect(tab.locator("#unguarded")).to_be_hidden()
    controls = [
        "quantity",
        "buy",
        "gate-on",
        "crowd-size",
        "send-crowd",
        "restock",
        "stop-redis",
        "outage-refuse",
    ]
    names = [name for name, _ in reached]
    assert [name for name in names if name in controls] == controls
    assert [name for name, outline in reached if outline == "none"] == []
