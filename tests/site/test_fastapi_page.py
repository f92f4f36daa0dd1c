"""docs/fastapi.md: its form orders once."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from ..integrations.desk import client
from ..sql_pages.pages import Page

(FORM,) = Page("fastapi.md").all_blocks("python")
URL = "redis://localhost:6379/0"


async def test_a_form_that_is_sent_again_orders_once(redis_url: str) -> None:
    """At once, later, by another session, and without its token."""
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(FORM.replace(URL, redis_url), "docs/fastapi.md", "exec", dont_inherit=True), names)
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
