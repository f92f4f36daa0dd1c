"""docs/recipes/one-time-link.md: what a reader with a link meets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from fastdedup.testing import swapped

from ..sql_pages.pages import Page, names_of

PAGE = Page("recipes/one-time-link.md")
LINK, REVOKE = PAGE.all_blocks("python")
USED = 'raise HTTPException(410, "this link was used")  # or claim.replay(), to show the first answer again'


@asynccontextmanager
async def desk(redis_url: str, link: str = LINK) -> AsyncIterator[tuple[dict[str, Any], httpx.AsyncClient]]:
    """The page's names, and a client of its endpoints."""
    names = names_of(f"{link}\n{REVOKE}", "recipes/one-time-link.md", redis_url)
    transport = httpx.ASGITransport(names["app"])
    async with names["dedup"], httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        yield names, client


async def click(client: httpx.AsyncClient, link: str, user: str, password: str) -> int:
    return (await client.post(link, data={"user": user, "password": password})).status_code


async def test_a_link_works_once_for_one_user(redis_url: str) -> None:
    async with desk(redis_url) as (names, client):
        link = await names["link_for"]("ann")
        assert [(await client.get(link)).status_code for _ in range(2)] == [200, 200]
        assert await click(client, link, "bob", "x") == 422
        assert await click(client, link, "ann", "new") == 200
        assert await click(client, link, "ann", "evil") == 410
        assert (await client.get(link)).status_code == 410
        assert await click(client, "/reset?token=made-up", "ann", "x") == 404
    assert names["passwords"] == {"ann": "new"}


async def test_who_clicks_again_may_get_the_first_answer(redis_url: str) -> None:
    assert USED in LINK
    async with desk(redis_url, LINK.replace(USED, "return {'first': claim.replay()}")) as (names, client):
        link = await names["link_for"]("ann")
        form = {"user": "ann", "password": "new"}
        answers = await asyncio.gather(*(client.post(link, data=form) for _ in range(2)))
    assert {str(each.json()) for each in answers} == {"{'password': 'set'}", "{'first': 'set'}"}


async def test_a_link_whose_first_use_failed_works_for_an_hour_more() -> None:
    done = "            passwords[user] = password\n"
    assert done in LINK
    names = names_of(LINK.replace(done, f"            fail()\n{done}"), "recipes/one-time-link.md")
    names["fail"] = [].pop
    transport = httpx.ASGITransport(names["app"], raise_app_exceptions=False)
    client = httpx.AsyncClient(transport=transport, base_url="http://shop")
    with swapped(names["dedup"]) as store:
        async with names["dedup"], client:
            link = await names["link_for"]("ann")
            assert await click(client, link, "ann", "new") == 500
            assert (await client.get(link)).status_code == 200
            store.clock.advance(3_700.0)
            assert await click(client, link, "ann", "late") == 404


async def test_a_revoked_link_is_unknown(redis_url: str) -> None:
    async with desk(redis_url) as (names, client):
        link, name = await names["link_and_name"]("ann")
        record = await names["dedup"].get(name, "token", digest=True)
        assert record.state is names["State"].ISSUED
        assert [await names["revoke"](name) for _ in range(2)] == [True, False]
        assert await click(client, link, "ann", "late") == 404
