"""docs/fastapi.md: its form orders once."""

from __future__ import annotations

import asyncio
import re

from ..integrations.desk import client
from ..sql_pages.pages import Page, names_of

(FORM,) = Page("fastapi.md").all_blocks("python")


async def test_a_form_that_is_sent_again_orders_once(redis_url: str) -> None:
    """At once, later, by another session, and without its token."""
    names = names_of(FORM, "fastapi.md", redis_url)
    async with names["dedup"], client(names["app"]) as calling:
        page = (await calling.get("/order", headers={"cookie": "session=a"})).text
        (token,) = re.findall(r'name="one_time_token" value="([^"]+)"', page)

        async def send(session: str, sent: str, item: str = "lamp") -> int:
            fields = {"item": item, "one_time_token": sent}
            return (
                await calling.post("/order", data=fields, headers={"cookie": f"session={session}"})
            ).status_code

        assert await asyncio.gather(*(send("a", token) for _ in range(2))) == [303, 303]
        refused = [await send("a", token, "chair"), await send("b", token), await send("a", "")]
        assert all(400 <= status < 500 for status in refused)
    assert names["orders"] == ["lamp"]
