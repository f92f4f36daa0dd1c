"""Consumers of Kafka, on a real broker of its protocol and a real Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError

from fastdedup import ConfigError, Dedup, UsageError
from fastdedup.integrations.kafka import Consumer, body, header, offset
from fastdedup.messages.headers import ATTEMPTS, ERROR, LEFT_OUT

from ..brokers import FAST_GROUP, KafkaServer
from ..servers import RedisServer
from ..waiting import cancel, wait_until
from .consumers import Handler, Open, Work, a_handler, at_work, fault, long_fault, opened, opener


class Shop:
    """A topic with a group; publishes orders, and begins consumers of them."""

    def __init__(self, server: KafkaServer, stack: AsyncExitStack) -> None:
        self.server = server
        self.topic, self.dead, self.group = (server.name(stem) for stem in ("topic", "dead", "group"))
        self._stack = stack

    async def open(self, partitions: int = 1) -> Shop:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.server.url)
        await admin.start()
        await admin.create_topics([NewTopic(self.topic, partitions, 1), NewTopic(self.dead, 1, 1)])
        await admin.close()
        producer = AIOKafkaProducer(bootstrap_servers=self.server.url)
        self.producer: AIOKafkaProducer = await self._stack.enter_async_context(producer)
        return self

    async def publish(self, *ids: str, key: str | None = None, partition: int = 0, **headers: bytes) -> None:
        for each in ids:
            await self.producer.send_and_wait(
                self.topic,
                each.encode(),
                key=key and key.encode(),
                partition=partition,
                headers=[("id", each.encode()), *headers.items()],
            )

    def kafka(self, *topics: str, **options: Any) -> AIOKafkaConsumer:
        options = {"group_id": self.group, "enable_auto_commit": False, **FAST_GROUP, **options}
        return AIOKafkaConsumer(
            *topics, bootstrap_servers=self.server.url, auto_offset_reset="earliest", **options
        )

    def member(self) -> AIOKafkaConsumer:
        """A client with the first partition, which is assigned by hand, as a group takes its time to form."""
        member = self.kafka()
        member.assign([TopicPartition(self.topic, 0)])
        return member

    @asynccontextmanager
    async def consumer(
        self, dedup: Dedup | None, handler: Handler, kafka: AIOKafkaConsumer | None = None, **options: Any
    ) -> AsyncIterator[Consumer]:
        """A consumer at work."""
        kafka = kafka or self.member()
        options = {"key": header("id"), "retry_delay": 0.0, **options}
        async with Consumer(kafka, dedup, **options) as consumer, kafka, at_work(consumer, handler):
            yield consumer

    async def committed(self, partition: int = 0) -> int | None:
        async with self.kafka() as kafka:
            found: int | None = await kafka.committed(TopicPartition(self.topic, partition))
            return found

    async def dead_letters(self) -> list[Any]:
        async with self.kafka(group_id=None) as kafka:
            kafka.assign([TopicPartition(self.dead, 0)])
            found = await kafka.getmany(timeout_ms=5000)
            return [record for records in found.values() for record in records]


@asynccontextmanager
async def shop_of(server: KafkaServer, partitions: int = 1) -> AsyncIterator[Shop]:
    async with AsyncExitStack() as stack:
        yield await Shop(server, stack).open(partitions)


@pytest.fixture
def open_shop(kafka: KafkaServer, redis_url: str) -> Open:
    return opener(shop_of, kafka, redis_url)


async def test_a_commit_stops_at_the_first_unfinished(open_shop: Open) -> None:
    async with open_shop() as (shop, dedup):
        end = asyncio.Event()
        work = Work(lambda order: end.wait() if order == "c" else None)
        await shop.publish("a", "b", "c", "d", "e")
        async with shop.consumer(dedup, work) as consumer:
            await wait_until(lambda: len(work.done) == 4, description="the others are done")
            await wait_until(lambda: is_committed(shop, 2), description="those before it are committed")
            end.set()
            await wait_until(lambda: is_committed(shop, 5), description="all are committed")
        assert consumer.counts.first == 5


async def is_committed(shop: Shop, wanted: int) -> bool:
    found = await shop.committed()
    assert found is None or found <= wanted
    return found == wanted


async def test_messages_with_one_key_are_worked_on_in_order(open_shop: Open) -> None:
    async with open_shop() as (shop, dedup):
        free = asyncio.Event()
        tries: list[str] = []

        def then(order: str) -> Any:
            tries.append(order)
            if order == "a" and tries.count("a") < 3:
                raise ValueError("not yet")
            if order == "other":
                free.set()

        await shop.publish("a", "b", "c", key="customer-1")
        await shop.publish("other", key="customer-2")
        async with shop.consumer(dedup, Work(then), retry_delay=0.05) as consumer:
            await free.wait()
            assert "b" not in tries
            await wait_until(lambda: consumer.counts.first == 4, description="all are done")
        assert [order for order in tries if order != "other"] == ["a", "a", "a", "b", "c"]


async def test_a_partition_is_held_at_its_limit(open_shop: Open) -> None:
    async with open_shop() as (shop, dedup):
        end = asyncio.Event()
        work = Work(lambda order: end.wait() if order == "a" else None)
        await shop.publish("a", "b", "c", "d")
        async with shop.consumer(dedup, work, limit=2) as consumer:
            await wait_until(lambda: work.done == ["b"], description="the room is full")
            assert (
                consumer.counts.delivered == 2
            )  # c would have to wait behind a, as its offset cannot be committed
            end.set()
            await wait_until(lambda: consumer.counts.first == 4, description="all are done")


async def test_a_dead_letter_that_is_not_published_is_not_skipped(
    open_shop: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_shop() as (shop, dedup):
        await shop.publish("a")
        publish, refusals = shop.producer.send_and_wait, 2

        async def refused(*given: Any, **more: Any) -> Any:
            nonlocal refusals
            if refusals:
                refusals -= 1
                raise KafkaError("the broker is away")
            return await publish(*given, **more)

        monkeypatch.setattr(shop.producer, "send_and_wait", refused)
        work = Work(fault)
        async with shop.consumer(
            dedup, work, attempts=1, dead_letter=shop.dead, producer=shop.producer
        ) as consumer:
            await wait_until(lambda: consumer.counts.dead_lettered == 1, description="it is a dead letter")
        assert work.begun == ["a"]
        (dead,) = await shop.dead_letters()
        headers = dict(dead.headers)
        assert (headers[ATTEMPTS], headers[ERROR]) == (b"1", b"ValueError: no such customer")


@pytest.mark.parametrize("trace", [900, 1700, 3000])
async def test_a_dead_letter_is_no_larger_than_the_broker_takes(open_shop: Open, trace: int) -> None:
    """It stopped its partition for good: it was published again and again, and refused."""
    async with (
        open_shop() as (shop, dedup),
        AIOKafkaProducer(bootstrap_servers=shop.server.url, max_request_size=2000) as producer,
    ):
        await shop.publish("a", trace=b"t" * trace)
        options = {"attempts": 1, "dead_letter": shop.dead, "producer": producer}
        async with shop.consumer(dedup, Work(long_fault), **options) as consumer:
            await wait_until(lambda: consumer.counts.dead_lettered == 1, description="it is a dead letter")
        assert await shop.committed() == 1
        (dead,) = await shop.dead_letters()
        headers = dict(dead.headers)
        assert (dead.value, headers["id"], headers[ATTEMPTS]) == (b"a", b"a", b"1")
        assert (len(headers.get(ERROR, b"")), headers.get("trace"), headers.get(LEFT_OUT)) == {
            900: (500, b"t" * 900, None),
            1700: (0, b"t" * 1700, None),
            3000: (0, None, b"trace"),
        }[trace]


async def test_a_crashed_consumers_message_goes_to_the_next(open_shop: Open) -> None:
    async with open_shop() as (shop, dedup):
        await shop.publish("a", "b")
        forever = Work(lambda order: asyncio.Event().wait() if order == "b" else None)
        own = shop.member()
        async with Consumer(own, dedup, key=offset) as crashing, own:
            running = asyncio.create_task(crashing.run(forever))
            await wait_until(lambda: is_committed(shop, 1), description="the first is committed")
            await cancel(running)
        work = Work()
        async with shop.consumer(dedup, work, key=offset) as consumer:
            await wait_until(lambda: consumer.counts.first == 1, description="the second is done")
        assert work.done == ["b"]


async def test_an_outage_holds_the_partition_and_keeps_the_group(
    kafka: KafkaServer, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client leaves its group if nobody polls for max_poll_interval_ms: here that is over three times."""
    monkeypatch.setattr("fastdedup.integrations.kafka._POLL", 0.1)
    listener = Listener()
    async with shop_of(kafka) as shop, opened(server.url) as dedup:
        member = shop.kafka(max_poll_interval_ms=300)
        member.subscribe([shop.topic], listener=listener)
        async with shop.consumer(dedup, Work(), member, limit=1) as consumer:
            await wait_until(lambda: member.assignment(), description="the group is formed")
            server.kill()
            await shop.publish("a", "b")
            await wait_until(lambda: consumer.is_paused, description="the consumer is paused")
            held = time.monotonic()
            await wait_until(lambda: time.monotonic() - held > 1.0, description="three intervals")
            server.start()
            await wait_until(lambda: consumer.counts.first == 2, description="both are done")
            assert not consumer.is_paused
        assert consumer.counts.retried == 0
        assert listener.revoked == [set()]


class Listener(ConsumerRebalanceListener):
    """A user's own listener."""

    def __init__(self) -> None:
        self.revoked: list[Any] = []
        self.assigned: list[Any] = []

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.revoked.append(set(revoked))

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self.assigned.append(set(assigned))


async def test_a_rebalance_in_the_middle_of_work_does_nothing_twice(open_shop: Open) -> None:
    async with open_shop(partitions=2) as (shop, dedup):
        end = asyncio.Event()
        first, second = Work(lambda order: end.wait()), Work(lambda order: end.wait())
        for partition in (0, 1):
            await shop.publish(*(f"{partition}-{n}" for n in range(3)), partition=partition)
        one, other = shop.kafka(shop.topic), shop.kafka(shop.topic)
        async with shop.consumer(dedup, first, one, limit=2) as consumer:
            await wait_until(lambda: len(first.begun) == 4, description="all that there is room for is begun")
            async with shop.consumer(dedup, second, other, limit=2):
                await wait_until(lambda: len(one.assignment()) == 1, description="a rebalance")
                await wait_until(lambda: consumer.counts.delivered > 4, description="it is delivered again")
                end.set()
                await wait_until(lambda: len(first.done + second.done) == 6, description="all are done")
                await wait_until(lambda: all_committed(shop), description="all are committed")
        assert sorted(first.done + second.done) == sorted(set(first.done + second.done))


async def all_committed(shop: Shop) -> bool:
    return [await shop.committed(partition) for partition in (0, 1)] == [3, 3]


async def test_work_that_ends_in_time_is_committed_before_a_rebalance(open_shop: Open) -> None:
    listener = Listener()
    async with open_shop() as (shop, dedup):
        end, work = asyncio.Event(), Work(lambda order: end.wait())
        member = shop.kafka(rebalance_timeout_ms=20_000)
        member.subscribe([shop.topic], listener=listener)
        await shop.publish("a")
        async with shop.consumer(dedup, work, member) as consumer:
            await wait_until(lambda: work.begun == ["a"], description="it is begun")
            leaving = asyncio.create_task(consumer._leave(member.assignment()))
            await wait_until(
                lambda: consumer._jobs and next(iter(consumer._jobs)).is_given_up, description="left"
            )
            assert not leaving.done()
            end.set()
            await leaving
            assert await shop.committed() == 1


@pytest.mark.parametrize("cancelled", [False, True], ids=["", "the rebalance is cancelled"])
async def test_a_partition_that_was_lost_is_not_committed(open_shop: Open, cancelled: bool) -> None:
    async with open_shop() as (shop, dedup):
        end, work = asyncio.Event(), Work(lambda order: end.wait())
        await shop.publish("a")
        async with shop.consumer(dedup, work) as consumer:
            await wait_until(lambda: work.begun == ["a"], description="it is begun")
            if not cancelled:
                consumer._patience = 0.01
            leaving = asyncio.create_task(consumer._leave([TopicPartition(shop.topic, 0)]))
            await asyncio.sleep(0)
            if cancelled:
                leaving.cancel()
            await asyncio.wait([leaving])
            end.set()
            await wait_until(lambda: consumer.counts.first == 1, description="it is done")
        assert await shop.committed() is None


async def test_a_partition_that_is_no_longer_assigned_holds_up_no_commit(open_shop: Open) -> None:
    async with open_shop(partitions=2) as (shop, dedup):
        end, kafka = asyncio.Event(), shop.kafka()
        work = Work(lambda order: end.wait() if order == "a" else None)
        kafka.assign([TopicPartition(shop.topic, number) for number in (0, 1)])
        await shop.publish("a", partition=1)
        async with shop.consumer(dedup, work, kafka) as consumer:
            await wait_until(lambda: work.begun == ["a"], description="it is begun")
            kafka.assign([TopicPartition(shop.topic, 0)])
            end.set()
            await wait_until(lambda: consumer.counts.first == 1, description="it is done")
            await shop.publish("b")
            await wait_until(lambda: is_committed(shop, 1), description="the other partition is committed")
        assert await shop.committed(1) is None


async def test_one_error_of_the_client_is_survived(open_shop: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastdedup.integrations.kafka._POLL", 0.01)
    async with open_shop() as (shop, dedup):
        member = shop.member()
        poll, errors = member.getmany, 3

        async def failing(*given: Any, **more: Any) -> Any:
            nonlocal errors
            if errors:
                errors -= 1
                raise KafkaError("the coordinator is away")
            return await poll(*given, **more)

        monkeypatch.setattr(member, "getmany", failing)
        work = Work()
        await shop.publish("a")
        async with shop.consumer(dedup, work, member):
            await wait_until(lambda: work.done == ["a"], description="it is done")


async def test_stop_waits_for_no_rebalance(open_shop: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll returns once the group has rebalanced, which may be never."""
    async with open_shop() as (shop, dedup):
        member, polls = shop.member(), []

        async def rebalancing(*given: Any, **more: Any) -> Any:
            polls.append(given)
            await asyncio.Event().wait()

        monkeypatch.setattr(member, "getmany", rebalancing)
        async with shop.consumer(dedup, Work(), member):
            await wait_until(lambda: polls, description="a poll is under way")


async def test_an_error_that_lasts_ends_the_consumer(
    open_shop: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastdedup.integrations.kafka._POLL", 0.01)
    async with open_shop() as (shop, dedup):
        member = shop.member()

        async def failing(*given: Any, **more: Any) -> Any:
            raise KafkaError("not allowed")

        monkeypatch.setattr(member, "getmany", failing)
        async with Consumer(member, dedup, key=offset) as consumer, member:
            with pytest.raises(KafkaError, match="not allowed"):
                await consumer.run(Work())


# Keys and settings


def record(**given: Any) -> Any:
    about = {"topic": "orders", "partition": 3, "offset": 7, "timestamp": 1000, "headers": ()}
    return type("Record", (), {**about, **given})


def test_the_key_is_an_offset_a_header_or_a_digest() -> None:
    assert offset(record()) == "orders/3/7@1000"
    assert offset(record()) != offset(record(timestamp=2000)), "a topic that was made anew"
    headers = (("id", b"first"), ("id", b"last"), ("other", b""))
    assert header("id")(record(headers=headers)) == "last"
    assert header("no-such")(record()) is None
    assert body(record(value=b"a")) == body(record(value=b"a")) != body(record(value=None))


async def test_a_wrong_setting_is_named(open_shop: Open) -> None:
    async with open_shop() as (shop, dedup):
        more = {"key": offset, "dead_letter": shop.dead, "producer": shop.producer}
        for found, options, words in [
            (shop.producer, {}, "kafka must be an aiokafka.AIOKafkaConsumer, got AIOKafkaProducer"),
            (shop.kafka(shop.topic, enable_auto_commit=True), {}, "enable_auto_commit=False"),
            (shop.kafka(shop.topic, group_id=None), {}, "give it group_id="),
            (shop.kafka(shop.topic, value_deserializer=bytes), {}, "must have no deserializers"),
            (
                shop.kafka(shop.topic, max_poll_interval_ms=1000),
                {},
                "a max_poll_interval_ms of more than 1000",
            ),
            (
                shop.kafka(shop.topic, session_timeout_ms=90_000_000),
                {},
                "ttl= of the Dedup above session",
            ),
            (shop.kafka(shop.topic), {"producer": None}, "give both, got str and NoneType"),
            (shop.kafka(shop.topic), {"dead_letter": None}, "give both, got NoneType and"),
            (shop.kafka(shop.topic), {"dead_letter": ""}, "dead_letter must be a topic, got ''"),
            (shop.kafka(shop.topic), {"limit": 0}, "limit must be a whole number"),
            (shop.kafka(shop.topic), {"dead_letter": shop.topic}, "dead_letter must be a topic that is not"),
            (shop.kafka(), {}, "subscribed to no topic"),
        ]:
            with pytest.raises(ConfigError, match=words):
                async with Consumer(found, dedup, **{**more, **options}):
                    pass
            await found.stop() if found is not shop.producer else None
        member = shop.kafka(shop.topic)
        consumer = Consumer(member, dedup, **more)
        with pytest.raises(UsageError, match="not open"):
            await consumer.run(a_handler)
        with pytest.raises(ConfigError, match="must be async def"):
            await consumer.run(print)
        await member.stop()


async def test_a_missing_topic_for_dead_letters_is_named(
    open_shop: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown(topic: str) -> Any:
        raise UnknownTopicOrPartitionError  # this broker makes each topic that is asked for

    async with open_shop() as (shop, dedup):
        monkeypatch.setattr(shop.producer, "partitions_for", unknown)
        member = shop.member()
        options = {"key": offset, "dead_letter": "no-such", "producer": shop.producer}
        async with Consumer(member, dedup, **options) as consumer, member:
            with pytest.raises(ConfigError, match="no topic 'no-such' for dead letters"):
                await consumer.run(a_handler)


async def test_a_pattern_of_topics_is_listened_to(redis_url: str) -> None:
    async with opened(redis_url) as dedup:
        member = AIOKafkaConsumer(group_id="g", enable_auto_commit=False)
        member.subscribe(pattern="^orders-")
        async with Consumer(member, dedup, key=offset):
            subscription = member._subscription
            assert subscription.subscribed_pattern.pattern == "^orders-"
            assert type(subscription.listener).__module__ == "fastdedup.integrations.kafka"
        await member.stop()
