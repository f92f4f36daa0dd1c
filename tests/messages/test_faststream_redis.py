"""FastStream on a real Redis: streams, and what lists and channels do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from faststream.redis import PubSub, RedisBroker, StreamSub
from redis.asyncio import Redis

from fastdedup.integrations.faststream import message_id, offset

from ..servers import RedisServer
from ..waiting import wait_until
from .faststream_lab import Cases, Lab, Make, fault, maker

GROUP = "billing"


class StreamLab(Lab):
    def broker(self, *middlewares: Any) -> Any:
        return RedisBroker(self.server.url, middlewares=middlewares, graceful_timeout=5.0)

    def subscribe(self, broker: Any, **options: Any) -> Any:
        consumer = {"group": GROUP, "consumer": "a", "polling_interval": 5, **options}
        return broker.subscriber(stream=StreamSub(self.place, **consumer))

    def subscribe_dead(self, broker: Any) -> Any:
        return broker.subscriber(stream=StreamSub(self.dead_place, last_id="0", polling_interval=5))

    async def publish(self, order: Any, headers: dict[str, str]) -> None:
        await self.observer.publish(order, stream=self.place, headers=headers)

    async def left(self) -> int:
        async with Redis.from_url(self.server.url) as client:
            (group,) = await client.xinfo_groups(self.place)
            return int(group["pending"] + group["lag"])


class Server:
    """The broker's own Redis, with names of its own for each test."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.names = 0

    def name(self, stem: str) -> str:
        self.names += 1
        return f"{stem}-{self.names}"


@pytest.fixture(scope="module")
def streams(server: RedisServer) -> Server:
    return Server(server.url)


@pytest.fixture
def make(streams: Server, redis_url: str) -> Make:
    return maker(StreamLab, streams, redis_url)


class TestStreams(Cases):
    """Every case, on Redis Streams."""


@pytest.mark.parametrize("key", [message_id, offset])
async def test_an_entrys_id_is_its_key(make: Make, key: Any) -> None:
    async with make(key=key, attempts=1) as lab:
        lab.then = fault
        async with lab.open():
            await lab.publish(7, {})
            await wait_until(lambda: lab.dead, description="a dead letter")
        (entry,) = lab.raws[0]["message_ids"]
        assert lab.dead[0]["x-fastdedup-key"] == f"{lab.place}/{entry.decode()}"


async def test_an_entry_of_a_consumer_that_died_is_done_once_it_is_claimed(make: Make) -> None:
    async with make() as lab:
        async with lab.observed(), lab.consumer(min_idle_time=50, consumer="b"):
            async with Redis.from_url(lab.server.url) as dead:
                await lab.order(7)
                assert await dead.xreadgroup(GROUP, "a", {lab.place: ">"})
            await wait_until(lambda: lab.runs, description="a run")
            await wait_until(lambda: lab.counts.first, description="it is done")
        assert (lab.runs, await lab.left()) == ([7], 0)


async def test_a_slow_entry_that_another_consumer_claims_runs_once(make: Make) -> None:
    end = asyncio.Event()
    async with make() as lab:
        lab.then = end.wait
        async with lab.open(), lab.consumer(min_idle_time=50, consumer="b"):
            await lab.order(7)
            await wait_until(lambda: lab.counts.held, description="its twin is held")
            end.set()
            await wait_until(lambda: lab.counts.duplicate, description="its twin is a duplicate")
        assert (lab.runs, await lab.left()) == ([7], 0)


@pytest.mark.parametrize("kind", ["list", "channel"])
async def test_lists_and_channels_are_guarded_too(make: Make, kind: str) -> None:
    async with make(attempts=2) as lab:
        lab.then = lambda: fault() if lab.runs[-1] == 8 else None
        where = {kind: lab.place}
        observer, broker = lab.broker(), lab.broker(lab.guard)
        dead = (
            {"list": lab.dead_place} if kind == "list" else {"stream": StreamSub(lab.dead_place, last_id="0")}
        )
        observer.subscriber(**dead)(lab.on_dead)
        broker.subscriber(**({"channel": PubSub(lab.place)} if kind == "channel" else where))(lab.on_order)
        await observer.start()
        await broker.start()
        for number in (7, 7, 8):
            await observer.publish(number, headers={"order-id": f"order-{number}"}, **where)
        await wait_until(lambda: lab.dead and lab.counts.duplicate, description="a dead letter, a duplicate")
        await broker.stop()
        await observer.stop()
        assert (lab.runs, lab.dead[0]["x-fastdedup-key"]) == ([7, 8, 8], "order-8")
