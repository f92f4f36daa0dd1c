"""The sale under load: a crowd at two workers, each of whom clicks three times at once."""

from __future__ import annotations

from .crowd import CLICKS, send_crowd
from .shops import ShopProcess

BUYERS, STOCK = 800, 100  # the whole of it: python -m tests.integrations.crowd --buyers 10000


async def test_exactly_the_stock_is_sold_and_every_click_of_a_buyer_is_told_the_same() -> None:
    with ShopProcess("--stock", str(STOCK)) as shop:
        report = await send_crowd(shop.url, BUYERS)
        stats = shop.stats()
    assert list(report.violations(STOCK)) == []
    assert sum(report.statuses.values()) == BUYERS * CLICKS
    assert (stats["orders"], stats["sold"], stats["left"]) == (STOCK, STOCK, 0)
