"""FastStream's middleware by its rules: in memory, with a real Redis behind the gate."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from inspect import isawaitable
from pathlib import Path
from typing import Any

import pytest
from faststream import AckPolicy, Context, FastStream, Response
from faststream.confluent import KafkaBroker as ConfluentBroker
from faststream.exceptions import AckMessage, RejectMessage, StopConsume
from faststream.kafka import KafkaBroker, TestKafkaBroker
from faststream.nats import JStream, NatsBroker, PullSub
from faststream.rabbit import QueueType, RabbitBroker, RabbitQueue, RabbitRouter, TestRabbitBroker
from faststream.redis import RedisBroker, StreamSub
from nats.js.api import ConsumerConfig
from pydantic import BaseModel, Field

from fastdedup import ConfigError, Dedup, Resolution, UsageError
from fastdedup.integrations.faststream import (
    DISCARD,
    DeadLetterError,
    DedupMiddleware,
    Transaction,
    body,
    message_id,
    offset,
)
from fastdedup.integrations.faststream.brokers.redis import RedisWay
from fastdedup.sql import Inbox, RetryTransaction

from ..fixtures import async_fixture
from ..inbox_file import make_tables, transaction, work_in
from .consumers import Answers

WEEK = timedelta(days=7)


class Shop:
    """A broker in memory: a guarded queue "orders", and what lies in "orders.dead"."""

    def __init__(self, dedup: Dedup | None, **options: Any) -> None:
        self.guard = DedupMiddleware(
            dedup,
            **{
                "key": message_id,
                "wait": 0.0,
                "retry_delay": 0.01,
                "dead_letter": "orders.dead",
                **options,
            },
        )
        self.router = RabbitRouter(middlewares=[self.guard])
        self.broker = RabbitBroker()
        self.dead: list[tuple[dict[str, Any], Any]] = []
        self.replies: list[Any] = []
        self.runs: list[Any] = []
        self.then: Callable[[], Any] = lambda: None

        @self.broker.subscriber("orders.dead")
        async def bury(order: Any, headers: dict[str, Any] = Context("message.headers")) -> None:  # noqa: B008
            self.dead.append((headers, order))

        @self.broker.subscriber("invoices")
        async def invoice(paid: Any) -> None:
            self.replies.append(paid)

    def handle(self, function: Callable[..., Any] | None = None, *, publish: bool = False) -> None:
        async def on_order(order: Any) -> Any:
            self.runs.append(order)
            return self.then()

        handler: Any = function or on_order
        if publish:
            handler = self.router.publisher("invoices")(handler)
        self.router.subscriber("orders")(handler)
        self.broker.include_router(self.router)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with TestRabbitBroker(self.broker):
            yield

    async def publish(self, order: Any = 7, **options: Any) -> None:
        await self.broker.publish(order, "orders", **{"message_id": "order-7", **options})


@asynccontextmanager
async def opened(redis_url: str, **options: Any) -> AsyncIterator[Shop]:
    async with Dedup(redis_url, namespace="f", timeout=5.0) as dedup:
        yield Shop(dedup, **options)


@asynccontextmanager
async def at_work(
    redis_url: str, *, publish: bool = False, then: Callable[[], Any] = lambda: None, **options: Any
) -> AsyncIterator[Shop]:
    """Open a shop whose handler notes each order; `then` is what it does then, and returns."""
    async with opened(redis_url, **options) as shop:
        shop.then = then
        shop.handle(publish=publish)
        async with shop.open():
            yield shop


def fault() -> None:
    raise ValueError("no such customer")


shop = async_fixture(lambda redis_url: opened(redis_url))


# What happens to a message


async def test_abandoned_work_is_resolved_before_the_handler_runs_again(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each attempt that fails has one line, without the error's text and its traceback."""
    look_up = Answers(Resolution.not_done(), Resolution.done(None), Resolution.unknown("ask the bank"))
    async with at_work(redis_url, resolve=look_up.later, then=fault) as shop:
        await shop.publish()
        assert (len(shop.runs), shop.guard.counts["orders"].first) == (2, 1)
        await shop.publish(8, message_id="order-8")
        assert shop.runs == [7, 7, 8]
        assert "ask the bank" in shop.dead[0][0]["x-fastdedup-error"]
    lines = [each for each in caplog.records if each.getMessage().startswith("attempt ")]
    assert [(line.name, line.exc_info) for line in lines] == [("fastdedup.messages", None)] * 4
    assert "no such customer" not in "".join(line.getMessage() for line in lines)


async def test_two_subscribers_of_one_message_both_work(shop: Shop) -> None:
    shop.handle()
    found: list[Any] = []

    async def ship(order: Any) -> None:
        found.append(order)

    shop.broker.subscriber("shipping")(ship)
    async with shop.open():
        await shop.publish()
        await shop.broker.publish(7, "shipping", message_id="order-7")
    assert (shop.runs, found) == ([7], [7])


async def test_an_attempt_sees_the_message_as_it_came(shop: Shop) -> None:
    async def on_order(order: Any) -> None:
        shop.runs.append(order.pop("number"))
        if len(shop.runs) < 2:
            fault()

    shop.handle(on_order)
    async with shop.open():
        await shop.publish({"number": 7})
    assert shop.runs == [7, 7]


@pytest.mark.parametrize("error", [DeadLetterError("cancelled"), RejectMessage()], ids=repr)
async def test_a_handler_can_give_a_message_up(shop: Shop, error: Exception) -> None:
    async def on_order(order: Any) -> None:
        shop.runs.append(order)
        raise error

    shop.handle(on_order)
    async with shop.open():
        await shop.publish()
    assert (len(shop.runs), len(shop.dead)) == (1, 1)


async def test_a_handler_that_acknowledges_has_done_the_work(shop: Shop) -> None:
    async def on_order(order: Any) -> None:
        shop.runs.append(order)
        raise AckMessage

    shop.handle(on_order, publish=True)
    async with shop.open():
        await shop.publish()
        await shop.publish()
    assert (shop.runs, shop.dead, shop.replies) == ([7], [], [])


async def test_a_handler_that_stops_its_consumer_has_not_failed(redis_url: str) -> None:
    async with opened(redis_url, attempts=1) as shop:

        async def on_order(order: Any) -> None:
            shop.runs.append(order)
            raise StopConsume

        shop.handle(on_order)
        async with shop.open():
            with pytest.raises(StopConsume):
                await shop.publish()
        assert shop.dead == []
        assert (await shop.guard._settings.dedup.claim("orders|order-7")).acquired  # type: ignore[union-attr]


async def test_a_sync_handler_works_in_its_thread(shop: Shop) -> None:
    def on_order(order: Any) -> None:
        shop.runs.append(order)

    shop.handle(on_order)
    async with shop.open():
        await shop.publish()
        await shop.publish()
    assert shop.runs == [7]


async def test_another_message_with_the_same_id_is_a_dead_letter(redis_url: str) -> None:
    async with at_work(redis_url, fingerprint=lambda message: message.body) as shop:
        await shop.publish(7)
        await shop.publish(8)
        assert shop.runs == [7]
        assert [headers["x-fastdedup-reason"] for headers, _ in shop.dead] == ["mismatch"]


async def test_the_body_can_be_the_key(redis_url: str) -> None:
    async with at_work(redis_url, key=body) as shop:
        await shop.publish("paid 7 at noon", message_id="a")
        await shop.publish("paid 7 at noon", message_id="b")
        assert len(shop.runs) == 1


async def test_a_discarded_dead_letter_lies_nowhere(redis_url: str) -> None:
    async with at_work(redis_url, dead_letter=DISCARD, attempts=1, then=fault) as shop:
        await shop.publish()
        assert (len(shop.runs), shop.dead) == (1, [])


# What a handler returns


async def test_a_duplicate_publishes_nothing(redis_url: str) -> None:
    async with at_work(redis_url, publish=True, then=lambda: "invoice 7") as shop:
        await shop.publish()
        await shop.publish()
        assert shop.replies == ["invoice 7"]


class Invoice(BaseModel):
    number: int


class Renamed(BaseModel):
    number: int = Field(serialization_alias="out")


@dataclass
class Paid:
    price: Decimal
    at: datetime


@pytest.mark.parametrize(
    ("result", "published"),
    [
        ("invoice 7", "invoice 7"),
        (b"\xff\x00", b"\xff\x00"),
        (Invoice(number=7), {"number": 7}),
        ([Invoice(number=7)], [{"number": 7}]),
        (Response({"number": 7}, headers={"a": "b"}), {"number": 7}),
        ({"a": Renamed(number=7)}, {"a": {"out": 7}}),
        (
            Paid(Decimal("7.50"), datetime(2026, 1, 1, tzinfo=UTC)),
            {"price": "7.50", "at": "2026-01-01T00:00:00Z"},
        ),
    ],
    ids=["text", "bytes", "model", "list of models", "response", "alias", "dataclass"],
)
async def test_a_duplicate_publishes_the_kept_result_again(
    redis_url: str, result: Any, published: Any
) -> None:
    async with at_work(redis_url, keep_result=True, publish=True, then=lambda: result) as shop:
        await shop.publish()
        await shop.publish()
        assert shop.replies == [published, published]
        assert len(shop.runs) == 1


async def test_a_result_that_cannot_be_kept_is_no_failure(redis_url: str) -> None:
    """A duplicate would publish it as plain text, and not as JSON."""
    async with at_work(redis_url, keep_result=True, publish=True, then=lambda: Decimal("7.50")) as shop:
        await shop.publish()
        await shop.publish()
        assert (shop.replies, len(shop.runs), shop.dead) == (["7.50"], 1, [])


@pytest.mark.parametrize("inboxed", [False, True], ids=["gate", "inbox"])
async def test_a_result_too_large_to_keep_is_no_failure(
    redis_url: str, database: Path, inboxed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    large, inbox = "x" * 300_000, inbox_of(database) if inboxed else None
    async with at_work(redis_url, keep_result=True, publish=True, inbox=inbox, then=lambda: large) as shop:
        await shop.publish()
        await shop.publish()
        assert (shop.replies, len(shop.runs), shop.dead) == ([large], 1, [])
    assert [line for line in caplog.messages if "a result is not kept" in line]


async def test_a_failed_message_publishes_nothing(redis_url: str) -> None:
    async with at_work(redis_url, attempts=1, keep_result=True, publish=True, then=fault) as shop:
        await shop.publish()
        await shop.publish()
        assert (shop.replies, len(shop.dead)) == ([], 1)


async def test_a_request_gets_its_answer(redis_url: str) -> None:
    async with at_work(redis_url, keep_result=True, then=lambda: "invoice 7") as shop:
        answers = [
            await shop.broker.request(7, "orders", message_id="order-7", timeout=5.0) for _ in range(2)
        ]
        assert [await each.decode() for each in answers] == ["invoice 7"] * 2
        assert len(shop.runs) == 1


async def test_the_answer_to_a_request_is_no_delivery(redis_url: str) -> None:
    async with Dedup(redis_url, namespace="f", timeout=5.0) as dedup:
        guard = DedupMiddleware(dedup, key=message_id)
        broker = RabbitBroker(middlewares=[guard])

        @broker.subscriber("orders")
        async def on_order(order: Any) -> str:
            return "invoice 7"

        async with TestRabbitBroker(broker):
            answer = await broker.request(7, "orders", message_id="order-7", timeout=5.0)
            assert await answer.decode() == "invoice 7"
        assert guard.counts["orders"].delivered == 1


# With an inbox


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """An SQLite database with an inbox, and a table of effects."""
    path = tmp_path / "shop.db"
    make_tables(path)
    return path


def inbox_of(path: Path) -> Inbox:
    return Inbox("billing", keep=WEEK, begin=partial(transaction, path))


@pytest.mark.parametrize("gated", [True, False], ids=["gate and inbox", "inbox alone"])
async def test_the_handler_gets_the_inboxs_transaction(redis_url: str, database: Path, gated: bool) -> None:
    async with Dedup(redis_url, namespace="f", timeout=5.0) as dedup:
        shop = Shop(dedup if gated else None, inbox=inbox_of(database), keep_result=True)

        async def on_order(order: int, session: Transaction) -> str:
            await session.execute("INSERT INTO work VALUES (?)", (order,))
            shop.runs.append(order)
            if len(shop.runs) == 1:
                fault()
            return "invoice 7"

        shop.handle(on_order, publish=True)
        async with shop.open():
            await shop.publish()
            await shop.publish()
    assert shop.runs == [7, 7]
    assert shop.replies == ["invoice 7"] * 2
    assert work_in(database) == [7]


async def test_a_transaction_that_runs_again_publishes_its_last_result(database: Path) -> None:
    """It was silent, because the first run had raised AckMessage."""

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        async with transaction(database) as connection:
            yield connection
            if len(shop.runs) == 1:
                raise RetryTransaction("not now")

    async def on_order(order: int, session: Transaction) -> str:
        shop.runs.append(order)
        if len(shop.runs) == 1:
            raise AckMessage
        return "invoice 7"

    shop = Shop(None, inbox=Inbox("billing", keep=WEEK, begin=begin))
    shop.handle(on_order, publish=True)
    async with shop.open():
        await shop.publish()
    assert (shop.runs, shop.replies) == ([7, 7], ["invoice 7"])


async def test_attempts_count_without_a_gate_too(database: Path) -> None:
    shop = Shop(None, inbox=inbox_of(database), attempts=3)
    shop.handle()
    shop.then = fault
    async with shop.open():
        await shop.publish()
    assert (len(shop.runs), shop.dead[0][0]["x-fastdedup-attempts"]) == (3, 3)


# Setups


async def test_the_lifespan_opens_and_closes_the_gate(redis_url: str) -> None:
    dedup = Dedup(redis_url, namespace="f")
    guard = DedupMiddleware(dedup, key=message_id)
    broker = RabbitBroker(middlewares=[guard])
    app = FastStream(broker, lifespan=guard.lifespan(broker))
    async with app.lifespan_context():
        assert dedup.is_open
    assert not dedup.is_open


async def test_the_lifespan_leaves_an_open_gate_open(redis_url: str) -> None:
    async with Dedup(redis_url, namespace="f") as dedup:
        async with DedupMiddleware(dedup, key=message_id).lifespan()():
            pass
        assert dedup.is_open


async def test_a_gate_that_is_not_open_is_told(redis_url: str) -> None:
    shop = Shop(Dedup(redis_url, namespace="f"))
    shop.handle()
    async with shop.open():
        with pytest.raises(UsageError, match="open"):
            await shop.publish()
    assert (shop.runs, shop.dead) == ([], [])


async def test_a_message_taken_without_a_handler_is_refused(shop: Shop) -> None:
    subscriber = shop.router.subscriber("orders")
    shop.broker.include_router(shop.router)
    raw = await _raw(7)
    with pytest.raises(UsageError, match="get_one"):
        await _as_get_one(shop, subscriber, raw)


async def _raw(order: Any) -> Any:
    from faststream.rabbit.testing import build_message

    raw = build_message(order, "orders", message_id="order-7")
    return await raw if isawaitable(raw) else raw  # FastStream 0.6 builds it at once


async def _as_get_one(shop: Shop, subscriber: Any, raw: Any) -> Any:
    """Take a message by the way that `get_one` takes it, without a broker."""
    from faststream._internal.endpoint.utils import process_msg

    parser, decoder = subscriber._get_parser_and_decoder()
    middlewares = (each(raw, context=shop.broker.context) for each in subscriber._broker_middlewares)
    return await process_msg(msg=raw, middlewares=middlewares, parser=parser, decoder=decoder)


def rabbit(guard: Any, queue: Any = "orders", **options: Any) -> Any:
    broker = RabbitBroker(middlewares=[guard])
    broker.subscriber(queue, **options)
    return broker


def kafka(guard: Any, *topics: str, **options: Any) -> Any:
    broker = KafkaBroker(middlewares=[guard])
    options = {"group_id": "billing", "ack_policy": AckPolicy.ACK, **options}
    broker.subscriber(*(topics or ("orders",)), **options)
    return broker


def confluent(guard: Any, **options: Any) -> Any:
    broker = ConfluentBroker(middlewares=[guard])
    broker.subscriber("orders", **options)
    return broker


def nats(guard: Any, subject: str = "orders.*", **options: Any) -> Any:
    broker = NatsBroker(middlewares=[guard])
    broker.subscriber(subject, **options)
    return broker


def redis(guard: Any, channel: Any = None, **options: Any) -> Any:
    broker = RedisBroker(middlewares=[guard])
    broker.subscriber(channel, **options)
    return broker


STREAM = JStream("orders")


@pytest.mark.parametrize(
    ("make", "dead_letter", "words"),
    [
        (lambda guard: rabbit(guard, ack_policy=AckPolicy.ACK_FIRST), None, "before the work"),
        (
            lambda guard: rabbit(guard, RabbitQueue("orders", queue_type=QueueType.STREAM, durable=True)),
            None,
            "is a stream",
        ),
        (
            lambda guard: rabbit(guard, RabbitQueue("orders", arguments={"x-delivery-limit": 2})),
            None,
            "after 2 deliveries",
        ),
        (rabbit, "orders", "would come back to it"),
        (kafka, None, "Kafka has no place for dead letters"),
        (lambda guard: kafka(guard, ack_policy=AckPolicy.ACK_FIRST), "dead", "AckPolicy.ACK"),
        (lambda guard: kafka(guard, group_id=None), "dead", "group_id="),
        (lambda guard: kafka(guard, batch=True), "dead", "batches"),
        (lambda guard: kafka(guard, "a", "b"), "b", "would come back to it"),
        (confluent, "dead", "AckPolicy.ACK"),
        (lambda guard: nats(guard), None, "core NATS has no place for dead letters"),
        (lambda guard: nats(guard), "orders.dead", "would come back to it"),
        (
            lambda guard: nats(guard, stream=STREAM, ack_policy=AckPolicy.ACK_FIRST),
            None,
            "before the work",
        ),
        (
            lambda guard: nats(guard, stream=STREAM, pull_sub=PullSub(batch=True), durable="d"),
            None,
            "batches",
        ),
        (lambda guard: nats(guard, kv_watch="bucket"), None, "watcher"),
        (lambda guard: redis(guard, stream=StreamSub("s")), "dead", "group="),
        (
            lambda guard: redis(guard, stream=StreamSub("s", group="g", consumer="c", no_ack=True)),
            "dead",
            "without no_ack",
        ),
        (
            lambda guard: redis(guard, stream=StreamSub("s", group="g", consumer="c")),
            None,
            "Redis has no place for dead letters",
        ),
        (lambda guard: redis(guard, list="s"), "s", "would come back to it"),
        (
            lambda guard: rabbit(guard, queue=RabbitQueue("o", arguments={"x-consumer-timeout": 6000})),
            None,
            r"held for 6 s \(wait \+ retry_delay\)",
        ),
        (
            lambda guard: nats(guard, stream=JStream("s"), config=ConsumerConfig(ack_wait=90_000)),
            None,
            r"after 90000 s \(ack_wait\), and the gate keeps its key for 86400 s only",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:`no_ack` ")  # FastStream before 0.7.8
def test_a_wrong_setup_is_told_at_start(
    redis_url: str, make: Callable[[Any], Any], dead_letter: str | None, words: str
) -> None:
    guard = DedupMiddleware(Dedup(redis_url, namespace="f"), key=message_id, dead_letter=dead_letter)
    with pytest.raises(ConfigError, match=words):
        guard.check(make(guard))


async def test_the_lifespan_tells_of_a_wrong_setup(redis_url: str) -> None:
    guard = DedupMiddleware(Dedup(redis_url, namespace="f"), key=offset)
    broker = kafka(guard)
    with pytest.raises(ConfigError, match="dead letters"):
        async with FastStream(broker, lifespan=guard.lifespan(broker)).lifespan_context():
            pass


async def test_without_a_lifespan_the_first_message_tells(redis_url: str) -> None:
    async with Dedup(redis_url, namespace="f") as dedup:
        guard = DedupMiddleware(dedup, key=offset, retry_delay=0.01)
        broker = KafkaBroker(middlewares=[guard])
        runs: list[Any] = []

        @broker.subscriber("orders", group_id="g", ack_policy=AckPolicy.ACK)
        async def on_order(order: Any) -> None:
            runs.append(order)

        async with TestKafkaBroker(broker):
            with pytest.raises(ConfigError, match="Kafka has no place for dead letters"):
                await broker.publish(7, "orders")
        assert runs == []


def test_two_middlewares_before_one_subscriber_are_told(redis_url: str) -> None:
    dedup = Dedup(redis_url, namespace="f")
    outer, inner = (DedupMiddleware(dedup, key=message_id) for _ in range(2))
    router = RabbitRouter(middlewares=[inner])
    router.subscriber("orders")
    broker = RabbitBroker(middlewares=[outer])
    broker.include_router(router)
    with pytest.raises(ConfigError, match="would wait for each other"):
        outer.check(broker)


def test_an_inbox_serves_one_subscriber(redis_url: str) -> None:
    inbox = Inbox("one-subscriber", keep=WEEK, begin=lambda: None)  # type: ignore[arg-type,return-value]
    guard = DedupMiddleware(None, key=message_id, inbox=inbox)
    broker = rabbit(guard)
    broker.subscriber("others")
    with pytest.raises(ConfigError, match="is one consumer"):
        guard.check(broker)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"key": "id"}, "key= must be a function"),
        ({"attempts": 0}, "attempts must be"),
        ({"lease": 0}, "lease must be"),
        ({"retry_delay": -1}, "retry_delay must be"),
        ({"dead_letter": ""}, "dead_letter must be the name"),
        ({"dedup": None}, "a gate, an inbox, or both"),
        ({"resolve": lambda: True}, "resolve must be a function that takes a Takeover alone"),
        ({"dedup": "redis://"}, "dedup must be a fastdedup.Dedup"),
    ],
)
def test_a_wrong_setting_is_named(redis_url: str, options: dict[str, Any], words: str) -> None:
    options = {"dedup": Dedup(redis_url, namespace="f"), "key": message_id, **options}
    with pytest.raises(ConfigError, match=words):
        DedupMiddleware(options.pop("dedup"), **options)


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(
        TypeError, match="no setting 'grace'; it has key, consumer, dead_letter, keep_result, inbox"
    ):
        DedupMiddleware(None, key=message_id, grace=1.0)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (rabbit, "orders"),
        (lambda guard: kafka(guard, "b", "a"), "kafka:billing:a,b"),
        (lambda guard: nats(guard, queue="q"), "nats::q:orders.*"),
        (lambda guard: nats(guard, stream=STREAM, durable="d", pull_sub=True), "nats:orders:d:orders.*"),
        (
            lambda guard: redis(guard, stream=StreamSub("s", group="g", consumer="c")),
            "redis:stream:s:g",
        ),
        (lambda guard: redis(guard, list="s"), "redis:list:s"),
        (lambda guard: redis(guard, "s"), "redis:channel:s"),
    ],
)
def test_a_subscriber_has_a_name_of_its_own(redis_url: str, make: Callable[[Any], Any], name: str) -> None:
    guard = DedupMiddleware(
        Dedup(redis_url, namespace="f"), key=message_id, dead_letter=DISCARD, consumer="shop"
    )
    guard.check(make(guard))
    assert list(guard.counts) == [f"shop/{name}"]


async def test_an_entry_of_an_older_faststream_is_acknowledged_by_its_group() -> None:
    """Before 0.7.8 an entry's `ack()` sends nothing without them, and FastStream then takes it for acknowledged."""
    told: list[dict[str, Any]] = []

    class OldEntry:
        async def ack(self, **options: Any) -> None:
            told.append(options)

    class Subscriber:
        stream_sub = StreamSub("orders", group="billing", consumer="a")
        _client = object()

    await RedisWay().ack(OldEntry(), Subscriber())
    assert told == [{"redis": Subscriber._client, "group": "billing"}]
