"""Consumers of Redis Streams, on a real Redis."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis
from redis.asyncio import ConnectionPool, Redis, UnixDomainSocketConnection
from redis.backoff import NoBackoff
from redis.retry import Retry

from fastdedup import ConfigError, Dedup, UsageError
from fastdedup.integrations.redis_streams import Consumer, DeadLetterError, StreamEntry, entry_id, field
from fastdedup.sql import Inbox
from fastdedup.stores.redis.errors import is_outage

from ..servers import RedisServer
from ..waiting import is_renewed, wait_until
from .consumers import Handler, Open, Work, a_handler, at_work, fault, opened, opener

_numbers = itertools.count(1)


class Shop:
    """A stream with a group, on a Redis of its own beside the gate's; streams have no TTL."""

    def __init__(self, server: RedisServer, **options: Any) -> None:
        self.server = server
        self.stream = f"orders-{next(_numbers)}"
        self.dead = f"{self.stream}-dead"
        self.raw = server.client()
        self.raw.xgroup_create(self.stream, "billing", id="0", mkstream=True)
        options = {"path": str(server.socket), "retry": Retry(NoBackoff(), 0), **options}
        self.redis = Redis.from_pool(ConnectionPool(UnixDomainSocketConnection, **options))

    def add(self, *ids: str, **fields: Any) -> None:
        for each in ids:
            self.raw.xadd(self.stream, {"id": each, **fields})

    def pending(self) -> int:
        return int(self.raw.xpending(self.stream, "billing")["pending"])

    async def spend_deliveries(self) -> None:
        """Let two members die with the one entry."""
        for member in ("died", "died-too"):
            self.raw.xreadgroup("billing", member, {self.stream: ">"})
            (pending,) = self.raw.xpending_range(self.stream, "billing", "-", "+", 1)
            self.raw.xclaim(self.stream, "billing", member, 0, [pending["message_id"]])

    def idle_ms(self) -> int:
        """Return how long the only entry at work is idle."""
        (entry,) = self.raw.xpending_range(self.stream, "billing", "-", "+", 2)
        return int(entry["time_since_delivered"])

    def dead_letters(self) -> list[Any]:
        return [fields for _, fields in self.raw.xrange(self.dead)]

    def make(self, dedup: Dedup | None, **options: Any) -> Consumer:
        options = {"key": field("id"), "retry_delay": 0.0, **options}
        return Consumer(self.redis, dedup, stream=self.stream, group="billing", **options)

    @asynccontextmanager
    async def consumer(
        self, dedup: Dedup | None, handler: Handler, **options: Any
    ) -> AsyncIterator[Consumer]:
        async with self.make(dedup, **options) as consumer, at_work(consumer, handler):
            yield consumer


@asynccontextmanager
async def shop_of(server: RedisServer, **options: Any) -> AsyncIterator[Shop]:
    shop = Shop(server, **options)
    try:
        yield shop
    finally:
        await shop.redis.aclose()
        shop.raw.close()


@pytest.fixture
def open_shop(streams: RedisServer, redis_url: str) -> Open:
    return opener(shop_of, streams, redis_url)


pytestmark = pytest.mark.usefixtures("quick")


async def test_no_more_entries_are_taken_than_the_limit(open_shop: Open) -> None:
    async with open_shop() as (shop, dedup):
        end = asyncio.Event()
        work = Work(lambda order: end.wait())
        shop.add("a", "b", "c")
        async with shop.consumer(dedup, work, limit=2) as consumer:
            await wait_until(lambda: len(work.begun) == 2, description="two are begun")
            assert shop.pending() == 2
            end.set()
            await wait_until(lambda: consumer.counts.first == 3, description="all are done")


async def test_a_consumer_has_one_handler_at_a_time(open_shop: Open) -> None:
    """Both runs gave their messages to the second handler, and the first run did not end."""
    async with open_shop() as (shop, dedup):
        work = Work()
        shop.add("a")
        async with shop.consumer(dedup, work) as consumer:
            await wait_until(lambda: consumer.counts.first == 1, description="it runs")
            with pytest.raises(UsageError, match="runs already"):
                await consumer.run(Work())


async def test_entries_of_a_dead_member_are_taken_over(open_shop: Open) -> None:
    async with open_shop() as (shop, dedup):
        shop.add("a", "b")
        shop.raw.xreadgroup("billing", "dead", {shop.stream: ">"})
        work = Work()
        async with shop.consumer(dedup, work, idle=0.05, key=entry_id):
            await wait_until(lambda: sorted(work.done) == ["a", "b"], description="both are done")
            await wait_until(lambda: not shop.pending(), description="both are acknowledged")


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("taken_over", [False, True])
async def test_an_entry_that_the_client_cannot_decode_is_an_entry(
    open_shop: Open, protocol: int, taken_over: bool
) -> None:
    """It was an error of the whole reply: it ended each consumer that read it, or took it over."""
    async with open_shop(decode_responses=True, protocol=protocol) as (shop, dedup):
        entries: list[Any] = []

        async def work(entry: StreamEntry) -> None:
            entries.append(entry.fields)
            if entry.fields["id"] == "b":
                raise DeadLetterError

        shop.add("a")
        shop.add("b", photo=b"\xff")
        shop.raw.xadd(shop.stream, {"id": "c", b"\xfe": "name"})
        if taken_over:
            shop.raw.xreadgroup("billing", "dead", {shop.stream: ">"})
        async with shop.consumer(dedup, work, idle=0.05, dead_letter=shop.dead):
            await wait_until(lambda: len(entries) == 3 and not shop.pending(), description="all are done")
        assert entries == [{"id": "a"}, {"id": "b", "photo": b"\xff"}, {"id": "c", b"\xfe": "name"}]
        assert [each[b"photo"] for each in shop.dead_letters()] == [b"\xff"]


async def test_entries_at_work_are_not_taken_over(open_shop: Open) -> None:
    async with open_shop() as (shop, dedup):
        end, slow, other = asyncio.Event(), Work(lambda order: end.wait()), Work()
        shop.add("slow")
        async with shop.consumer(dedup, slow, idle=0.3, limit=1, grace=1.0):
            await wait_until(lambda: slow.begun, description="it is begun")
            async with shop.consumer(dedup, other, idle=0.3) as second:
                await is_renewed(lambda: -shop.idle_ms())
                assert second.counts.delivered == 0
                end.set()
                await wait_until(lambda: slow.done == ["slow"], description="it is done")


@pytest.mark.parametrize("dies", [False, True], ids=["done", "dead letters"])
async def test_a_small_pool_of_connections_suffices_for_many_entries(
    open_shop: Open, caplog: pytest.LogCaptureFixture, dies: bool
) -> None:
    """Each acknowledgement took a connection of its own, and failed where the pool had no more."""
    ids = [f"order-{number}" for number in range(300)]
    async with open_shop(max_connections=5) as (shop, dedup):
        all_begun = asyncio.Event()
        begun: list[str] = []

        async def handler(entry: StreamEntry) -> None:
            begun.append(entry.id)
            if len(begun) == 256:
                all_begun.set()
            await all_begun.wait()  # so all of them end at once
            if dies:
                raise DeadLetterError("no")

        shop.add(*ids)
        async with shop.consumer(dedup, handler, dead_letter=shop.dead):
            await wait_until(lambda: not shop.pending() and len(begun) == 300, description="all are done")
        assert len(shop.dead_letters()) == (300 if dies else 0)
        troubles = ("XACK failed", "does not answer", "cannot lay")
        assert not [line for line in caplog.messages if any(trouble in line for trouble in troubles)]


async def test_a_small_pool_suffices_to_hand_over_what_is_in_hand(open_shop: Open) -> None:
    """What was not handed over at the end of a member was done by the next one after `idle` only."""
    ids = {f"order-{number}" for number in range(100)}
    async with open_shop(max_connections=5) as (shop, dedup):
        failing, rest = Work(fault), Work()
        shop.add(*ids)
        async with shop.consumer(dedup, failing, retry_delay=1.0, idle=3600.0) as consumer:
            await wait_until(lambda: consumer.counts.retried == 100, description="all wait for another try")
        async with shop.consumer(dedup, rest, idle=3600.0):
            await wait_until(lambda: set(rest.done) == ids, description="the next one does them")


@pytest.mark.parametrize("refuses", [False, True], ids=["it is killed", "it has too few replicas"])
async def test_an_outage_of_its_own_redis_is_survived(
    redis_url: str, caplog: pytest.LogCaptureFixture, refuses: bool
) -> None:
    """With too few replicas, the stream's Redis refuses each XREADGROUP, XACK and XCLAIM for a while."""
    server = RedisServer("--appendonly", "yes", "--appendfsync", "always").start()
    try:
        async with shop_of(server, socket_timeout=None) as shop, opened(redis_url) as dedup:
            end = asyncio.Event()
            work = Work(lambda order: end.wait() if order == "a" else None)
            async with shop.consumer(dedup, work, idle=0.2) as consumer:
                shop.add("a")
                await wait_until(lambda: work.begun == ["a"], description="it is begun")
                if refuses:
                    shop.raw.config_set("min-replicas-to-write", 1)
                else:
                    server.kill()
                end.set()
                await wait_until(lambda: "XACK failed" in caplog.text, description="it is done")
                await wait_until(lambda: consumer.is_paused, description="it tells that it is cut off")
                if refuses:
                    shop.raw.config_set("min-replicas-to-write", 0)
                else:
                    server.start()
                shop.add("b")
                await wait_until(lambda: not shop.pending(), description="both are acknowledged")
                assert not consumer.is_paused
            assert work.done == ["a", "b"]
            assert consumer.counts.duplicate >= 1
        paused, resumed = [line for line in caplog.messages if "pause" in line or "resume" in line]
        assert paused.startswith("consumer 'billing' is paused: its Redis does not answer: ")
        assert resumed.startswith("consumer 'billing' resumes after ")
    finally:
        server.stop()


def test_a_cluster_that_no_node_answers_for_is_an_outage() -> None:
    """Its client says so by an error that is not a RedisError; a mistake of the caller is another one."""
    unreached, mistake = (
        redis.exceptions.RedisClusterException("x"),
        redis.exceptions.RedisClusterException("y"),
    )
    unreached.__cause__ = redis.ConnectionError("refused")
    covered = redis.exceptions.SlotNotCoveredError("z")
    assert [is_outage(each) for each in (unreached, covered, mistake)] == [True, True, False]


async def test_members_of_long_ago_are_removed(open_shop: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_shop() as (shop, dedup):
        shop.add("a")
        shop.raw.xreadgroup("billing", "fastdedup-has-entries", {shop.stream: ">"})
        for member in ("fastdedup-old", "another's"):
            shop.raw.xgroup_createconsumer(shop.stream, "billing", member)
        async with shop.make(dedup):
            pass
        assert len(members(shop)) == 3
        monkeypatch.setattr("fastdedup.integrations.redis_streams._LONG_GONE_MS", -1)
        async with shop.make(dedup):
            pass
        assert members(shop) == {b"fastdedup-has-entries", b"another's"}


def members(shop: Shop) -> set[bytes]:
    return {each["name"] for each in shop.raw.xinfo_consumers(shop.stream, "billing")}


# Keys and settings


async def test_a_setting_that_it_does_not_have_is_named(streams: RedisServer) -> None:
    """With all that it has: its own ones, and those of all consumers."""
    async with shop_of(streams) as shop:
        with pytest.raises(TypeError) as caught:
            shop.make(Dedup("memory://"), limits=5)
    assert str(caught.value) == (
        "the consumer has no setting 'limits'; it has stream, group, key, dead_letter, limit, idle, inbox, begin, "
        "remember, resolve, wait, attempts, retry_delay, lease, fingerprint, name, grace"
    )


def test_the_key_is_a_field_or_the_entrys_id() -> None:
    entry = StreamEntry("orders", "7-0", {"id": "text", b"raw": b"bytes", b"number": b"\xff"})
    assert entry_id(entry) == "orders:7-0"
    assert [field(name)(entry) for name in ("id", "raw", "number", "none")] == ["text", "bytes", "ff", None]


def inbox() -> Inbox:
    return Inbox("short", keep=60.0, table="short_inbox", begin=lambda: None)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stream": ""}, "stream must be a name"),
        ({"group": None}, "group must be a name"),
        ({"dead_letter": ""}, "dead_letter must be a name, got ''"),
        ({"dead_letter": "orders"}, "dead_letter must be another stream"),
        ({"limit": 0}, "limit must be a whole number"),
        ({"idle": 0}, "idle must be"),
        ({"idle": 90_000}, r"after 90000 s \(idle\), and the gate keeps its key for 86400 s only: set ttl="),
        (
            {"idle": 61, "inbox": inbox()},
            "the inbox keeps its row for 60 s only: set keep= of the Inbox above idle",
        ),
        ({"redis": redis.Redis()}, "must be a redis.asyncio.Redis or RedisCluster, got redis.client.Redis"),
        ({"redis": Redis(socket_timeout=0.01)}, "socket_timeout above"),
    ],
)
async def test_a_wrong_setting_is_named(redis_url: str, options: dict[str, Any], words: str) -> None:
    async with opened(redis_url) as dedup:
        more = {"redis": Redis(), "stream": "orders", "group": "billing", "key": entry_id, **options}
        with pytest.raises(ConfigError, match=words):
            Consumer(more.pop("redis"), dedup, **more)


async def test_a_group_that_is_not_there_is_named(open_shop: Open) -> None:
    async with open_shop() as (shop, dedup):
        for stream, group in (("no-such", "billing"), (shop.stream, "no-such")):
            consumer = Consumer(shop.redis, dedup, stream=stream, group=group, key=entry_id)
            with pytest.raises(ConfigError, match=f"the stream '{stream}' has no group '{group}': await"):
                await consumer.__aenter__()


async def test_a_key_that_is_no_stream_is_named(open_shop: Open) -> None:
    """It was told to have no group; the advice to make one ended in this error."""
    async with open_shop() as (shop, dedup):
        shop.raw.set("no-stream", "", ex=60)
        consumer = Consumer(shop.redis, dedup, stream="no-stream", group="billing", key=entry_id)
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            await consumer.__aenter__()


async def test_a_group_that_is_removed_ends_the_consumer(open_shop: Open) -> None:
    async with open_shop() as (shop, dedup), shop.make(dedup) as consumer:
        shop.raw.xgroup_destroy(shop.stream, "billing")
        with pytest.raises(redis.ResponseError, match="NOGROUP"):
            await consumer.run(a_handler)


async def test_a_consumer_that_has_ended_says_that_it_cannot_begin_again(open_shop: Open) -> None:
    """Its run() returned at once without an error, for each try of a program that begins again."""
    async with open_shop() as (shop, dedup):
        consumer = shop.make(dedup)
        consumer.stop()  # a signal may come before the consumer is open
        async with consumer:
            await consumer.run(a_handler)
        with pytest.raises(UsageError, match="the consumer 'billing' has ended, and cannot begin again"):
            await consumer.__aenter__()
