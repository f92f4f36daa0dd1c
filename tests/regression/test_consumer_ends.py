"""How consumers start and end, and what becomes of the messages in their hands."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import aio_pika
import pytest
from aio_pika import IncomingMessage
from aio_pika.abc import AbstractIncomingMessage
from aio_pika.exceptions import ChannelNotFoundEntity
from aiormq import spec
from redis.asyncio import Redis

from fastdedup import Dedup, UsageError
from fastdedup.integrations.rabbitmq import Consumer as RabbitConsumer
from fastdedup.integrations.rabbitmq import message_id, places
from fastdedup.integrations.rabbitmq.dead_letters import replay
from fastdedup.integrations.rabbitmq.places import UnroutableError, publish_copy
from fastdedup.integrations.redis_streams import Consumer, entry_id
from fastdedup.messages.decisions import Decision
from fastdedup.messages.headers import ATTEMPTS, ERROR, KEY, LEFT_OUT, QUEUE
from fastdedup.messages.keys import gate_key

from ..brokers import RabbitServer
from ..messages.dead_letter_desk import desk_at
from ..messages.test_rabbitmq import Orders, shop
from ..messages.test_rabbitmq_hostile import ODD
from ..waiting import cancel, wait_until

# How consumers start and end: with a plain error, with their cancellation, and without messages in hand.


# A RabbitMQ consumer that is stopped or cancelled returns what it did not do, though its channel stays
# open. The messages stayed unacknowledged: until the channel closed the broker kept them from all other
# consumers. A cancelled consumer was never cancelled at the broker, which sent it up to `prefetch` further
# messages.


async def all_come_to_another(orders: Orders, *ids: str) -> None:
    async def ready() -> bool:
        return await orders.left() == len(ids)

    await wait_until(ready, description="they are in the queue")
    orders.then = lambda message: None
    async with orders.consuming() as other:
        await wait_until(lambda: other.counts.first == len(ids), description="another consumer does them")


async def test_a_stopped_consumer_returns_what_it_did_not_do(rabbitmq: RabbitServer, redis_url: str) -> None:
    async with shop(rabbitmq, redis_url) as orders:
        orders.then = lambda message: asyncio.Event().wait()
        async with orders.consuming(grace=0.5) as consumer:  # RabbitMQ must hear of it
            await orders.publish("1", "2")
            await wait_until(lambda: len(orders.runs) == 2, description="both are begun")
            consumer.stop()
            consumer.stop()
            await wait_until(lambda: not consumer.is_running, description="it has ended")
            with pytest.raises(UsageError, match="has ended, and cannot begin again"):
                await consumer.run(orders.handler)  # it returned at once, and took no message
        await all_come_to_another(orders, "1", "2")


async def test_a_cancelled_consumer_returns_what_it_did_not_do(
    rabbitmq: RabbitServer, redis_url: str
) -> None:
    async with shop(rabbitmq, redis_url) as orders, orders.consumer() as consumer:
        orders.then = lambda message: asyncio.Event().wait()
        task = asyncio.create_task(consumer.run(orders.handler))
        await orders.publish("1")
        await wait_until(lambda: orders.runs["1"], description="it is begun")
        await cancel(task)
        await orders.publish("2")
        await all_come_to_another(orders, "1", "2")


async def test_a_copy_counts_the_attempts_before_a_refused_one(
    rabbitmq: RabbitServer, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the message met a twin. A store that forgot its key would begin its attempts anew."""
    copies: list[int] = []

    async def is_taken(_: Any, message: AbstractIncomingMessage, decision: Decision, consumer: str) -> bool:
        copies.append(decision.attempts)
        assert orders.dedup is not None
        wait = 5.0 if len(copies) == 1 else 0.0
        return not (await orders.dedup.claim(gate_key(consumer, "big"), wait=wait)).acquired

    monkeypatch.setattr(places.Places, "retry", is_taken)
    async with shop(rabbitmq, redis_url) as orders:
        orders.then = fault
        await orders.publish("big")
        async with orders.consuming(wait=0.0, retry_delay=0.001):
            await wait_until(lambda: len(copies) == 2, description="the copy is taken")
    assert copies == [1, 1]


# A consumer whose task was cancelled went on for ever where its broker's client had lost the cancellation.
# `asyncio.wait_for` of Python 3.11 drops a cancellation that comes as its awaitable has just ended.
# redis-py sends each command by it, nats-py waits for each reply by it. So the loop that reads, in the
# cancelled task itself, read on.


STREAM, GROUP = "forever-orders", "billing"


class LosingRedis(Redis):
    """Has a task cancelled once in the middle of a command, and loses that, as `asyncio.wait_for` does."""

    losing = ""

    def lose(self, command: str, task: asyncio.Task[None]) -> None:
        self.losing = command
        self.task = task

    async def execute_command(self, *command: Any, **options: Any) -> Any:
        found = await super().execute_command(*command, **options)
        if self.losing == command[0]:
            self.losing = ""
            self.task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        return found


@pytest.mark.parametrize("command", ["XINFO GROUPS", "XREADGROUP"])
async def test_a_cancelled_consumer_ends_though_its_client_lost_that(redis_url: str, command: str) -> None:
    async def on_order(entry: Any) -> None: ...

    async def consume() -> None:
        async with Consumer(redis, dedup, stream=STREAM, group=GROUP, key=entry_id) as consumer:
            made.append(consumer)
            await consumer.run(on_order)

    made: list[Consumer] = []
    async with LosingRedis.from_url(redis_url) as redis, Dedup(redis_url, namespace="r") as dedup:
        await redis.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        await redis.xadd(STREAM, {"id": "order-7"})  # so that the first read does not wait
        running = asyncio.create_task(consume())
        redis.lose(command, running)
        _, pending = await asyncio.wait([running], timeout=5.0)
        for each in made:
            each.stop()
        await asyncio.wait([running])
        await redis.delete(STREAM)
    assert not pending
    assert running.cancelled()


# A consumer whose queue is gone raises the broker's error; it was wrapped in an ExceptionGroup.


async def on_order(message: AbstractIncomingMessage) -> None:
    raise AssertionError(message)


async def test_a_queue_that_is_gone_is_a_plain_error(rabbitmq: RabbitServer, redis_url: str) -> None:
    async with (
        Dedup(redis_url, namespace="plain") as dedup,
        await aio_pika.connect(rabbitmq.url) as connection,
        connection.channel() as channel,
    ):
        queue = await channel.declare_queue(rabbitmq.name("orders"))
        async with RabbitConsumer(queue, dedup, key=message_id, declare=True) as consumer:
            async with connection.channel() as other:
                await other.queue_delete(queue.name)
            with pytest.raises(ChannelNotFoundEntity):
                await consumer.run(on_order)


# aiormq tells a returned message by its id: of twins under way the first counted as confirmed, and was
# lost.


async def test_no_twin_counts_as_confirmed_where_no_queue_takes_it(rabbitmq: RabbitServer) -> None:
    async with await aio_pika.connect(rabbitmq.url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(rabbitmq.name(), auto_delete=True)
        for _ in range(3):
            await channel.default_exchange.publish(aio_pika.Message(b"", message_id="order-7"), queue.name)
        underlay = await channel.get_underlay_channel()
        twins = [IncomingMessage(await underlay.basic_get(queue.name)) for _ in range(3)]
        answers = await asyncio.gather(
            *(publish_copy(twin, "", "gone", {}) for twin in twins), return_exceptions=True
        )
        assert [type(answer) for answer in answers] == [UnroutableError] * 3


# RabbitMQ: a message whose headers nearly fill a frame fails. The headers of its dead letter were too large
# for a frame. The broker closed the connection, and delivered it again with all others in hand, for ever:
# it never became a dead letter, and no ack of the others arrived.


FRAME_MAX = 131_072
"""RabbitMQ's own."""
_AROUND = 20
"""Bytes of a content header's frame around its properties."""


def filling(left: int) -> dict[str, Any]:
    """Return headers that leave so many bytes of a frame; negative where only RabbitMQ takes it."""
    headers = {"big": "", "tenant": "a"}
    bare = aio_pika.Message(b"{}", message_id="big", delivery_mode=2, headers=headers).properties
    return {**headers, "big": "b" * (FRAME_MAX - _AROUND - len(bare.marshal()) - left)}


def fault(message: AbstractIncomingMessage) -> None:
    if message.message_id == "big":
        raise ValueError("no such customer: " + "e" * 600)


async def fail(orders: Orders, left: int, **options: Any) -> AbstractIncomingMessage:
    """Consume a message that fails three times, and others beside it; return its dead letter."""
    orders.then = fault
    others = [str(number) for number in range(10)]
    await orders.publish("big", headers=filling(left))
    await orders.publish(*others)
    async with orders.consuming(attempts=3, **options) as consumer:
        await wait_until(lambda: consumer.counts.dead_lettered, description="it is a dead letter")
        await wait_until(lambda: consumer.counts.first == len(others), description="the others are done")
    assert (consumer.counts.delivered, consumer.counts.retried) == (3 + len(others), 2)
    assert orders.runs == {"big": 3, **dict.fromkeys(others, 1)}
    assert all(each.headers["tenant"] == "a" for each in orders.seen if each.message_id == "big")
    assert await orders.left() == 0
    (dead,) = await orders.dead()
    assert (dead.body, dead.message_id, dead.headers[ATTEMPTS]) == (b"{}", "big", 3)
    return dead


@pytest.mark.parametrize("kind", ["classic", "quorum"])
async def test_a_message_that_nearly_fills_a_frame_becomes_a_dead_letter(
    rabbitmq: RabbitServer, redis_url: str, kind: str
) -> None:
    async with shop(rabbitmq, redis_url, kind=kind, robust=True) as orders:
        dead = await fail(orders, 600)
    assert filling(600).items() <= dead.headers.items()
    assert (len(dead.headers[ERROR]), dead.headers[KEY], LEFT_OUT in dead.headers) == (100, "big", False)


async def test_our_own_headers_are_left_out_before_the_messages(
    rabbitmq: RabbitServer, redis_url: str
) -> None:
    async with shop(rabbitmq, redis_url, robust=True) as orders:
        dead = await fail(orders, 30)
    assert dead.headers == {**filling(30), ATTEMPTS: 3}


@pytest.mark.parametrize("left", [0, -8])
async def test_the_largest_headers_of_a_full_frame_are_left_out(
    rabbitmq: RabbitServer, redis_url: str, left: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It is held for its next attempt: a copy would lack what the handler needs."""
    caplog.set_level(logging.WARNING, "fastdedup.messages")
    async with shop(rabbitmq, redis_url, robust=True) as orders:
        dead = await fail(orders, left)
        assert {len(each.headers["big"]) for each in orders.seen if each.message_id == "big"} == {
            len(filling(left)["big"])
        }
    assert dead.headers == {"tenant": "a", ATTEMPTS: 3, LEFT_OUT: "big"}
    assert "do not fit into a frame: it is held in" in caplog.text
    assert "left out: 'big'" in caplog.text


async def test_the_header_that_holds_the_key_goes_after_all_smaller_ones(
    rabbitmq: RabbitServer, redis_url: str
) -> None:
    """So little room is left beyond it that the dead letter can say only how many others are missing."""

    def key_of(message: AbstractIncomingMessage) -> str:
        return str(message.headers["id"]).partition(":")[0]

    async with shop(rabbitmq, redis_url, robust=True) as orders:
        orders.then = fault
        message = aio_pika.Message(b"{}", message_id="big", delivery_mode=2, headers={"id": "", ATTEMPTS: 1})
        room = FRAME_MAX - _AROUND - len(message.properties.marshal())
        for_the_mark = 36  # bytes: of "2 headers" it takes 35, of the two names 39
        theirs = {
            "id": "big:" + "b" * (room - len("big:") - for_the_mark),
            "tenant": "a" * 12,
            "trace": "t" * 12,
        }
        await orders.publish("big", headers=theirs)
        async with orders.consuming(attempts=1, key=key_of) as consumer:
            await wait_until(lambda: consumer.counts.dead_lettered, description="it is a dead letter")
        (dead,) = await orders.dead()
    assert dead.headers == {"id": theirs["id"], ATTEMPTS: 1, LEFT_OUT: "2 headers"}


async def test_a_message_held_for_its_next_attempt_goes_back_by_stop(
    rabbitmq: RabbitServer, redis_url: str
) -> None:
    async with shop(rabbitmq, redis_url) as orders:
        orders.then = fault
        await orders.publish("big", headers=filling(0))
        async with orders.consuming(retry_delay=100.0) as consumer:
            await wait_until(lambda: consumer.counts.retried, description="it has failed")

        async def is_back() -> bool:
            return await orders.left() == 1

        await wait_until(is_back, description="it is in the queue")
        message = await orders.queue.get()
        assert (message.message_id, message.headers) == ("big", filling(0))
        assert orders.runs["big"] == 1


@pytest.mark.parametrize(("attempts", "place"), [(1, "dead"), (5, "retry.100000ms")])
async def test_a_copy_that_is_refused_holds_no_stop_up(
    rabbitmq: RabbitServer, redis_url: str, caplog: pytest.LogCaptureFixture, attempts: int, place: str
) -> None:
    """Its place is full. `stop` waited for the next try, for all of `grace`, though the broker had the message."""
    options = {"declare": False, "attempts": attempts, "retry_delay": 100.0, "grace": 90.0}
    async with shop(rabbitmq, redis_url) as orders:
        for each in ("dead", "retry.100000ms"):
            full = {"x-max-length": 1, "x-overflow": "reject-publish"}
            await orders.channel.declare_queue(f"{orders.queue.name}.{each}", durable=True, arguments=full)
        await orders.publish("other", routing_key=f"{orders.queue.name}.{place}")
        orders.then = fault
        await orders.publish("big")
        async with asyncio.timeout(30.0), orders.consuming(**options):
            await wait_until(lambda: "refuses a message" in caplog.text, description="it was refused")

        async def is_back() -> bool:
            return await orders.left() == 1

        await wait_until(is_back, description="it is in the queue")


async def test_a_held_message_whose_channel_is_lost_is_delivered_again(
    rabbitmq: RabbitServer, redis_url: str
) -> None:
    async with shop(rabbitmq, redis_url, robust=True) as orders:
        orders.then = fault
        await orders.publish("big", headers=filling(0))
        async with orders.consuming(retry_delay=0.5, attempts=2) as consumer:
            await wait_until(lambda: consumer.counts.retried, description="it has failed")
            underlay = await orders.channel.get_underlay_channel()
            await underlay.connection.close(ConnectionError("cut"))
            await wait_until(lambda: consumer.counts.dead_lettered, description="it is a dead letter")
        assert orders.runs["big"] == 2
        assert len(await orders.dead()) == 1


async def test_replay_leaves_what_does_not_fit(rabbitmq: RabbitServer) -> None:
    """What the broker itself has laid down has no header of ours that could make room for the mark."""
    async with desk_at(rabbitmq) as desk:
        dead = await desk.channel.declare_queue(desk.dead, durable=True)
        await desk.publish("big", to=dead.name, headers=filling(0))
        await desk.publish("a", to=dead.name)
        report = await replay(desk.channel, dead.name, to=desk.queue)
        assert (report.seen, report.replayed, report.keys) == (2, 1, {"a"})
        assert list(report.kept) == [
            f"the headers of a message for the queue {desk.queue!r} do not fit into a frame"
        ]
        assert [message.message_id for message in await desk.taken(dead.name, 1)] == ["big"]


async def test_replay_sends_a_message_without_all_its_headers_by_its_key_alone(
    rabbitmq: RabbitServer,
) -> None:
    async with desk_at(rabbitmq) as desk:
        dead = await desk.channel.declare_queue(desk.dead, durable=True)
        await desk.publish(
            "big", to=dead.name, headers={LEFT_OUT: "big", "x-fastdedup-reason": "failed", QUEUE: desk.queue}
        )
        everything = await replay(desk.channel, dead.name)
        assert (everything.replayed, sum(everything.kept.values())) == (0, 1)
        named = await replay(desk.channel, dead.name, keys={"big"})
        assert (named.replayed, named.kept) == (1, {})
        (message,) = await desk.taken(desk.queue, 1)
        assert message.headers[LEFT_OUT] == "big"


@pytest.mark.parametrize(
    "headers",
    [
        ODD,
        {"": ""},
        {"\U0001f600" * 30: "\U0001f600" * 1000},
        {str(number): 1 for number in range(1000)},
        {str(number): float("inf") for number in range(1000)},
        {
            "a": [-129, 40_000, 3_000_000_000, -3_000_000_000, True, False, None, Decimal("1"), {}, [], ""]
            * 50
        },
        {"a": {"b": [{"c": bytearray(b"\x00" * 100)}] * 20}},
    ],
)
def test_headers_are_never_larger_than_they_seem(headers: dict[str, Any]) -> None:
    """Each size is asked for a frame that is a byte too small: a quick look must never call that enough."""
    texts = dict.fromkeys(
        (
            "content_type",
            "content_encoding",
            "correlation_id",
            "reply_to",
            "expiration",
            "message_type",
            "app_id",
        ),
        "t" * 255,
    )
    for properties in (
        spec.Basic.Properties(headers=headers, message_id="i" * 255, priority=9, delivery_mode=2, **texts),
        spec.Basic.Properties(headers=headers, message_id="i"),
    ):
        size = _AROUND + len(properties.marshal())
        assert not places.fits_into_frame(properties, channel_of(size - 1))
        assert places.fits_into_frame(properties, channel_of(size))
        assert places.fits_into_frame(properties, channel_of(0))


def test_the_id_that_aiormq_makes_up_counts() -> None:
    properties = spec.Basic.Properties(headers={"big": "b" * 5000})
    size = _AROUND + len(properties.marshal()) + 33
    assert not places.fits_into_frame(properties, channel_of(size - 1))
    assert places.fits_into_frame(properties, channel_of(size))


def channel_of(frame_max: int) -> Any:
    return SimpleNamespace(connection=SimpleNamespace(connection_tune=SimpleNamespace(frame_max=frame_max)))
