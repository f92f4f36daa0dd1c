"""docs/recipes/limited-stock.md: its endpoint sells each piece once, on PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
from sqlalchemy import text

from ..committing.bank import tables
from ..databases import PostgresServer
from ..integrations.desk import client
from ..sql_pages.pages import Page, forget, statements

PAGE = Page("recipes/limited-stock.md")
(SALE,), (TABLES,) = PAGE.all_blocks("python"), PAGE.all_blocks("sql")
(PROGRAM,) = Page("committing-endpoint.md").blocks("FastAPI", "python")
"""The program that the page's block is put into."""
DATABASE, REDIS = "postgresql+asyncpg://localhost/shop", "redis://localhost:6379/0"
STOCK, BUYERS = 100, 150


@contextlib.asynccontextmanager
async def sale(postgres: PostgresServer, redis_url: str) -> AsyncIterator[dict[str, Any]]:
    """Give the page's names, and `click`, which sends a buyer's request."""
    database = postgres.fresh()
    names = PAGE.run("")
    block = "\n".join([PROGRAM, SALE]).replace(DATABASE, database.urls["asyncpg"]).replace(REDIS, redis_url)
    exec(compile(block, PAGE.name, "exec", dont_inherit=True), names)
    async with names["Session"].begin() as session:
        for statement in [*tables("postgresql"), *statements(TABLES)]:
            await session.execute(text(statement))
    async with names["dedup"], client(names["app"]) as calling:

        async def click(buyer: str, key: str = "") -> httpx.Response:
            """Repeat the request while the first one is under way: on a busy machine it takes longer than `wait`."""
            headers = {"x-account": buyer, "idempotency-key": key or buyer}
            while True:
                answer = await calling.post("/products/1/sales", headers=headers)
                if answer.status_code != 409 or "retry-after" not in answer.headers:
                    return answer

        names["click"] = click
        yield names
    await names["Session"].kw["bind"].dispose()
    postgres.drop(database)
    forget()


async def test_each_piece_is_sold_once(postgres: PostgresServer, redis_url: str) -> None:
    """Each buyer clicks twice; then one wants a second piece, and a piece comes back."""
    async with sale(postgres, redis_url) as names:
        click, buyers = names["click"], [f"b{number}" for number in range(BUYERS)]
        answers = await asyncio.gather(*(click(buyer) for buyer in buyers for _ in range(2)))
        sold = {one.json()["buyer"] for one in answers if one.status_code == 201}
        assert len(sold) == STOCK
        assert Counter(one.status_code for one in answers) == {201: 2 * STOCK, 409: 2 * (BUYERS - STOCK)}
        refused, owner = next(buyer for buyer in buyers if buyer not in sold), min(sold)
        async with names["Session"].begin() as session:
            await session.execute(text("UPDATE product SET stock = 1"))
        assert [(await click(owner, "again")).status_code for _ in range(2)] == [422] * 2
        assert [(await click(refused)).status_code for _ in range(2)] == [201] * 2
        async with names["Session"]() as session:
            assert (await session.execute(text("SELECT stock FROM product"))).scalar() == 0
            assert (await session.execute(text("SELECT count(*) FROM sale"))).scalar() == STOCK + 1
