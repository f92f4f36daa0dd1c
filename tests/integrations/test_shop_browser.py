"""The shop in a real browser: what people do to forms, and that each of it is one order at most.

Going back to a form that was sent, and refreshing a receipt, are in test_shop_page.py; an outage is in test_shop.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Page, expect

from ..fixtures import fixture_of, fixture_with
from .shops import ShopProcess, token_in
from .visitors import Seen, Visitor, token_of, visit

Sold = Callable[[], int]
pytestmark = pytest.mark.timeout(120)


ada = fixture_with(lambda browser, open_shop: visit(browser, open_shop, "Ada"))


@pytest.fixture
def sold(open_shop: ShopProcess) -> Sold:
    """Counts the orders since the test began, in the shop's own ledger."""
    before = open_shop.orders
    return lambda: open_shop.orders - before


# Clicking, refreshing, going back


def clicked_twice(tab: Page) -> Seen:
    """Click again as soon as the request of the first click is on its way; return the second's response."""
    box = tab.locator("#buy").bounding_box()
    assert box

    def click() -> None:
        tab.mouse.click(box["x"] + 40, box["y"] + 20)  # Playwright's own would wait for the navigation

    with tab.expect_request("**/orders"):
        click()
    with tab.expect_request("**/orders") as sent:
        click()
    return Seen.of(sent.value.response())


def test_a_second_click_while_the_first_is_under_way_shows_its_order(ada: Visitor, sold: Sold) -> None:
    """The browser drops the first response, but the shop does not.

    A busy machine's browser may drop the first request before it is sent: then the second is the order, and a new
    form shows the next pair of clicks.
    """
    for orders in range(1, 6):
        second = clicked_twice(ada.tab)
        assert (second.method, second.status, sold()) == ("POST", 201, orders)
        assert ada.reload().html == second.html
        if second.replayed:
            return
        ada.tab = ada.new_tab()
    pytest.fail("the browser sent none of five first clicks")


def test_going_back_and_changing_the_quantity_is_refused_with_a_fresh_form(ada: Visitor, sold: Sold) -> None:
    token = token_of(ada.tab)
    assert ada.buy().status == 201
    ada.back()
    ada.tab.fill("#quantity", "2")
    refused = ada.buy()
    assert refused.status == 422
    expect(ada.tab.get_by_role("alert")).to_contain_text("used with other contents")
    assert token_in(refused.html) != token
    assert ada.tab.input_value("#quantity") == "2"
    assert sold() == 1
    assert ada.buy().status == 201
    assert sold() == 2


# The opening, and a browser without JavaScript


closed_shop = fixture_of(ShopProcess, "--opens-in", "3500", "--workers", "1", scope="module")


def test_before_it_opens_nobody_buys_and_no_form_is_used_up(closed_shop: ShopProcess) -> None:
    with closed_shop.visitor("Ada") as ada:
        page = ada.get("/").text
        assert "Opens at" in page
        early = ada.post("/orders", data={"one_time_token": token_in(page), "quantity": "1"})
        assert (early.status_code, token_in(early.text)) == (403, token_in(page))
        assert 3000 < int(early.headers["retry-after"]) <= 3501
        headers = {"x-buyer": "ada", "idempotency-key": "a"}
        assert ada.post("/api/orders", json={"quantity": 1}, headers=headers).status_code == 403
    assert closed_shop.orders == 0


def test_the_button_waits_for_the_opening_and_the_shop_keeps_the_time(
    browser: Browser, closed_shop: ShopProcess
) -> None:
    with visit(browser, closed_shop, "Ada") as ada:
        ada.tab.clock.install()
        ada.tab.reload()
        expect(ada.tab.locator("[data-countdown]")).to_contain_text("Opens in 00:5")
        expect(ada.tab.locator("#buy")).to_be_disabled()
        ada.tab.clock.fast_forward("01:00:00")
        expect(ada.tab.locator("[data-countdown]")).to_have_text("Open now")
        assert ada.buy().status == 403  # the browser's clock is the buyer's business
        expect(ada.tab.get_by_role("alert")).to_contain_text("Not yet")
        assert closed_shop.orders == 0


def test_the_shop_works_without_javascript(browser: Browser, open_shop: ShopProcess) -> None:
    before = open_shop.orders
    context = browser.new_context(java_script_enabled=False)
    try:
        bob = Visitor(context, open_shop).sign_in_by_form("Bob")
        first = bob.buy()
        assert (first.status, bob.reload().html) == (201, first.html)
        bob.tab.click("text=Back to the shop")
        bob.tab.click("#outage-local + label")
        bob.tab.click("#outage-form noscript button")
        bob.tab.wait_for_selector("#outage-local:checked", state="attached")
    finally:
        context.close()
    assert open_shop.orders == before + 1
