"""docs/recipes/migration.md: old and new processes of its sections do each order once."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from typing import Any

from fastdedup import business_key

from ..waiting import cancel, wait_until
from .test_pages import migration


@contextlib.asynccontextmanager
async def opened(redis_url: str) -> AsyncIterator[dict[str, Any]]:
    """The names of the recipe, with its gate and its client open."""
    names = migration(redis_url)
    async with names["dedup"], names["redis"]:
        yield names


@contextlib.asynccontextmanager
async def stream_of(redis: Any, *orders: str) -> AsyncIterator[str]:
    """A stream with these messages, which is removed at the end."""
    stream = f"orders-{uuid.uuid4().hex}"
    await redis.xgroup_create(stream, "billing", id="0", mkstream=True)
    for order in orders:
        await redis.xadd(stream, {"id": order})
    yield stream
    await redis.delete(stream)


@contextlib.asynccontextmanager
async def consumed(names: dict[str, Any], stream: str, handler: Any, **options: Any) -> AsyncIterator[None]:
    """All messages of a stream have been acknowledged; the consumer goes on."""
    redis = names["redis"]

    async def all_acknowledged() -> bool:
        lag = (await redis.xinfo_groups(stream))[0]["lag"]
        return not lag and not (await redis.xpending(stream, "billing"))["pending"]

    task = asyncio.create_task(names["consume"](stream, handler, **options))
    await wait_until(all_acknowledged, description="all messages are acknowledged")
    yield
    await cancel(task)


async def test_endpoints_of_both_deploys_do_each_order_once(redis_url: str) -> None:
    async with opened(redis_url) as names:
        old, new, newest = names["old_place"], names["new_place"], names["newest_place"]
        await old("1"), await new("1"), await new("1")  # the old process was first
        await new("2"), await old("2"), await new("2")  # the new one was
        await asyncio.gather(*(place("3") for place in [old, new] * 5))
        await new("4"), await newest("4"), await newest("5")  # the second deploy
    assert sorted(names["placed"]) == ["1", "2", "3", "4", "5"]


async def test_a_new_consumer_skips_what_an_old_one_did(redis_url: str) -> None:
    async with opened(redis_url) as names:
        await names["redis"].set("order:6", "1", ex=60)
        async with (
            stream_of(names["redis"], "6", "7", "7") as stream,
            consumed(names, stream, names["on_order"]),
        ):
            assert names["placed"] == ["7"]


async def test_an_endpoint_and_a_consumer_do_an_order_once(redis_url: str) -> None:
    """An old endpoint did "10" eleven minutes ago; a new endpoint was killed in "13"."""
    async with opened(redis_url) as names:
        redis, place, longest = names["redis"], names["place_by_http_beside_old"], names["LONGEST"]
        await names["old_place"]("10")
        await redis.set("order:13", "fastdedup", ex=60)
        answers = [await place(each) for each in ("10", "11", "11")]
        await redis.pexpire("order:10", int((names["DAY"] - longest - 1) * 1000))
        async with (
            stream_of(redis, "10", "11", "12", "13") as stream,
            consumed(names, stream, names["on_order_beside_old"], **names["beside_old"]),
        ):
            answers += [await place(each) for each in ("10", "12", "13")]
        assert answers == [409, 201, 200, 200, 200, 200]
        assert sorted(names["placed"]) == ["10", "11", "12", "13"]
        assert await names["dedup"].get(business_key("billing", "12")) is not None
