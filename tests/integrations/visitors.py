"""Somebody in front of the shop, with a browser of their own, and what they see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from playwright.sync_api import Browser, BrowserContext, Page, Response, expect

from .browser import PATIENCE_MS
from .shops import ShopProcess


@dataclass
class Seen:
    """One page as the browser got it: the whole of what a person could read there."""

    status: int
    html: str
    headers: dict[str, str]
    method: str

    @classmethod
    def of(cls, response: Response | None) -> Seen:
        assert response is not None
        return cls(response.status, response.text(), response.headers, response.request.method)

    @property
    def replayed(self) -> bool:
        return self.headers.get("idempotency-replayed") == "true"


class Visitor:
    """Somebody with a browser of their own, signed in."""

    def __init__(self, context: BrowserContext, shop: ShopProcess) -> None:
        context.set_default_timeout(PATIENCE_MS)
        self.context = context
        self.shop = shop
        self.tab: Page

    def sign_in(self, name: str) -> Self:
        """Sign in without the form: a request of the browser's own, with its cookies."""
        self.context.request.post(f"{self.shop.url}session", form={"name": name}, max_redirects=0)
        self.tab = self.new_tab()
        return self

    def sign_in_by_form(self, name: str) -> Self:
        """Sign in as people do."""
        self.tab = self.new_tab()
        self.tab.fill("#name", name)
        self.tab.click("#sign-in")
        self.tab.wait_for_selector("#buy")
        return self

    def new_tab(self) -> Page:
        tab = self.context.new_page()
        tab.goto(self.shop.url)
        return tab

    def buy(self, tab: Page | None = None) -> Seen:
        """Press the button; return the page that follows."""
        page = tab or self.tab
        page.bring_to_front()  # Chromium takes 2 s to click in a tab that nobody looks at
        with page.expect_navigation() as navigation:
            page.click("#buy")
        return Seen.of(navigation.value)

    def reload(self, tab: Page | None = None) -> Seen:
        return Seen.of((tab or self.tab).reload())

    def back(self) -> None:
        self.tab.go_back()
        self.tab.wait_for_selector("#buy")


@contextmanager
def visit(browser: Browser, shop: ShopProcess, name: str, **context: Any) -> Iterator[Visitor]:
    """Sign somebody in, in a browser context of their own; `context` is Playwright's options."""
    made = browser.new_context(**context)
    try:
        yield Visitor(made, shop).sign_in(name)
    finally:
        made.close()


def token_of(tab: Page) -> str:
    return tab.input_value("[name=one_time_token]")


def send_crowd(tab: Page, size: int) -> dict[str, int]:
    """Send a crowd; return the boxes once the page has said whether they add up."""
    tab.fill("#crowd-size", str(size))
    tab.click("#send-crowd")
    expect(tab.locator("#crowd-said")).to_contain_text("in the boxes")
    boxes = tab.locator("[data-box]")
    return {str(box.get_attribute("data-box")): int(box.inner_text()) for box in boxes.all()}


def turn_gate(tab: Page, gate: str) -> None:
    tab.click(f"label[for=gate-{gate}]")
    expect(tab.locator("#unguarded")).to_be_visible(visible=gate == "off")
