"""Consumers of NATS JetStream, on a real server and a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import nats as nats_client
import pytest
from nats.errors import NoRespondersError
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StreamConfig
from nats.js.errors import NotFoundError

from fastdedup import ConfigError, Dedup
from fastdedup.events import ConsumerPaused, ConsumerResumed, Event
from fastdedup.integrations.nats import MESSAGE_ID, Consumer, body, header, message_id, sequence
from fastdedup.messages.headers import ATTEMPTS, ERROR, KEY, LEFT_OUT

from ..brokers import NatsServer
from ..waiting import cancel, wait_until
from .consumers import Handler, Open, Work, at_work, fault, long_fault, opened, opener

pytestmark = pytest.mark.usefixtures("quick")


class Shop:
    """A stream with a consumer, and another stream for dead letters."""

    def __init__(self, server: NatsServer, connection: Any) -> None:
        self.subject, self.dead = server.name("orders"), server.name("dead")
        self.connection = connection
        self.js = connection.jetstream()

    async def open(self, **options: Any) -> Shop:
        await self.js.add_stream(StreamConfig(name=self.subject, subjects=[self.subject], **options))
        await self.js.add_stream(name=self.dead, subjects=[self.dead])
        return self

    async def publish(self, *orders: str, **headers: str) -> None:
        for order in orders:
            await self.js.publish(self.subject, order.encode(), headers={"id": order, **headers})

    async def subscription(self, durable: str = "billing", **config: Any) -> Any:
        return await self.js.pull_subscribe(self.subject, durable=durable, config=ConsumerConfig(**config))

    @asynccontextmanager
    async def consumer(
        self, dedup: Dedup | None, handler: Handler, subscription: Any = None, **options: Any
    ) -> AsyncIterator[Consumer]:
        subscription = subscription or await self.subscription()
        options = {"key": header("id"), "retry_delay": 0.0, **options}
        async with Consumer(subscription, dedup, **options) as consumer, at_work(consumer, handler):
            yield consumer

    async def buried(
        self, dedup: Dedup, handler: Handler, subscription: Any = None, **options: Any
    ) -> list[Any]:
        """Run a consumer until it has laid a dead letter down; return all dead letters."""
        options = {"attempts": 1, "dead_letter": self.dead, **options}
        async with self.consumer(dedup, handler, subscription, **options) as consumer:
            await wait_until(lambda: consumer.counts.dead_lettered, description="a dead letter")
        return await self.dead_letters()

    async def spend_deliveries(self) -> None:
        """Take the one message twice, and give it back."""
        subscription = await self.subscription()
        for _ in range(2):
            (message,) = await subscription.fetch(1)
            await message.nak()

    async def unsettled(self, durable: str = "billing") -> int:
        info = await self.js.consumer_info(self.subject, durable)
        return int(info.num_ack_pending + info.num_pending)

    async def dead_letters(self) -> list[Any]:
        state = (await self.js.stream_info(self.dead)).state
        return [
            await self.js.get_msg(self.dead, number)
            for number in range(state.first_seq, state.last_seq + 1)
            if state.messages
        ]


@asynccontextmanager
async def shop_of(server: NatsServer, **options: Any) -> AsyncIterator[Shop]:
    connection = await nats_client.connect(server.url)
    try:
        yield await Shop(server, connection).open(**options)
    finally:
        await connection.close()


@pytest.fixture
def open_shop(nats: NatsServer, redis_url: str) -> Open:
    return opener(shop_of, nats, redis_url)


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("value", ["paid", "100", "404", "503"])
async def test_a_header_status_is_a_messages_own(open_shop: Open, value: str, limit: int) -> None:
    """nats-py takes such a message for a status of the server: it ended the consumer, or was never handled."""
    async with open_shop() as (shop, dedup):
        await shop.publish("a", Status=value)
        await shop.publish("b")
        work, options = Work(), {"limit": limit, "key": header("Status")}
        async with shop.consumer(dedup, work, **options) as consumer:
            await wait_until(lambda: work.done == ["a"], description="it is done")
            await wait_until(lambda: consumer.counts.delivered == 2, description="the other one comes, too")


async def test_messages_of_a_stream_that_is_made_again_are_new(open_shop: Open) -> None:
    """Its sequence begins at 1 again: its messages would be duplicates, its dead letters dropped by the server."""
    async with open_shop() as (shop, dedup):
        for order in ("a", "b"):
            await shop.publish(order)
            dead = await shop.buried(dedup, Work(fault), key=sequence)
            await shop.js.delete_stream(shop.subject)
            await shop.js.add_stream(name=shop.subject, subjects=[shop.subject])
        assert [each.data for each in dead] == [b"a", b"b"]


async def test_a_dead_letter_keeps_the_spaces_in_its_headers(open_shop: Open) -> None:
    """A header may be the message's key: with another one the work would not be that of its first delivery."""

    def two_lines(order: str) -> None:
        raise ValueError("no such\r\ncustomer")

    async with open_shop() as (shop, dedup):
        await shop.publish("a", order="x  y")
        (dead,) = await shop.buried(dedup, Work(two_lines), key=header("order"))
        assert (dead.headers["order"], dead.headers[KEY]) == ("x  y", "x  y")
        assert dead.headers[ERROR] == "ValueError: no such customer"


async def test_two_consumers_of_a_message_both_leave_a_dead_letter(open_shop: Open) -> None:
    """The server drops what has an id that it has seen."""
    async with open_shop() as (shop, dedup):
        await shop.publish("a", **{MESSAGE_ID: "a"})
        for durable in ("billing", "shipping"):
            dead = await shop.buried(dedup, Work(fault), await shop.subscription(durable))
        assert len(dead) == 2


@pytest.mark.parametrize("left", [600, 100, 0])
async def test_a_message_that_fills_the_payload_becomes_a_dead_letter(open_shop: Open, left: int) -> None:
    """The server closes the connection of a larger one, and nobody was told: it was published again and again."""
    async with open_shop() as (shop, dedup):
        headers = {"id": "a", "trace": "t" * 2000}
        lines = "NATS/1.0\r\n\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        data = b"d" * (shop.connection.max_payload - len(lines) - left)
        await shop.js.publish(shop.subject, data, headers=headers)
        (dead,) = await shop.buried(dedup, Work(long_fault))
        assert (dead.data, dead.headers["id"], dead.headers[ATTEMPTS]) == (data, "a", "1")
        assert ("trace" in dead.headers) == (LEFT_OUT not in dead.headers) == (left > 0)
        assert (ERROR in dead.headers) == (left == 600)
        assert shop.connection.stats["reconnects"] == 0


@pytest.mark.parametrize(("trace", "limit"), [(300, 300), (65_480, -1)])
async def test_a_dead_letter_fits_into_the_messages_of_its_stream(
    open_shop: Open, trace: int, limit: int
) -> None:
    """Any stream takes 64 kB of headers."""
    async with open_shop() as (shop, dedup):
        await shop.js.update_stream(name=shop.dead, subjects=[shop.dead], max_msg_size=limit)
        await shop.publish("a", trace="t" * trace)
        (dead,) = await shop.buried(dedup, Work(long_fault))
        assert (dead.data, dead.headers["id"], dead.headers[LEFT_OUT]) == (b"a", "a", "trace")


@pytest.mark.parametrize("theirs", [{"id": "order-" + "7" * 90}, {MESSAGE_ID: "order-" + "7" * 90}])
async def test_a_dead_letter_without_room_keeps_the_messages_key(
    open_shop: Open, theirs: dict[str, str]
) -> None:
    """The smaller headers go before it, though it is the largest of the message's own."""
    async with open_shop() as (shop, dedup):
        headers = {**theirs, **{f"trace{number}": "t" * 20 for number in range(9)}}
        lines = "NATS/1.0\r\n\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        await shop.js.publish(
            shop.subject, b"d" * (shop.connection.max_payload - len(lines)), headers=headers
        )
        key = message_id if MESSAGE_ID in theirs else header("id")
        (dead,) = await shop.buried(dedup, Work(fault), key=key)
        (kept,) = theirs.values()
        assert dead.headers["id" if "id" in theirs else KEY] == kept
        assert "trace" in dead.headers[LEFT_OUT]


async def test_a_message_without_room_for_any_header_is_told_and_kept(
    open_shop: Open, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_shop() as (shop, dedup):
        await shop.js.publish(shop.subject, b"d" * shop.connection.max_payload)
        await shop.publish("b")
        work = Work(lambda order: None if order == "b" else fault(order))
        async with shop.consumer(dedup, work, key=sequence, attempts=1, dead_letter=shop.dead) as consumer:
            await wait_until(lambda: "cannot lay a dead letter down" in caplog.text, description="it is told")
            await wait_until(lambda: consumer.counts.first, description="the other one is done")
        assert "cannot lay a dead letter down: MaxPayloadError('1048" in caplog.text
        assert shop.connection.stats["reconnects"] == 0
        assert await shop.unsettled() == 1


async def test_a_slow_handler_keeps_its_message(open_shop: Open) -> None:
    async with open_shop() as (shop, dedup):
        end, work = asyncio.Event(), Work(lambda order: end.wait())
        await shop.publish("a")
        signs = await shop.connection.subscribe(f"$JS.ACK.{shop.subject}.>")
        subscription = await shop.subscription(ack_wait=0.3)
        async with shop.consumer(dedup, work, subscription, grace=1.0) as consumer:
            await wait_until(lambda: work.begun, description="it is begun")
            for _ in range(7):  # one each third of ack_wait
                assert (await signs.next_msg(timeout=20.0)).data == b"+WPI"
            assert consumer.counts.delivered == 1
            end.set()
            await wait_until(lambda: consumer.counts.first == 1, description="it is done")


async def test_a_crashed_consumers_message_is_delivered_again(open_shop: Open) -> None:
    async with open_shop() as (shop, dedup):
        forever, work = Work(lambda order: asyncio.Event().wait()), Work()
        await shop.publish("a")
        subscription = await shop.subscription(ack_wait=0.2)
        async with Consumer(subscription, dedup, key=sequence) as crashing:
            running = asyncio.create_task(crashing.run(forever))
            await wait_until(lambda: forever.begun, description="it is begun")
            await cancel(running)
        async with shop.consumer(dedup, work, key=sequence):
            await wait_until(lambda: work.done == ["a"], description="it is done")


async def test_a_restart_of_the_broker_is_survived(redis_url: str) -> None:
    with NatsServer() as server:
        connection = await nats_client.connect(
            server.url, reconnect_time_wait=0.05, max_reconnect_attempts=-1, error_cb=ignored
        )
        async with opened(redis_url) as dedup:
            shop, work = await Shop(server, connection).open(), Work()
            async with shop.consumer(dedup, work):
                await shop.publish("a")
                await wait_until(lambda: work.done == ["a"], description="it is done")
                server.restart()
                await wait_until(lambda: is_published(shop, "b"), description="it is connected again")
                await wait_until(lambda: work.done == ["a", "b"], description="the next one is done")
        await connection.close()


async def test_a_consumer_without_jetstream_is_paused(
    nats: NatsServer, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line as it begins, one as it ends; the events are what Prometheus' figure is made of."""
    events: list[Event] = []
    away = True
    async with (
        shop_of(nats) as shop,
        Dedup(redis_url, namespace="m", timeout=5.0, on_event=events.append) as dedup,
    ):
        subscription = await shop.subscription()
        fetch, info, refused = subscription.fetch, subscription.consumer_info, 0

        async def answered(call: Callable[..., Any], *given: Any, **options: Any) -> Any:
            nonlocal refused
            if away:
                refused += 1
                raise NoRespondersError
            return await call(*given, **options)

        work = Work()
        async with shop.consumer(dedup, work, subscription) as consumer:
            monkeypatch.setattr(subscription, "fetch", partial(answered, fetch))
            monkeypatch.setattr(subscription, "consumer_info", partial(answered, info))
            await shop.publish("a")
            await wait_until(lambda: refused >= 3, description="it was refused more than once")
            assert consumer.is_paused
            away = False
            await wait_until(lambda: "a" in work.done, description="it is done")
            assert not consumer.is_paused
    assert [type(event) for event in events] == [ConsumerPaused, ConsumerResumed]


async def is_published(shop: Shop, order: str) -> bool:
    with suppress(nats_client.errors.Error):
        await shop.js.publish(shop.subject, order.encode(), headers={"id": order}, timeout=0.2)
        return True
    return False


async def ignored(error: Exception) -> None:
    """Say nothing of a lost connection."""


async def test_a_consumer_that_is_deleted_ends_ours(open_shop: Open) -> None:
    async with (
        open_shop() as (shop, dedup),
        Consumer(await shop.subscription(), dedup, key=sequence) as consumer,
    ):
        await shop.js.delete_consumer(shop.subject, "billing")
        with pytest.raises(NotFoundError):
            await consumer.run(Work())


# Keys and settings


def message(**headers: str) -> Any:
    reply = "$JS.ACK.orders.billing.1.7.3.1700000000000000000.0"
    return nats_client.aio.msg.Msg(None, "orders", reply, b"data", headers or None)  # type: ignore[arg-type]


def test_the_key_is_an_id_a_header_a_sequence_or_a_digest() -> None:
    assert message_id(message(**{MESSAGE_ID: "m-7"})) == "m-7"
    assert header("order")(message(order="o-7")) == "o-7"
    assert message_id(message()) is header("order")(message()) is None
    assert sequence(message()) == "orders/7@1700000000.0"
    assert body(message()) == body(message(order="other"))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"ack_policy": AckPolicy.NONE}, "message by message"),
        ({"ack_policy": AckPolicy.ALL}, "message by message"),
        ({"max_deliver": 5}, "after 5 deliveries"),
        ({"ack_wait": 90_000.0}, r"after 90000 s \(ack_wait\), and the gate keeps its key for 86400 s only"),
    ],
)
async def test_a_wrong_consumer_is_named(open_shop: Open, config: dict[str, Any], words: str) -> None:
    async with open_shop() as (shop, dedup):
        consumer = Consumer(await shop.subscription(**config), dedup, key=sequence)
        with pytest.raises(ConfigError, match=words):
            await consumer.__aenter__()


async def test_a_wrong_place_for_dead_letters_is_named(open_shop: Open) -> None:
    async with open_shop(retention=RetentionPolicy.WORK_QUEUE) as (shop, dedup):
        subscription = await shop.subscription()
        for place, words in (
            (None, "deletes what is settled"),
            ("no-such", "no stream has the subject 'no-such'"),
            (shop.subject, "a subject of another stream"),
        ):
            consumer = Consumer(subscription, dedup, key=sequence, dead_letter=place)
            with pytest.raises(ConfigError, match=words):
                await consumer.__aenter__()


async def test_a_place_for_dead_letters_without_a_name_is_refused(open_shop: Open) -> None:
    async with open_shop() as (shop, dedup):
        with pytest.raises(ConfigError, match="dead_letter must be a subject, got ''"):
            Consumer(await shop.subscription(), dedup, key=sequence, dead_letter="")


async def test_a_push_subscription_is_refused(open_shop: Open) -> None:
    async with open_shop() as (shop, dedup):
        subscription = await shop.js.subscribe(shop.subject)
        with pytest.raises(ConfigError, match="subscription must be of js"):
            Consumer(subscription, dedup, key=sequence)


async def test_an_ephemeral_consumer_needs_a_name(open_shop: Open) -> None:
    """The server's name for it is new each time, so the next one would do all messages of the stream again."""
    async with open_shop() as (shop, dedup):
        await shop.publish("a")
        work = Work()
        for _ in range(2):
            unnamed = Consumer(await shop.js.pull_subscribe(shop.subject), dedup, key=header("id"))
            with pytest.raises(ConfigError, match="is not durable, so its name is another one each time"):
                await unnamed.__aenter__()
            subscription = await shop.js.pull_subscribe(shop.subject)
            async with shop.consumer(dedup, work, subscription, name="billing") as consumer:
                await wait_until(
                    lambda: consumer.counts.first + consumer.counts.duplicate, description="it is settled"
                )
        assert work.done == ["a"]
