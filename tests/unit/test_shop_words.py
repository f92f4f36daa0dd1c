"""The shop's pages speak a customer's language; the panel below them speaks an engineer's."""

from __future__ import annotations

import re

import pytest

from examples.shop import front
from examples.shop.order_book import Count, Order
from examples.shop.pages import Notice, ShopPage
from examples.shop.sessions import Session
from examples.shop.stats import BOXES, box_of

JARGON = re.compile(
    r"\b(claim|lease|token|idempoten|redis|worker|replay|degraded|dedup|gate|key|breaker|ledger|503|conflict)",
    re.I,
)


def said_to_customers(page: str) -> str:
    """What a page says outside the panel for engineers."""
    page = re.sub(
        r'(?s)<section class="panel".*?</section>|<footer.*?</footer>|<head>.*?</head>|<svg.*?</svg>',
        "",
        page,
    )
    return re.sub(r"<[^>]+>", " ", page)


@pytest.mark.parametrize("gate", [True, False])
def test_customers_read_only_words_that_they_know(gate: bool) -> None:
    frame = ShopPage(session=Session("1", "Ada"), outage="refuse", gate=gate, stock=10, opens_at=0.0)
    visitor = ShopPage(session=None, outage="refuse", gate=gate, stock=10, opens_at=9e9)
    count = Count(orders=3, sold=14, left=0, degraded=1, stocked=10)
    notices = [*front.NOTICES.values(), *(v for v in vars(front).values() if isinstance(v, Notice))]
    pages = [frame.product("t0", count, notice=notice) for notice in notices]
    pages += [visitor.product("", count), frame.sold_out(0), frame.sold_out(2)]
    pages += [frame.order(Order(1, "Ada", 1, degraded, 0.0)) for degraded in (True, False)]
    assert len(notices) >= 7
    for page in pages:
        said = said_to_customers(page)
        assert "Halcyon" in said
        assert not JARGON.findall(said)


@pytest.mark.parametrize("status", [200, 201, 303, 400, 401, 403, 409, 410, 413, 422, 429, 500, 503])
@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize("later", [False, True])
def test_every_answer_belongs_to_one_box(status: int, replayed: bool, later: bool) -> None:
    box = box_of(status, replayed=replayed, later=later)
    assert box in BOXES
    assert (box == "replayed") is replayed
    assert (box == "ordered") is (status < 400 and not replayed)
