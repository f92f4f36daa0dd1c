"""Recipes of `docs/recipes/` that only define their functions: what these do."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from ..sql_pages.pages import Page, names_of
from ..waiting import wait_until


def names_of_recipe(recipe: str, redis_url: str) -> dict[str, Any]:
    """Run a recipe's blocks; give their names."""
    page = f"recipes/{recipe}.md"
    return names_of("\n".join(Page(page).all_blocks("python")), page, redis_url)


def client_of(names: dict[str, Any]) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(names["app"]), base_url="http://shop")


async def test_an_endpoint_and_a_consumer_share_a_process(redis_url: str) -> None:
    """Both do their work once; a consumer that ends by an error is seen by the probe, a figure and the end."""
    names = names_of_recipe("one-process", redis_url)
    caller = {"X-Account": "7", "Idempotency-Key": str(uuid.uuid4())}
    shown: list[str] = []

    async def figures() -> str:
        shown.append((await client.get("/metrics/")).text)
        return shown[-1]

    async def duplicate_is_counted() -> bool:
        return 'result="duplicate"} 1.0' in await figures()

    async def probe_fails() -> bool:
        return (await client.get("/health")).status_code == 503

    async def serve() -> None:
        async with names["lifespan"](names["app"]):
            for _ in range(2):
                assert (await client.post("/orders?item=lamp", headers=caller)).json() == {"item": "lamp"}
                await redis.xadd("payments", {"id": caller["Idempotency-Key"], "amount": 500})
            await wait_until(duplicate_is_counted, description="the duplicate is counted")
            assert 'fastdedup_messages_total{consumer="billing",result="first"} 1.0' in shown[-1]
            assert (names["orders"], names["booked"]) == (["lamp"], [500])
            assert (await client.get("/health")).status_code == 200
            await redis.delete("payments")  # and its group with it
            await wait_until(probe_fails, description="the consumer has ended")
            assert 'fastdedup_consumer_running{consumer="billing"} 0.0' in await figures()

    async with Redis.from_url(redis_url) as redis, client_of(names) as client:
        with pytest.raises(ResponseError):
            await serve()


def test_tools_and_webhooks_act_once(redis_url: str) -> None:
    """The application of the page opens its gate by itself."""
    names = names_of_recipe("agents-and-webhooks", redis_url)
    event = {"id": "evt-1", "order": "o-7"}
    with TestClient(names["app"]) as client:
        assert client.portal is not None
        refund = partial(client.portal.call, names["tool_refund"])
        assert refund("run", "o-1", 500) == refund("run", "o-1", 500)
        refund("other run", "o-1", 500)
        for _ in range(3):
            assert client.post("/webhooks/payments", json=event).json() == {"received": True}
    assert (names["refunds"], names["shipped"]) == ([("o-1", 500)] * 2, ["o-7"])


async def test_each_key_has_one_region(redis_url: str) -> None:
    names = names_of_recipe("regions", redis_url)
    async with AsyncExitStack() as stack:
        for gate in names["GATES"].values():
            await stack.enter_async_context(gate)
        assert [await names["place"]("1") for _ in range(2)] == ["first", "placed 1"]
    homes = [names["home_of"](f"order:{number}") for number in range(1_000)]
    assert 400 < homes.count("eu") < 600


async def test_a_job_runs_once_on_three_hosts(redis_url: str) -> None:
    """Nightly, and for a slot of five minutes."""
    names = names_of_recipe("cron", redis_url)
    answers = await asyncio.gather(*(names["nightly"]("2026-11-22") for _ in range(3)))
    assert names["reports"] == ["2026-11-22"]
    assert sorted(answer.startswith("not mine") for answer in answers) == [False, True, True]
    outcomes = await asyncio.gather(*(names["poll"](1794261600) for _ in range(3)))
    assert sorted(outcomes) == ["acquired", "succeeded", "succeeded"]
    assert names["polls"] == ["poll||5980872x300.0"]
