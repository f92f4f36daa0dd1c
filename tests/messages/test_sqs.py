"""Consumers of Amazon SQS, on moto's server and a real Redis behind the gate."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import anyio
import boto3
import pytest
from aiobotocore.session import get_session
from botocore.config import Config

from fastdedup import ConfigError, Dedup
from fastdedup.integrations import sqs as of_sqs
from fastdedup.integrations.sqs import Consumer
from fastdedup.messages import DeadLetterError
from fastdedup.messages.headers import ATTEMPTS, ERROR, LEFT_OUT
from fastdedup.messages.key_turns import KeyTurns

from ..brokers import SqsServer
from ..chaos.proxy import Gate, Mode
from ..fixtures import async_fixture
from ..programs import started
from ..waiting import wait_until
from .consumers import Handler, Work, at_work, fault, opened
from .test_pages import names_of, stopped
from .test_rules import Shop as Database

ACCESS = {"region_name": "us-east-1", "aws_access_key_id": "none", "aws_secret_access_key": "none"}


pytestmark = pytest.mark.usefixtures("quick")


def client_of(url: str) -> Any:
    """A client of boto3 that does not wait before it says that its server is away."""
    config = Config(retries={"max_attempts": 0})
    return boto3.client("sqs", endpoint_url=url, config=config, **ACCESS)


@asynccontextmanager
async def aio_client_of(url: str) -> AsyncIterator[Any]:
    """A client of aiobotocore."""
    async with get_session().create_client("sqs", endpoint_url=url, **ACCESS) as client:
        yield client


class Shop:
    """A queue, and one for its dead letters."""

    def __init__(
        self, server: SqsServer, *, fifo: bool = False, redrive: bool = True, seen: str = "30"
    ) -> None:
        self.server = server
        self.client = client_of(server.url)
        end, kind = (".fifo", {"FifoQueue": "true"}) if fifo else ("", {})
        self.dead = self.client.create_queue(QueueName=server.name("dead") + end, Attributes=kind)["QueueUrl"]
        found = self.client.get_queue_attributes(QueueUrl=self.dead, AttributeNames=["QueueArn"])[
            "Attributes"
        ]
        policy = {"deadLetterTargetArn": found["QueueArn"], "maxReceiveCount": 20}
        more = {"RedrivePolicy": json.dumps(policy)} if redrive else {}
        self.url = self.client.create_queue(
            QueueName=server.name("orders") + end, Attributes={"VisibilityTimeout": seen, **kind, **more}
        )["QueueUrl"]

    def send(self, *orders: str, **more: Any) -> None:
        for order in orders:
            self.client.send_message(QueueUrl=self.url, MessageBody=order, **more)

    def left(self, url: str | None = None) -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.client.get_queue_attributes(QueueUrl=url or self.url, AttributeNames=names)["Attributes"]
        return sum(map(int, found.values()))

    @asynccontextmanager
    async def consumer(
        self, dedup: Dedup | None, handler: Handler, client: Any = None, **options: Any
    ) -> AsyncIterator[Consumer]:
        options = {"queue_url": self.url, **options}
        async with Consumer(client or self.client, dedup, **options) as consumer, at_work(consumer, handler):
            yield consumer

    def dead_letters(self) -> list[Any]:
        return self.client.receive_message(  # type: ignore[no-any-return]
            QueueUrl=self.dead, MaxNumberOfMessages=10, MessageAttributeNames=["All"]
        ).get("Messages", [])


@asynccontextmanager
async def shop_of(server: SqsServer, **options: Any) -> AsyncIterator[Shop]:
    yield Shop(server, **options)


def see_messages(client: Any, see: Callable[[Any], object]) -> None:
    """Let a function see, or change, each message that a client of boto3 receives."""
    whole = client.receive_message

    def receive(**given: Any) -> Any:
        found = whole(**given)
        for each in found.get("Messages", ()):
            see(each)
        return found

    client.receive_message = receive


def extensions(client: Any) -> list[str]:
    """Return a list that gets the id of each message whose visibility SQS has extended."""
    whole, extended = client.change_message_visibility_batch, list[str]()

    def extend(**given: Any) -> Any:
        found = whole(**given)
        extended.extend(each["Id"] for each in found["Successful"])
        return found

    client.change_message_visibility_batch = extend
    return extended


def text(value: str) -> dict[str, str]:
    return {"DataType": "String", "StringValue": value}


dedup = async_fixture(lambda redis_url: opened(redis_url))


async def test_a_dead_letter_has_no_more_attributes_than_sqs_takes(sqs: SqsServer, dedup: Dedup) -> None:
    shop = Shop(sqs)
    shop.send("a", MessageAttributes={name: text(name) for name in "abcdefghij"})
    async with shop.consumer(dedup, Work(fault), attempts=2, retry_delay=0.0) as consumer:
        await wait_until(lambda: consumer.counts.dead_lettered, description="it is a dead letter")
        await wait_until(lambda: shop.left() == 0, description="it is deleted")
    (dead,) = (each["MessageAttributes"] for each in shop.dead_letters())
    assert dead[ATTEMPTS]["StringValue"] == "2"
    assert len(dead) <= 10
    assert LEFT_OUT in dead


async def test_a_slow_handler_keeps_its_message(sqs: SqsServer, dedup: Dedup) -> None:
    """Also if someone sets a shorter timeout of the queue meanwhile: the consumer goes on with its own."""
    shop, end = Shop(sqs, seen="1"), asyncio.Event()
    work, extended = Work(lambda order: end.wait()), extensions(shop.client)
    async with shop.consumer(dedup, work) as consumer:
        shop.client.set_queue_attributes(QueueUrl=shop.url, Attributes={"VisibilityTimeout": "0"})
        shop.send("a")
        await wait_until(lambda: work.begun, description="it is begun")
        await wait_until(lambda: len(extended) > 6, description="more than two timeouts are over")
        assert consumer.counts.delivered == 1
        end.set()
    assert (consumer.counts.first, shop.left()) == (1, 0)


@pytest.mark.parametrize(("scope", "done"), [("messageGroup", ["a", "b"]), ("queue", ["a"])])
async def test_an_id_that_is_unique_in_its_group_alone_is_no_duplicate_in_another(
    sqs: SqsServer, dedup: Dedup, scope: str, done: list[str]
) -> None:
    """SQS of moto drops the second one whatever the scope is, so they have two ids there."""
    shop, work = Shop(sqs, fifo=True), Work()
    shop.client.set_queue_attributes(QueueUrl=shop.url, Attributes={"DeduplicationScope": scope})
    see_messages(shop.client, lambda each: each["Attributes"].update(MessageDeduplicationId="paid"))
    async with shop.consumer(dedup, work):
        for order, copies in (("a", 2), ("b", 1)):
            for copy in range(copies):
                shop.send(order, MessageGroupId=order, MessageDeduplicationId=f"{order}-{copy}")
            await wait_until(lambda: not shop.left(), description="they are settled")
    assert work.done == done


async def test_a_retried_message_of_a_group_blocks_those_after_it(sqs: SqsServer, dedup: Dedup) -> None:
    """Also at another consumer. Those after it are in hand meanwhile, and spend no delivery."""
    shop, begun = Shop(sqs, fifo=True, seen="2"), []

    async def handler(message: Any) -> None:
        begun.append((message.body, message.system["ApproximateReceiveCount"]))
        if begun.count(("1", "1")) < 3:
            raise ValueError("not yet")

    for each in "123":
        shop.send(each, MessageGroupId="customer", MessageDeduplicationId=each)
    async with (
        shop.consumer(dedup, handler, retry_delay=1.0) as one,
        shop.consumer(dedup, handler, client_of(sqs.url), retry_delay=1.0) as other,
    ):
        await wait_until(lambda: one.counts.first + other.counts.first == 3, description="all are done")
    assert begun == [("1", "1")] * 3 + [("2", "1"), ("3", "1")]
    assert shop.left() == 0


async def test_a_poison_message_of_a_group_spends_no_attempts_of_those_after_it(
    sqs: SqsServer, tmp_path: Path
) -> None:
    """An inbox without a gate counts deliveries as attempts."""
    shop, database = Shop(sqs, fifo=True), Database(tmp_path / "shop.db")
    work = Work(lambda order: fault(order) if order == "1" else None)
    for each in "123":
        shop.send(each, MessageGroupId="customer", MessageDeduplicationId=each)
    async with shop.consumer(None, work, attempts=2, retry_delay=0.0, inbox=database.inbox) as consumer:
        await wait_until(lambda: consumer.counts.first == 2, description="the others are done")
    assert (work.begun, consumer.counts.dead_lettered) == (["1", "1", "2", "3"], 1)


async def test_groups_of_a_standard_queue_do_not_wait(sqs: SqsServer, dedup: Dedup) -> None:
    """There a group is a tenant of a fair queue, and promises no order. moto leaves it out, so it is put in."""
    shop, end = Shop(sqs), asyncio.Event()
    see_messages(shop.client, lambda message: message["Attributes"].update(MessageGroupId="tenant"))
    work = Work(lambda order: end.wait())
    shop.send("a", "b")
    async with shop.consumer(dedup, work):
        await wait_until(lambda: len(work.begun) == 2, description="both are at work")
        end.set()


async def test_a_failed_delete_is_told_and_a_duplicate_later(
    sqs: SqsServer, dedup: Dedup, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(sqs, seen="1")
    lost = [{"Failed": [{"Id": "0", "Code": "InternalError", "SenderFault": False}]}]
    whole = shop.client.delete_message_batch
    shop.client.delete_message_batch = lambda **given: lost.pop() if lost else whole(**given)
    shop.send("a")
    async with shop.consumer(dedup, Work()) as consumer:
        await wait_until(lambda: consumer.counts.duplicate, description="it comes again")
    assert "because their delete failed: 1, the first by InternalError" in caplog.text
    assert (consumer.counts.first, shop.left()) == (1, 0)


async def test_a_queue_without_a_place_for_dead_letters_is_refused(sqs: SqsServer, dedup: Dedup) -> None:
    shop = Shop(sqs, redrive=False)
    with pytest.raises(ConfigError, match="has no RedrivePolicy: SQS deletes what is settled"):
        await Consumer(shop.client, dedup, queue_url=shop.url).__aenter__()
    async with Consumer(shop.client, dedup, queue_url=shop.url, dead_letter=shop.dead):
        pass
    with pytest.raises(ConfigError, match="after 20 deliveries"):
        await Consumer(shop.client, dedup, queue_url=Shop(sqs).url, attempts=21).__aenter__()
    for url in (shop.url, f"{shop.dead}.fifo"):
        with pytest.raises(ConfigError, match="dead_letter must be another queue of the same kind"):
            Consumer(shop.client, dedup, queue_url=shop.url, dead_letter=url)
    wrong: list[Any] = [7, ""]
    for url in wrong:
        with pytest.raises(ConfigError, match="dead_letter must be the URL of a queue, got"):
            Consumer(shop.client, dedup, queue_url=shop.url, dead_letter=url)
    with pytest.raises(ConfigError, match="client must be an SQS client"):
        Consumer(object(), dedup, queue_url=shop.url)


async def test_an_outage_of_sqs_pauses_the_consumer(
    sqs: SqsServer, dedup: Dedup, caplog: pytest.LogCaptureFixture
) -> None:
    """A handler goes on meanwhile. Its delete fails, so its message is a duplicate later."""
    shop, end, way = Shop(sqs, seen="2"), asyncio.Event(), await Gate(None, sqs.port).start()
    work = Work(lambda order: end.wait() if order == "a" else None)
    shop.send("a")
    async with shop.consumer(dedup, work, client_of(f"http://127.0.0.1:{way.port}")) as consumer:
        await wait_until(lambda: work.begun == ["a"], description="it is begun")
        way.set(Mode.REFUSED)
        await wait_until(lambda: consumer.is_paused, description="it is paused")
        end.set()
        await wait_until(lambda: "their delete failed: 1" in caplog.text, description="its delete has failed")
        shop.send("b")
        way.reset()
        await wait_until(lambda: consumer.counts.first == 2, description="the next one is done")
        await wait_until(lambda: consumer.counts.duplicate == 1, description="the first comes again")
        assert not consumer.is_paused
    await way.aclose()
    assert (work.begun, shop.left()) == (["a", "b"], 0)


@pytest.mark.parametrize("is_async", [False, True], ids=["boto3", "aiobotocore"])
async def test_messages_of_a_run_that_is_cancelled_as_it_receives_come_again(
    sqs: SqsServer, dedup: Dedup, is_async: bool
) -> None:
    """After the queue's visibility timeout."""
    shop, work, received, go_on = Shop(sqs, seen="1"), Work(), threading.Event(), threading.Event()
    shop.send("a")
    client = aio_client_of(sqs.url) if is_async else nullcontext(shop.client)
    async with client as own:
        hold_replies(own, received, go_on)
        async with Consumer(own, dedup, queue_url=shop.url) as consumer:
            running = asyncio.create_task(consumer.run(work))
            await wait_until(received.is_set, description="a message was received")
            running.cancel()
            go_on.set()
            await asyncio.wait([running])
            assert running.cancelled()
        async with shop.consumer(dedup, work, own) as consumer:
            await wait_until(lambda: consumer.counts.first == 1, description="it is done")
    assert work.done == ["a"]


def hold_replies(client: Any, received: threading.Event, go_on: threading.Event) -> None:
    """Let a client's receive return late."""
    whole = client.receive_message

    def receive(**given: Any) -> Any:
        found = whole(**given)
        received.set()
        assert go_on.wait(10.0)
        return found

    async def receive_async(**given: Any) -> Any:
        found = await whole(**given)
        received.set()
        await wait_until(go_on.is_set, description="it may go on")
        return found

    client.receive_message = receive_async if of_sqs._is_async(client) else receive


async def test_messages_that_wait_for_a_slow_one_are_not_delivered_again(
    sqs: SqsServer, dedup: Dedup
) -> None:
    shop, end = Shop(sqs, fifo=True, seen="1"), asyncio.Event()
    work, extended = Work(lambda order: end.wait()), extensions(shop.client)
    received: list[str] = []
    see_messages(shop.client, lambda message: received.append(message["Body"]))
    for each in "0123456789":
        shop.send(each, MessageGroupId="customer", MessageDeduplicationId=each)
    async with shop.consumer(dedup, work) as consumer:
        await wait_until(lambda: work.begun, description="the first is at work")
        await wait_until(lambda: len(extended) > 60, description="more than two timeouts are over for all")
        end.set()
        await wait_until(lambda: consumer.counts.first == 10, description="all are done")
    assert work.begun == received == list("0123456789")
    assert shop.left() == 0


async def test_a_receipt_handle_that_is_no_longer_valid_ends_nothing(
    sqs: SqsServer, dedup: Dedup, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither at a delete nor at a retry: here an operator purges the queue meanwhile."""
    shop = Shop(sqs)

    def purge(order: str) -> None:
        if order != "c":
            shop.client.purge_queue(QueueUrl=shop.url)
        if order == "b":
            fault(order)

    async with shop.consumer(dedup, Work(purge)) as consumer:
        counts = consumer.counts
        shop.send("a")
        await wait_until(lambda: "by ReceiptHandleIsInvalid" in caplog.text, description="it is logged")
        shop.send("b")
        await wait_until(lambda: counts.retried == 1, description="one failed")
        shop.send("c")
        await wait_until(lambda: counts.first == 2, description="the consumer goes on")


def test_a_binary_attribute_is_a_key() -> None:
    """As text: with `str()` a publisher in another language would get another key."""
    attributes = {"message-id": b"7f3c", "order-id": b"\xff"}
    message = of_sqs.SqsMessage("id", "body", attributes, {}, {})
    assert (of_sqs.identity(message), of_sqs.attribute("order-id")(message)) == ("7f3c", "ff")


async def test_an_error_with_a_character_that_sqs_refuses_is_a_dead_letter(
    sqs: SqsServer, dedup: Dedup
) -> None:
    def give_up(order: str) -> None:
        raise DeadLetterError("no such customer: \x00")

    shop = Shop(sqs)
    shop.send("a")
    async with shop.consumer(dedup, Work(give_up)) as consumer:
        await wait_until(lambda: consumer.counts.dead_lettered, description="it is a dead letter")
    (dead,) = shop.dead_letters()
    assert dead["MessageAttributes"][ERROR]["StringValue"].endswith("no such customer: \ufffd")


async def test_a_turn_ends_with_a_consumer_that_ends_by_the_message_before() -> None:
    turns, begun, scope = KeyTurns(), [], anyio.CancelScope()

    async def second() -> None:
        with scope:
            async with turns.of("customer"):
                begun.append("second")

    async with anyio.create_task_group() as tasks:
        async with turns.of("customer"):
            tasks.start_soon(second)
            await anyio.wait_all_tasks_blocked()
        scope.cancel()  # in the step in which the second message gets its turn
    assert begun == []


async def bill(transaction: Any, message: Any) -> None:
    await transaction.execute("INSERT INTO work VALUES (?)", (message.body,))


WORKER = """
import asyncio, sys
from pathlib import Path
from fastdedup import Dedup
from fastdedup.integrations.sqs import Consumer
from tests.messages.test_sqs import Database, bill, client_of

async def forever(*given):
    if len(given) > 1:
        await bill(*given)
    print("begun", flush=True)
    await asyncio.Event().wait()

async def main(server, redis, url, path, kind):
    inbox = Database(Path(path), is_new=False).inbox if path else None
    async with Dedup(redis, namespace="m", timeout=5.0) as dedup:
        gate = None if kind == "inbox" else dedup
        async with Consumer(client_of(server), gate, queue_url=url, inbox=inbox) as consumer:
            await consumer.run(forever)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("kind", ["gate", "inbox"])
async def test_a_killed_workers_message_is_worked_on_as_its_visibility_ends(
    sqs: SqsServer, redis_url: str, tmp_path: Path, kind: str
) -> None:
    """Not as the gate's lease of 30 s ends. With an inbox the effect is there once: the killed worker's is undone."""
    shop, database, done = Shop(sqs, seen="2"), Database(tmp_path / "shop.db"), []
    has_inbox = kind != "gate"
    shop.send("a")

    async def handler(*given: Any) -> None:
        done.append(given[-1].body)
        if has_inbox:
            await bill(*given)

    path = str(database.path) if has_inbox else ""
    with started([sys.executable, "-c", WORKER, sqs.url, redis_url, shop.url, path, kind]) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "begun\n"
        assert database.effects() == 0
    options: Any = {"queue_url": shop.url, "inbox": database.inbox if has_inbox else None}
    async with (
        opened(redis_url) as dedup,
        Consumer(shop.client, None if kind == "inbox" else dedup, **options) as consumer,
        at_work(consumer, handler),
    ):
        await wait_until(lambda: consumer.counts.first, description="it is done")
        assert (consumer.counts.delivered, consumer.counts.retried) == (1, 0)
    assert (done, database.effects(), shop.left()) == (["a"], int(has_inbox), 0)


async def test_the_page_of_sqs_runs(sqs: SqsServer, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shop, done = Shop(sqs), []
    url = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"
    names = names_of("sqs.md", redis=redis_url, **{url: shop.url})
    monkeypatch.setattr(boto3, "client", lambda kind: shop.client)

    async def on_order(message: Any) -> None:
        done.append(message.body)

    names["on_order"] = on_order
    shop.send("a")
    running = asyncio.create_task(names["main"]())
    made = names["create"](shop.client, sqs.name("made"))
    async with Dedup(redis_url, namespace="m") as dedup, Consumer(shop.client, dedup, queue_url=made):
        pass
    await wait_until(lambda: done == ["a"] and shop.left() == 0, description="it is done")
    await stopped(running)


PROGRAM = """
import asyncio, sys
from fastdedup import Dedup
from fastdedup.integrations.sqs import Consumer
from tests.messages.consumers import a_handler
from tests.messages.test_sqs import client_of
from tests.waiting import wait_until

async def main(sqs, queue, redis):
    async with Dedup(redis) as dedup, Consumer(client_of(sqs), dedup, queue_url=queue, grace=0.0) as consumer:
        running = asyncio.create_task(consumer.run(a_handler))
        await wait_until(lambda: consumer.is_running, description="it runs")
        print("up", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        consumer.stop()
        await running

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_queue_that_hangs_does_not_keep_a_process_from_its_end(sqs: SqsServer, redis_url: str) -> None:
    """The call that was left to its thread kept the interpreter until boto3's read_timeout: 60 s for each try."""
    command = [sys.executable, "-c", PROGRAM, sqs.url, Shop(sqs).url, redis_url]
    with started(command, stdin=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "up\n"
        with sqs.frozen():
            program.communicate("stop\n", timeout=40)
    assert program.returncode == 0
