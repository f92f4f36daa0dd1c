"""What the consumers of all brokers have in common, each on its real broker and with a real Redis behind the gate."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fastdedup import Dedup, UsageError
from fastdedup.integrations import kafka as of_kafka
from fastdedup.integrations import nats as of_nats
from fastdedup.integrations import rabbitmq as of_rabbitmq
from fastdedup.integrations import redis_streams as of_streams
from fastdedup.integrations import sqs as of_sqs
from fastdedup.messages import DeadLetterError
from fastdedup.messages.headers import AGAIN, ATTEMPTS, CONSUMER, ERROR, KEY, ORIGIN, REASON

from ..servers import RedisServer
from ..waiting import wait_until
from . import test_kafka, test_nats, test_rabbitmq, test_redis_streams, test_sqs
from .consumers import Handler, Work, a_handler, at_work, fault, opened
from .test_rules import Shop as Database


class Letter(NamedTuple):
    """A dead letter; `kept` is what its broker has beside a body and headers."""

    body: bytes
    headers: dict[str, str]
    kept: Any = None


class OnKafka:
    no_key = staticmethod(of_kafka.header("no-such"))
    kept = b"customer"

    def __init__(self, shop: test_kafka.Shop) -> None:
        self.shop = shop
        self.sent = 0
        self.origin = f"{shop.topic}:0:0"
        self.places = {"dead_letter": shop.dead, "producer": shop.producer}

    async def put(self, *ids: str, **headers: str) -> None:
        self.sent += len(ids)
        sent = {name: value.encode() for name, value in headers.items()}
        await self.shop.publish(*ids, key="customer", **sent)

    def at_work(self, dedup: Dedup, handler: Handler, **options: Any) -> Any:
        return self.shop.consumer(dedup, handler, **self.places, **options)

    async def left(self) -> int:
        return self.sent - (await self.shop.committed() or 0)

    async def dead_letters(self) -> list[Letter]:
        found = await self.shop.dead_letters()
        return [Letter(each.value, {n: v.decode() for n, v in each.headers}, each.key) for each in found]


class OnNats:
    no_key = staticmethod(of_nats.message_id)
    kept = None

    def __init__(self, shop: test_nats.Shop) -> None:
        self.shop = shop
        self.origin = f"{shop.subject}:1"
        self.places = {"dead_letter": shop.dead}
        self.put = shop.publish
        self.left = shop.unsettled

    def at_work(self, dedup: Dedup, handler: Handler, **options: Any) -> Any:
        return self.shop.consumer(dedup, handler, **self.places, **options)

    async def dead_letters(self) -> list[Letter]:
        return [Letter(each.data, dict(each.headers)) for each in await self.shop.dead_letters()]


class OnStreams:
    no_key = staticmethod(of_streams.field("no-such"))
    kept: Any = b"no text"
    binary: dict[Any, Any] = {b"\xff": "no text"}  # noqa: RUF012

    def __init__(self, shop: test_redis_streams.Shop) -> None:
        self.shop = shop
        self.origin = f"{shop.stream}:"
        self.places = {"dead_letter": shop.dead}

    async def put(self, *ids: str, **fields: str) -> None:
        for each in ids:
            self.shop.raw.xadd(self.shop.stream, {"id": each, "body": each, **self.binary, **fields})

    def at_work(self, dedup: Dedup, handler: Handler, **options: Any) -> Any:
        # A consumer that looks for entries just before they go back looks again after half of `idle`.
        return self.shop.consumer(dedup, handler, **{"idle": 30.0, **self.places, **options})

    async def left(self) -> int:
        return self.shop.pending()

    async def dead_letters(self) -> list[Letter]:
        found = []
        for fields in self.shop.dead_letters():
            kept = fields.pop(b"\xff", None)
            headers = {name.decode(): value.decode() for name, value in fields.items()}
            found.append(Letter(fields[b"body"], headers, kept))
        return found


class OnDecodedStreams(OnStreams):
    """Of a client that decodes, for which every field must be text."""

    kept = None
    binary: dict[Any, Any] = {}  # noqa: RUF012


class OnRabbit:
    no_key = staticmethod(of_rabbitmq.header("no-such"))
    kept = ("order", "c")
    origin = ""

    def __init__(self, orders: test_rabbitmq.Orders) -> None:
        self.orders = orders
        self.places: dict[str, Any] = {}
        self.left = orders.left

    async def put(self, *ids: str, **headers: str) -> None:
        for each in ids:
            more = {"headers": {"id": each, **headers}, "type": "order", "correlation_id": "c"}
            await self.orders.publish(each, body=each.encode(), **more)

    @asynccontextmanager
    async def at_work(self, dedup: Dedup, handler: Handler, **options: Any) -> AsyncIterator[Any]:
        self.orders.dedup = dedup
        async with self.orders.consumer(**options) as consumer, at_work(consumer, handler):
            yield consumer

    async def dead_letters(self) -> list[Letter]:
        return [
            Letter(each.body, {n: str(v) for n, v in each.headers.items()}, (each.type, each.correlation_id))
            for each in await self.orders.dead()
        ]


class OnSqs:
    no_key = staticmethod(of_sqs.attribute("no-such"))
    kept = b"\xff"
    origin = ""
    """A dead letter is never laid nowhere: SQS deletes what is settled."""

    def __init__(self, shop: test_sqs.Shop) -> None:
        self.shop = shop
        self.places: dict[str, Any] = {}

    async def put(self, *ids: str, **headers: str) -> None:
        for each in ids:
            texts = {name: test_sqs.text(value) for name, value in {"id": each, **headers}.items()}
            binary = {"raw": {"DataType": "Binary", "BinaryValue": self.kept}}
            given = {"MessageGroupId": each, "MessageDeduplicationId": secrets.token_hex(8)}
            self.shop.send(
                each, MessageAttributes={**texts, **binary}, **(given if ".fifo" in self.shop.url else {})
            )

    def client(self) -> AbstractAsyncContextManager[Any]:
        return nullcontext(self.shop.client)

    @asynccontextmanager
    async def at_work(self, dedup: Dedup, handler: Handler, **options: Any) -> AsyncIterator[Any]:
        options = {"key": of_sqs.attribute("id"), **options}
        async with self.client() as client:
            consumer = of_sqs.Consumer(client, dedup, queue_url=self.shop.url, **options)
            async with consumer, at_work(consumer, handler):
                yield consumer

    async def left(self) -> int:
        return self.shop.left()

    async def dead_letters(self) -> list[Letter]:
        found = []
        for each in self.shop.dead_letters():
            attributes = each["MessageAttributes"]
            kept = attributes.pop("raw")["BinaryValue"]
            texts = {name: value["StringValue"] for name, value in attributes.items()}
            found.append(Letter(each["Body"].encode(), texts, kept))
        return found


class OnSqsByAiobotocore(OnSqs):
    def client(self) -> AbstractAsyncContextManager[Any]:
        return test_sqs.aio_client_of(self.shop.server.url)


Face = OnKafka | OnNats | OnStreams | OnRabbit | OnSqs
Open = Callable[[], AbstractAsyncContextManager[Any]]
FACES: dict[str, tuple[Any, str, Any, dict[str, Any]]] = {
    "kafka": (OnKafka, "kafka", test_kafka.shop_of, {}),
    "nats": (OnNats, "nats", test_nats.shop_of, {}),
    "streams of RESP2": (
        OnStreams,
        "streams",
        test_redis_streams.shop_of,
        {"protocol": 2, "socket_timeout": None},
    ),
    "streams decoded": (
        OnDecodedStreams,
        "streams",
        test_redis_streams.shop_of,
        {"protocol": 3, "decode_responses": True},
    ),
    "SQS": (OnSqs, "sqs", test_sqs.shop_of, {}),
    "SQS FIFO": (OnSqsByAiobotocore, "sqs", test_sqs.shop_of, {"fifo": True}),
    "classic queue": (OnRabbit, "rabbitmq", test_rabbitmq.opened, {"kind": "classic"}),
    "quorum queue": (OnRabbit, "rabbitmq", test_rabbitmq.opened, {"kind": "quorum"}),
}


pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(params=FACES)
def open_face(request: pytest.FixtureRequest) -> Open:
    """Opens a place of orders of each broker, with a place for its dead letters."""
    face, server, shop_of, options = FACES[request.param]
    running = request.getfixturevalue(server)

    @asynccontextmanager
    async def open_one() -> AsyncIterator[Face]:
        given = (running, None) if face is OnRabbit else (running,)
        async with shop_of(*given, **options) as shop:
            yield face(shop)

    return open_one


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Any:
    """The server of the face."""
    return request.getfixturevalue(FACES[request.node.callspec.params["open_face"]][1])


async def is_empty(face: Face) -> bool:
    """True once the broker has seen the last acknowledgement."""
    return await face.left() == 0


async def test_each_message_is_done_once(open_face: Open, redis_url: str) -> None:
    ids = [str(number) for number in range(20)]
    async with open_face() as face, opened(redis_url) as dedup:
        work = Work()
        await face.put(*ids, *reversed(ids))
        async with face.at_work(dedup, work) as consumer:
            counts = consumer.counts
            await wait_until(lambda: counts.first + counts.duplicate == 40, description="all are settled")
            await face.put("later")
            await wait_until(lambda: "later" in work.done, description="one that comes later is done")
        assert (counts.first, counts.duplicate, counts.retried, counts.dead_lettered) == (21, 20, 0, 0)
        assert sorted(work.done) == sorted([*ids, "later"])
        await wait_until(lambda: is_empty(face), description="nothing is left")


async def test_a_message_that_always_fails_ends_as_a_dead_letter(open_face: Open, redis_url: str) -> None:
    """The error has two lines, which a header of NATS cannot have."""

    def then(order: str) -> None:
        if order == "a":
            raise ValueError("no such\ncustomer")

    async with open_face() as face, opened(redis_url) as dedup:
        work = Work(then)
        await face.put("a", trace="t-1")
        await face.put("b")
        async with face.at_work(dedup, work, attempts=3) as consumer:
            counts = consumer.counts
            await wait_until(lambda: counts.dead_lettered and counts.first, description="both are settled")
        assert sorted(work.begun) == ["a", "a", "a", "b"]
        assert (counts.retried, counts.dead_lettered) == (2, 1)
        await wait_until(lambda: is_empty(face), description="nothing is left")
        (dead,) = await face.dead_letters()
        assert (dead.body, dead.kept) == (b"a", face.kept)
        assert (dead.headers["id"], dead.headers["trace"]) == ("a", "t-1")
        assert [dead.headers[name] for name in (KEY, REASON, ATTEMPTS)] == ["a", "failed", "3"]
        assert dead.headers[ERROR].replace("\n", " ") == "ValueError: no such customer"
        assert dead.headers.get(ORIGIN, "").startswith(face.origin)


async def test_a_handler_can_give_a_message_up(open_face: Open, redis_url: str) -> None:
    def give_up(order: str) -> None:
        raise DeadLetterError("cancelled")

    async with open_face() as face, opened(redis_url) as dedup:
        work = Work(give_up)
        await face.put("a")
        async with face.at_work(dedup, work) as consumer:
            await wait_until(lambda: consumer.counts.dead_lettered, description="it is a dead letter")
        assert work.begun == ["a"]
        (dead,) = await face.dead_letters()
        assert [dead.headers[name] for name in (KEY, REASON, ATTEMPTS)] == ["a", "failed", "1"]


async def test_a_dead_letter_published_again_is_worked_on(
    open_face: Open, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Where it is laid nowhere, the log says where it stays."""
    async with open_face() as face, opened(redis_url) as dedup:
        work = Work(fault)
        await face.put("a")
        face.places = {}
        async with face.at_work(dedup, work, attempts=1) as consumer:
            await wait_until(lambda: consumer.counts.dead_lettered, description="it is a dead letter")
            assert not face.origin or f"stays at {face.origin}" in caplog.text
            work.then = lambda order: None
            await face.put("a", **{AGAIN: "1"})
            await wait_until(lambda: work.done == ["a"], description="it is done")


async def test_attempts_of_another_consumer_do_not_count(open_face: Open, redis_url: str) -> None:
    """A consumer of another one's dead letters gave each up unseen, and so did one of headers that were passed on."""
    async with open_face() as face, opened(redis_url) as dedup:
        work = Work()
        async with face.at_work(dedup, work, attempts=5) as consumer:
            await face.put("a", **{ATTEMPTS: "5", CONSUMER: "another"})
            await face.put("b", **{ATTEMPTS: "5", CONSUMER: consumer.name})
            counts = consumer.counts
            await wait_until(lambda: counts.first and counts.dead_lettered, description="both are settled")
        (dead,) = await face.dead_letters()
        assert (work.done, dead.headers["id"], dead.headers[REASON]) == (["a"], "b", "exhausted")


async def test_a_message_without_its_key_is_a_dead_letter(open_face: Open, redis_url: str) -> None:
    async with open_face() as face, opened(redis_url) as dedup:
        await face.put("a")
        async with face.at_work(dedup, Work(), key=face.no_key) as consumer:
            await wait_until(lambda: consumer.counts.dead_lettered, description="it is a dead letter")
        (dead,) = await face.dead_letters()
        assert dead.headers[REASON] == "no_key"


async def test_stop_ends_what_was_begun_and_gives_the_rest_back(open_face: Open, redis_url: str) -> None:
    """The rest is a copy, held or not begun. The next consumer has it before a timeout of its broker ends.

    It has it while the first one's handler goes on, unless the broker keeps an order.
    """
    async with open_face() as face, opened(redis_url) as dedup:
        end, in_order = asyncio.Event(), isinstance(face, OnKafka | OnSqsByAiobotocore)
        work, rest = Work(lambda order: end.wait()), Work()
        await face.put("a", "a")
        async with face.at_work(dedup, work, wait=30.0) as consumer:
            counts = consumer.counts
            await wait_until(lambda: work.begun and (counts.held or in_order), description="it is begun")
            consumer.stop()
            if not in_order:
                async with face.at_work(dedup, rest, wait=30.0) as next_one:
                    await wait_until(lambda: next_one.counts.held, description="the next one holds it")
            end.set()
        assert (work.done, counts.first, counts.duplicate) == (["a"], 1, 0)
        async with face.at_work(dedup, rest) as other:
            await wait_until(lambda: other.counts.duplicate == 1, description="the next one has it")
        assert (rest.begun, other.counts.duplicate) == ([], 1)
        await wait_until(lambda: is_empty(face), description="nothing is left")


@pytest.mark.parametrize("grace", [0.05, 0.0])
async def test_grace_cuts_off_a_handler_and_frees_its_message_and_key(
    open_face: Open, redis_url: str, grace: float
) -> None:
    """At once: neither its broker's timeout nor the gate's lease of 30 s ends before.

    Without a grace the broker is told all the same that the consumer takes no more.
    """
    async with open_face() as face, opened(redis_url) as dedup:
        work, rest = Work(lambda order: asyncio.Event().wait()), Work()
        await face.put("a")
        async with face.at_work(dedup, work, grace=grace):
            await wait_until(lambda: work.begun == ["a"], description="it is begun")
        assert work.done == []
        async with face.at_work(dedup, rest):
            await wait_until(lambda: rest.done == ["a"], description="the next consumer does it")
        await wait_until(lambda: is_empty(face), description="nothing is left")


@pytest.mark.parametrize("begun", [0, 1])
async def test_a_broker_that_hangs_does_not_keep_a_consumer_from_its_end(
    open_face: Open, broker: Any, redis_url: str, monkeypatch: pytest.MonkeyPatch, begun: int
) -> None:
    """A client without a timeout waits for ever, and a call of boto3 in a thread cannot be ended."""
    monkeypatch.setattr("fastdedup.messages.consumer.GOODBYE", 0.1)
    monkeypatch.setattr("fastdedup.integrations.rabbitmq.consumer.GOODBYE", 0.1)
    async with open_face() as face, opened(redis_url) as dedup:
        work = Work(lambda order: asyncio.Event().wait())
        await face.put(*["a"] * begun)
        with ExitStack() as frozen:
            async with face.at_work(dedup, work, grace=0.1) as consumer:
                await wait_until(
                    lambda: consumer.is_running and len(work.begun) == begun, description="it runs"
                )
                frozen.enter_context(broker.frozen())
                consumer.stop()
                await wait_until(lambda: not consumer.is_running, description="it ends")
                frozen.close()


async def test_while_the_gate_is_down_messages_are_held(open_face: Open, server: RedisServer) -> None:
    async with open_face() as face, Dedup(server.url, namespace="m", timeout=0.1) as dedup:
        async with face.at_work(dedup, Work()) as consumer:
            server.kill()
            await face.put("a", "b")
            await wait_until(lambda: consumer.counts.held, description="they are held")
            assert consumer.is_paused
            server.start()
            await wait_until(lambda: consumer.counts.first == 2, description="both are done")
            assert not consumer.is_paused
        assert (consumer.counts.delivered, consumer.counts.retried) == (2, 0)


async def test_a_gate_that_is_not_open_is_told_before_a_message(open_face: Open, redis_url: str) -> None:
    async with open_face() as face:
        with pytest.raises(UsageError, match="this Dedup is not open: use `async with dedup:`"):
            async with face.at_work(Dedup(redis_url, namespace="m"), a_handler):
                await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("open_face", "options"),
    [("nats", {}), ("streams of RESP2", {"idle": 0.001}), ("streams decoded", {"idle": 0.001})],
    indirect=["open_face"],
)
async def test_with_an_inbox_alone_deliveries_count_as_attempts(
    open_face: Open, tmp_path: Path, options: dict[str, Any]
) -> None:
    database, work = Database(tmp_path / "shop.db"), Work()
    async with open_face() as face:
        await face.put("a")
        await face.shop.spend_deliveries()
        async with face.at_work(None, work, inbox=database.inbox, attempts=2, **options):
            await wait_until(face.dead_letters, description="a dead letter")
            await wait_until(lambda: is_empty(face), description="it is acknowledged")
        (dead,) = await face.dead_letters()
        assert (dead.headers[REASON], work.begun) == ("exhausted", [])
        await face.put("b")
        async with face.at_work(None, work, inbox=database.inbox):
            await wait_until(lambda: work.done == ["b"], description="the next is done")
