"""The consumer of RabbitMQ, on a real one: each row of the table of outcomes, and what happens on each failure."""

from __future__ import annotations

import asyncio
import gc
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import aio_pika
import aiosqlite
import pytest
from aio_pika import IncomingMessage
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue
from aio_pika.exceptions import ChannelInvalidStateError, MessageProcessError

from fastdedup import ConfigError, Dedup, UsageError
from fastdedup.integrations.rabbitmq import Consumer, body, message_id
from fastdedup.integrations.rabbitmq.dead_letters import replay
from fastdedup.integrations.rabbitmq.places import UnroutableError
from fastdedup.sql import Inbox

from ..brokers import RabbitServer
from ..fixtures import async_fixture
from ..inbox_file import make_tables, transaction, work_in
from ..waiting import cancel, wait_until
from .consumers import at_work

Open = Callable[..., AbstractAsyncContextManager["Orders"]]


class Orders:
    """A queue, and a consumer of it whose handler notes what it gets and then does what it is told."""

    def __init__(self, channel: AbstractChannel, queue: AbstractQueue, dedup: Dedup | None) -> None:
        self.channel = channel
        self.queue = queue
        self.dedup = dedup
        self.runs: Counter[str | None] = Counter()
        self.seen: list[AbstractIncomingMessage] = []
        self.then: Callable[[AbstractIncomingMessage], Any] = lambda message: None

    async def publish(self, *ids: str | None, exchange: str = "", **properties: Any) -> None:
        target = await self.channel.get_exchange(exchange) if exchange else self.channel.default_exchange
        key = properties.pop("routing_key", self.queue.name)
        content = properties.pop("body", b"{}")
        for each in ids:
            message = aio_pika.Message(content, message_id=each, delivery_mode=2, **properties)
            await target.publish(message, key)

    async def handler(self, *given: Any) -> None:
        message = given[-1]
        self.runs[message.message_id] += 1
        self.seen.append(message)
        found = self.then(message)
        if asyncio.iscoroutine(found):
            await found

    def consumer(self, **options: Any) -> Consumer:
        options = {
            "key": message_id,
            "declare": True,
            "retry_delay": 0.05,
            "wait": 5.0,
            "grace": 5.0,
            **options,
        }
        return Consumer(self.queue, self.dedup, **options)

    @asynccontextmanager
    async def consuming(self, **options: Any) -> AsyncIterator[Consumer]:
        async with self.consumer(**options) as consumer, at_work(consumer, self.handler):
            yield consumer

    async def left(self) -> int:
        """Give the number of messages that are ready in the queue."""
        found = await self.channel.declare_queue(self.queue.name, passive=True)
        return int(found.declaration_result.message_count or 0)

    async def dead(self, name: str = "") -> list[AbstractIncomingMessage]:
        """Take the dead letters."""
        queue = await self.channel.get_queue(name or f"{self.queue.name}.dead")
        found = []
        while (message := await queue.get(fail=False)) is not None:
            await message.ack()
            found.append(message)
        return found


@asynccontextmanager
async def opened(
    server: RabbitServer,
    dedup: Dedup | None,
    *,
    kind: str = "classic",
    robust: bool = False,
    **arguments: Any,
) -> AsyncIterator[Orders]:
    connect: Any = aio_pika.connect_robust if robust else aio_pika.connect
    options = {"reconnect_interval": 0.1, "fail_fast": False} if robust else {}
    async with await connect(server.url, **options) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(
            server.name("orders"), durable=True, arguments={"x-queue-type": kind, **arguments}
        )
        yield Orders(channel, queue, dedup)


@asynccontextmanager
async def shop(
    rabbitmq: RabbitServer, redis_url: str, *, gate: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[Orders]:
    async with (
        Dedup(redis_url, namespace="m", **{"timeout": 5.0, **(gate or {})}) as dedup,
        opened(rabbitmq, dedup, **options) as orders,
    ):
        yield orders


@pytest.fixture
def open_orders(rabbitmq: RabbitServer, redis_url: str) -> Open:
    return partial(shop, rabbitmq, redis_url)


def fault(message: AbstractIncomingMessage) -> None:
    raise ValueError("no such customer")


orders = async_fixture(lambda open_orders: open_orders())


# The outcomes


async def test_a_retried_message_keeps_its_exchange_and_routing_key(
    rabbitmq: RabbitServer, orders: Orders
) -> None:
    events = await orders.channel.declare_exchange(rabbitmq.name("events"), "topic", durable=True)
    await orders.queue.bind(events, "order.*")
    orders.then = lambda message: fault(message) if orders.runs["7"] < 3 else None
    await orders.publish("7", exchange=events.name, routing_key="order.paid")
    async with orders.consuming() as consumer:
        await wait_until(lambda: consumer.counts.first, description="it is done")
    assert {(each.exchange, each.routing_key) for each in orders.seen} == {(events.name, "order.paid")}
    assert orders.runs["7"] == 3


async def test_copies_go_to_no_other_queue_of_their_message(rabbitmq: RabbitServer, orders: Orders) -> None:
    """RabbitMQ publishes a message to each queue that its header CC names."""
    audit = await orders.channel.declare_queue(rabbitmq.name("audit"))
    orders.then = fault
    await orders.publish("7", headers={"CC": [audit.name]})
    async with orders.consuming(attempts=2) as consumer:
        await wait_until(lambda: consumer.counts.dead_lettered, description="it is a dead letter")
    await replay(orders.channel, f"{orders.queue.name}.dead")
    assert (
        await orders.channel.declare_queue(audit.name, passive=True)
    ).declaration_result.message_count == 1
    orders.then = lambda message: None
    async with orders.consuming() as consumer:
        await wait_until(lambda: consumer.counts.first, description="it is done")
    assert [each.headers["CC"] for each in orders.seen] == [[audit.name]] * 3


async def test_equal_bodies_are_one_message_by_choice(orders: Orders) -> None:
    await orders.publish("1", "2")
    async with orders.consuming(key=body) as consumer:
        await wait_until(lambda: consumer.counts.duplicate, description="both came")
    assert (consumer.counts.first, consumer.counts.delivered) == (1, 2)


async def test_a_twin_at_work_costs_few_deliveries(orders: Orders) -> None:
    end = asyncio.Event()
    orders.then = lambda message: end.wait()
    await orders.publish("7", "7")
    async with orders.consuming(wait=0.2) as consumer:
        await wait_until(lambda: consumer.counts.retried, description="the second waits for a retry")
        deliveries = consumer.counts.delivered
        end.set()
        await wait_until(lambda: consumer.counts.duplicate, description="the second is a duplicate")
    assert deliveries == 2
    assert orders.runs["7"] == 1


@pytest.mark.parametrize("prefetch", [1, 10])
async def test_copies_keep_the_delay_between_attempts(orders: Orders, prefetch: int) -> None:
    """Of five copies one works; those that are held, or come after it has failed, begin no attempt of their own."""
    times: list[float] = []

    def fail(message: AbstractIncomingMessage) -> None:
        times.append(asyncio.get_running_loop().time())
        raise ValueError("no such customer")

    orders.then = fail
    await orders.publish(*["7"] * 5)
    async with orders.consuming(attempts=4, retry_delay=0.3, prefetch=prefetch) as consumer:
        await wait_until(
            lambda: consumer.counts.dead_lettered + consumer.counts.duplicate == 5,
            description="one is a dead letter, the others are its duplicates",
        )
    gaps = [after - before for before, after in pairwise(times)]
    assert len(gaps) == 3
    assert min(gaps) >= 0.299  # the loop's clock may count whole milliseconds
    assert len(await orders.dead()) == 1


async def test_two_queues_of_one_message_both_work(rabbitmq: RabbitServer, open_orders: Open) -> None:
    async with open_orders() as billing, opened(rabbitmq, billing.dedup) as shipping:
        for each in (billing, shipping):
            await each.publish("7")
        async with billing.consuming() as first, shipping.consuming() as second:
            await wait_until(lambda: first.counts.first and second.counts.first, description="both worked")


async def test_dead_letters_go_to_an_exchange_of_choice(rabbitmq: RabbitServer, orders: Orders) -> None:
    exchange = await orders.channel.declare_exchange(rabbitmq.name("dlx"), durable=True)
    graves = await orders.channel.declare_queue(rabbitmq.name("graves"), durable=True)
    await graves.bind(exchange, orders.queue.name)
    orders.then = fault
    await orders.publish("7")
    async with orders.consuming(attempts=1, dead_letter=exchange.name) as consumer:
        await wait_until(lambda: consumer.counts.dead_lettered, description="it is a dead letter")
    assert len(await orders.dead(graves.name)) == 1


async def test_a_dead_letter_that_no_queue_takes_is_not_lost(rabbitmq: RabbitServer, orders: Orders) -> None:
    exchange = await orders.channel.declare_exchange(rabbitmq.name("dlx"), durable=True)
    orders.then = fault
    await orders.publish("7")
    async with orders.consumer(attempts=1, dead_letter=exchange.name) as consumer:
        with pytest.raises(UnroutableError, match="no queue takes"):
            await consumer.run(orders.handler)
    await orders.channel.close()
    async with opened(rabbitmq, orders.dedup) as others:
        found = await others.channel.get_queue(orders.queue.name)
        assert await found.get(timeout=5.0)


async def test_a_consumer_ends_where_its_dead_letters_have_no_exchange_any_more(
    rabbitmq: RabbitServer, open_orders: Open
) -> None:
    """A robust connection opened the channel again: 370 times a second it was closed, and nobody was told."""
    async with open_orders(robust=True) as orders, opened(rabbitmq, None) as others:
        exchange = await others.channel.declare_exchange(rabbitmq.name("dlx"), durable=True)
        orders.then = fault
        async with orders.consumer(attempts=1, dead_letter=exchange.name) as consumer:
            await exchange.delete()
            await orders.publish("7")
            async with asyncio.timeout(10.0):
                with pytest.raises(
                    UnroutableError, match=f"no queue takes the messages for '{exchange.name}'"
                ):
                    await consumer.run(orders.handler)
        assert orders.runs == {"7": 1}


async def test_a_message_is_settled_once_whoever_does_it(orders: Orders) -> None:
    """A second ack would close the channel, and deliver all messages in hand again."""
    orders.then = lambda message: message.ack() if message.message_id == "own" else None
    await orders.publish("own", "ours")
    async with orders.consuming() as consumer:
        await wait_until(lambda: consumer.counts.first == 2, description="both are done")
        await wait_until(lambda: all(each.processed for each in orders.seen), description="both settled")
        for message in orders.seen:
            with pytest.raises(MessageProcessError):
                await message.ack()
        await orders.publish("later")
        await wait_until(lambda: consumer.counts.first == 3, description="the channel is open")
    assert consumer.counts.delivered == 3


# A consumer that stops


async def test_a_message_that_comes_late_goes_back_once(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker did not learn that the consumer has left, so it would deliver the message again at once."""
    end = asyncio.Event()

    async def lose(queue: AbstractQueue, tag: str) -> None:
        raise ConnectionError("the connection was lost")

    orders.then = lambda message: end.wait()
    await orders.publish("7")
    async with orders.consuming() as consumer:
        await wait_until(lambda: orders.runs["7"], description="it is worked on")
        monkeypatch.setattr(type(orders.queue), "cancel", lose)
        consumer.stop()
        await orders.publish("8")
        for _ in range(50):
            await orders.left()
        end.set()
    assert (consumer.counts.delivered, orders.runs["8"]) == (1, 0)


@pytest.mark.parametrize("place", ["dead letter", "retry"])
async def test_stop_cuts_no_copy_off(orders: Orders, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its message would go back, though the copy was written."""
    written, end = asyncio.Event(), asyncio.Event()
    underlay: Any = await orders.channel.get_underlay_channel()
    publish = underlay.basic_publish

    async def slowly(*given: Any, **options: Any) -> Any:
        answer = await publish(*given, **options)
        written.set()
        await end.wait()
        return answer

    orders.then = lambda message: end.wait()
    await orders.publish(*(["7", "7"] if place == "retry" else ["7"]))
    monkeypatch.setattr(underlay, "basic_publish", slowly)
    key = message_id if place == "retry" else lambda message: None
    async with orders.consuming(key=key, wait=0.05, retry_delay=60.0) as consumer:
        await written.wait()
        consumer.stop()
        end.set()
    assert await orders.queue.get(fail=False) is None


async def test_a_message_of_a_lost_channel_keeps_no_other_from_going_back(open_orders: Open) -> None:
    async with open_orders(robust=True) as orders, orders.consumer() as consumer:
        orders.then = lambda message: asyncio.Event().wait()
        await orders.publish("7")
        running = asyncio.create_task(consumer.run(orders.handler))
        await wait_until(lambda: orders.runs["7"], description="it is worked on")
        underlay = await orders.channel.get_underlay_channel()
        await underlay.connection.close(ConnectionError("the network flaps"))
        await wait_until(lambda: consumer.counts.held, description="it has come again")
        await orders.publish(*map(str, range(8, 16)))
        await wait_until(lambda: len(orders.runs) == 9, description="the others are worked on")
        await cancel(running)
        found = {(await orders.queue.get()).message_id for _ in range(9)}
        assert found == {str(each) for each in range(7, 16)}


async def test_a_run_that_is_cancelled_as_it_stops_keeps_no_message(orders: Orders) -> None:
    """The consumer did not leave, so the broker delivered to it what it gave back."""
    orders.then = lambda message: asyncio.Event().wait()
    await orders.publish("7")
    async with orders.consumer() as consumer:
        running = asyncio.create_task(consumer.run(orders.handler))
        await wait_until(lambda: orders.runs["7"], description="it is worked on")
        consumer.stop()
        await cancel(running)
        assert await orders.queue.get()


# Failures


async def test_a_consumer_that_stops_in_an_outage_is_not_restored(open_orders: Open) -> None:
    """aio-pika before 10.1 did: what the broker then sent stayed unacknowledged while the connection was open."""
    async with open_orders(robust=True) as orders:
        await orders.publish("6")
        async with orders.consuming() as consumer:
            await wait_until(lambda: consumer.counts.first, description="the broker delivers")
            underlay = await orders.channel.get_underlay_channel()
            await underlay.connection.close(ConnectionError("the network flaps"))
        await orders.channel.declare_queue(orders.queue.name, passive=True)
        await orders.publish("7", "8")
        async with orders.consuming() as other:
            await wait_until(lambda: other.counts.first == 2, description="another consumer has both")


async def test_a_lost_connection_lets_work_end_and_skips_its_ack(redis_url: str) -> None:
    end = asyncio.Event()
    with RabbitServer() as broker:
        async with (
            shop(broker, redis_url, kind="quorum", robust=True) as orders,
            orders.consuming() as consumer,
        ):
            orders.then = lambda message: end.wait()
            await orders.publish("7")
            await wait_until(lambda: orders.runs["7"], description="it is worked on")
            broker.kill()
            end.set()
            await wait_until(lambda: consumer.counts.first, description="the work ends")
            broker.start()
            await wait_until(lambda: consumer.counts.duplicate, description="it comes again", deadline=40.0)
            assert orders.runs["7"] == 1


async def test_deliveries_of_lost_channels_are_forgotten(open_orders: Open) -> None:
    """The only task is at work as the channel is lost three times."""
    end = asyncio.Event()

    def is_open(message: IncomingMessage) -> bool:
        try:
            return not message.channel.is_closed
        except ChannelInvalidStateError:
            return False

    def copies(*, on_open_channels: bool) -> int:
        found = [each for each in gc.get_objects() if type(each) is IncomingMessage]  # asks no lazy object
        return sum(is_open(each) or not on_open_channels for each in found if each.message_id == "once more")

    async with open_orders(robust=True) as orders, orders.consuming(prefetch=1) as consumer:
        orders.then = lambda message: end.wait()
        await orders.publish("once more")
        await wait_until(lambda: orders.runs["once more"], description="it is worked on")
        for _ in range(3):
            underlay = await orders.channel.get_underlay_channel()
            await underlay.connection.close(ConnectionError("the network flaps"))
            await wait_until(lambda: copies(on_open_channels=True) == 1, description="it has come again")

        def is_forgotten() -> bool:
            gc.collect()
            return copies(on_open_channels=False) == 2

        await wait_until(is_forgotten, description="the copies of the closed channels are forgotten")
        end.set()
        await wait_until(lambda: consumer.counts.duplicate, description="the last copy is acknowledged")
        assert (orders.runs["once more"], consumer.counts.delivered) == (1, 2)


@pytest.mark.parametrize("begun", [True, False], ids=["at work", "before it begins"])
async def test_a_lost_plain_connection_ends_the_consumer(
    open_orders: Open, begun: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_orders() as orders, orders.consumer() as consumer:
        assert not consumer.is_running
        task = asyncio.create_task(consumer.run(orders.handler))
        if begun:
            await orders.publish("7")
            await wait_until(lambda: consumer.counts.first, description="it works")
            assert consumer.is_running
        underlay = await orders.channel.get_underlay_channel()
        await underlay.connection.close()
        with pytest.raises(ConnectionError, match="was closed"):
            await task
        assert not consumer.is_running
    (line,) = [each for each in caplog.messages if "has ended" in each]
    assert re.search(r"takes no more messages: \w*(Error|Closed|State)\w*: ", line)


async def test_a_deleted_queue_ends_the_consumer(open_orders: Open) -> None:
    async with open_orders() as orders, orders.consumer() as consumer:
        task = asyncio.create_task(consumer.run(orders.handler))
        await orders.publish("7")
        await wait_until(lambda: consumer.counts.first, description="it works")
        await orders.channel.queue_delete(orders.queue.name)
        with pytest.raises(ConnectionError, match="it was deleted"):
            await task


# With an inbox


@pytest.mark.parametrize("gated", [True, False], ids=["gate and inbox", "inbox alone"])
async def test_the_work_and_its_row_commit_together(orders: Orders, tmp_path: Path, gated: bool) -> None:
    path = tmp_path / "shop.db"
    make_tables(path)
    orders.dedup = orders.dedup if gated else None

    async def work(transaction: aiosqlite.Connection, message: AbstractIncomingMessage) -> None:
        await transaction.execute("INSERT INTO work VALUES (?)", (message.message_id,))
        if message.message_id == "poison":
            fault(message)

    await orders.publish("1", "1", "2", "poison")
    inbox = Inbox("billing", keep=timedelta(days=7), begin=partial(transaction, path))
    async with orders.consumer(inbox=inbox, attempts=2) as consumer, at_work(consumer, work):
        await wait_until(lambda: consumer.counts.dead_lettered, description="one is a dead letter")
        counts = consumer.counts
        await wait_until(lambda: counts.first + counts.duplicate == 3, description="the others are done")
    assert sorted(work_in(path)) == ["1", "2"]


# Bad input


@pytest.mark.parametrize(
    ("options", "arguments", "words"),
    [
        (
            {"attempts": 9},
            {"x-queue-type": "quorum", "x-delivery-limit": 5},
            "gives a message up after 5 deliveries",
        ),
        ({}, {"x-queue-type": "stream"}, "is a stream"),
        ({"key": "id"}, {}, "key= must be a function"),
        ({"attempts": 0}, {}, "attempts must be"),
        ({"retry_delay": 0}, {}, "retry_delay must be"),
        ({"prefetch": 0}, {}, "prefetch must be"),
        ({"prefetch": 1 << 16}, {}, "prefetch must be at most 65535"),
        ({"dedup": None}, {}, "a gate, an inbox, or both"),
        (
            {"wait": 1800},
            {},
            r"held for 1800 s \(wait\), and the broker closes .* for 1800 s, by default",
        ),
        (
            {"wait": 5},
            {"x-consumer-timeout": 5000},
            "for 5 s: give a shorter wait, or declare the queue",
        ),
        (
            {},
            {"x-consumer-timeout": 90_000_000},
            "the gate keeps its key for 86400 s only: set ttl=",
        ),
        ({"dead_letter": ""}, {}, r"must be the name of an exchange \(without it .*\.dead\), got ''"),
    ],
)
async def test_a_setting_that_cannot_work_is_named(
    rabbitmq: RabbitServer, options: dict[str, Any], arguments: dict[str, Any], words: str
) -> None:
    dedup = Dedup("memory://")
    async with opened(rabbitmq, options.pop("dedup", dedup), **arguments) as orders:
        with pytest.raises(ConfigError, match=words):
            orders.consumer(**options)


async def test_a_place_that_is_not_there_is_named(orders: Orders) -> None:
    with pytest.raises(ConfigError, match=r"there is no queue '.*\.retry\.50ms': give declare=True"):
        await orders.consumer(declare=False).__aenter__()
    with pytest.raises(ConfigError, match="there is no exchange 'nowhere' for dead letters"):
        await orders.consumer(dead_letter="nowhere").__aenter__()


async def test_a_place_of_another_kind_is_named(orders: Orders) -> None:
    await orders.channel.declare_queue(f"{orders.queue.name}.retry.50ms", durable=True)
    with pytest.raises(ConfigError, match="was declared in another way"):
        await orders.consumer().__aenter__()


async def test_a_channel_without_confirms_is_refused(rabbitmq: RabbitServer) -> None:
    async with await aio_pika.connect(rabbitmq.url) as connection:
        channel = await connection.channel(publisher_confirms=False)
        queue = await channel.declare_queue(rabbitmq.name("orders"))
        consumer = Consumer(queue, Dedup("memory://"), key=message_id, declare=True)
        with pytest.raises(ConfigError, match="must confirm what is published"):
            await consumer.__aenter__()


async def test_a_handler_that_is_not_async_is_refused(open_orders: Open) -> None:
    async with open_orders() as orders, orders.consumer() as consumer:
        with pytest.raises(ConfigError, match="must be async def"):
            await consumer.run(fault)  # type: ignore[arg-type]


async def test_a_consumer_must_be_open(orders: Orders) -> None:
    with pytest.raises(UsageError, match="async with Consumer"):
        await orders.consumer().run(orders.handler)


async def test_a_queue_of_another_library_is_refused() -> None:
    with pytest.raises(ConfigError, match="queue must be an aio_pika queue, got str"):
        Consumer("orders", Dedup("memory://"), key=message_id)  # type: ignore[arg-type]
