"""The pages: `string.Template` files of this package. Every value that is filled in is escaped."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from string import Template

from .order_book import Count, Order
from .sessions import MAX_NAME, Session

PRICE, BEFORE = 49, 79
MOST = 5
"""Units in one order."""


class Html(str):
    """Text that is HTML already, so it is not escaped."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice above the product: `kind` is "bad" or "warn"."""

    title: str
    text: str
    kind: str = "bad"


@cache
def asset(name: str) -> str:
    """Return a file of this package."""
    return (files(__package__) / name).read_text(encoding="utf-8")


@cache
def version() -> str:
    """Return a version that changes whenever the style or the script changes."""
    return hashlib.sha256((asset("shop.css") + asset("shop.js")).encode()).hexdigest()[:12]


def filled(name: str, /, **values: object) -> Html:
    """Fill in a template; every value but `Html` is escaped."""
    safe = {key: value if isinstance(value, Html) else escape(str(value)) for key, value in values.items()}
    return Html(Template(asset(name)).substitute(safe))


@dataclass(frozen=True, slots=True)
class ShopPage:
    """The frame of every page, and the pages themselves.

    Attributes:
        session: the visit of the person who is signed in.
        outage: the visitor's policy for a Redis that is down, "refuse" or "local".
        gate: whether the visitor's orders go through fastdedup.
        stock: units that the sale began with.
        opens_at: in seconds since 1970.
    """

    session: Session | None
    outage: str
    gate: bool
    stock: int
    opens_at: float

    def product(self, token: str, count: Count, *, quantity: int = 1, notice: Notice | None = None) -> Html:
        """Return the page of the product, with its order form, or with the sign-in form for other visitors."""
        if self.session is None:
            box = filled("signin.html", longest=MAX_NAME)
        else:
            sold_out = Html("" if count.left else " disabled")
            box = filled("buy.html", token=token, most=MOST, quantity=quantity, sold_out=sold_out)
        main = filled(
            "product.html",
            notice=self._notice(notice),
            picture=Html(asset("picture.svg")),
            stock=self.stock,
            price=PRICE,
            before=BEFORE,
            opens_at=self.opens_at,
            opening=self._opening() if count.left else "Sold out",
            tally=_tally(count),
            order_box=box,
        )
        return self._around(main, "Halcyon One")

    def order(self, order: Order) -> Html:
        """Return the receipt of an order."""
        main = filled(
            "order.html",
            number=order.number,
            quantity=order.quantity,
            buyer=order.buyer,
            total=order.quantity * PRICE,
            placed=time.strftime("%d %B %Y, %H:%M:%S", time.localtime(order.placed)),
            degraded=filled("degraded.html") if order.degraded else Html(),
        )
        return self._around(main, f"Order {order.number}")

    def sold_out(self, left: int) -> Html:
        """Return the page for an order that exceeds the stock."""
        title, text = (
            (f"Only {left} left", "That is fewer than you asked for. Nothing was ordered.")
            if left
            else ("Sold out", "Every one of them has found its owner. Nothing was ordered, nothing is owed.")
        )
        return self._around(filled("soldout.html", title=title, text=text), title)

    def _around(self, main: Html, title: str) -> Html:
        chosen = {self.outage, "on" if self.gate else "off"}
        checked: Mapping[str, Html] = {
            name: Html(" checked" if name in chosen else "") for name in ("refuse", "local", "on", "off")
        }
        visitor = filled("visitor.html", name=self.session.name) if self.session else Html()
        return filled(
            "layout.html",
            title=title,
            version=version(),
            gate="on" if self.gate else "off",
            unguarded=Html(" hidden" if self.gate else ""),
            visitor=visitor,
            main=main,
            panel=filled("panel.html", stock=self.stock, **checked),
        )

    def _notice(self, notice: Notice | None) -> Html:
        if notice is None:
            return Html()
        return filled("notice.html", kind=notice.kind, title=notice.title, text=notice.text)

    def _opening(self) -> str:
        if time.time() >= self.opens_at:
            return "Open now"
        return time.strftime("Opens at %H:%M:%S", time.localtime(self.opens_at))


def _tally(count: Count) -> Html:
    """Return the counters that stand beside the button; the page's script keeps them up to date."""
    hidden = {"is_oversold": count.oversold > 0, "is_sold_out": count.left == 0}
    return filled(
        "tally.html",
        sold=f"{count.sold:,}",
        left=f"{count.left:,}",
        oversold=f"{count.oversold:,}",
        **{name: Html("" if shown else " hidden") for name, shown in hidden.items()},
    )
