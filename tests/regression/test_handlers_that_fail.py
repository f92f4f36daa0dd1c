"""A handler's error, of whatever kind, is a failed attempt, and the next one comes in time."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from fastdedup import Dedup, FailedError, LocalLRU, Record, Resolution, ResultError, UnavailableError
from fastdedup.events import ConsumerEnded, DeadLettered, Event
from fastdedup.messages import Action, MessageRules, Reason
from fastdedup.messages.blocking import Attempt, BlockingWay
from fastdedup.messages.decisions import Decision
from fastdedup.messages.deliveries import Deliveries
from fastdedup.messages.headers import ERROR, dead_letter_headers
from fastdedup.messages.keys import NoKeyError
from fastdedup.sql import Inbox
from fastdedup.sync import Claim
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.testing import FakeStore

from ..brokers import RabbitServer
from ..messages.test_rabbitmq import shop as rabbit_shop
from ..messages.test_redis_streams import Work, shop_of
from ..messages.test_rules import Billing
from ..messages.test_rules import Consumer as BareConsumer
from ..messages.test_rules import Shop as Database
from ..servers import RedisServer
from ..virtual import virtual
from ..waiting import wait_until

# A handler's error that is no `Exception`, such as a panic of Rust code, is a failed attempt, and no end of
# all. It ended the consumer without a line or an event, and cut off the other handlers; the message waited
# for nobody, and ended the next consumer, too. What ends the process, such as `sys.exit()`, ends `run`, and
# that is told.


class Panic(BaseException):
    """As PyO3's PanicException, and what `pytest.fail` raises."""


async def panics() -> None:
    raise Panic("index out of range")


async def panics_in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(panics())


@pytest.mark.parametrize("work_of", [panics, panics_in_a_group])
async def test_a_panic_is_tried_again_then_dead_lettered(
    server: RedisServer,
    redis_url: str,
    caplog: pytest.LogCaptureFixture,
    work_of: Callable[[], Awaitable[None]],
) -> None:
    events: list[Event] = []
    end = asyncio.Event()
    work = Work(lambda order: work_of() if order == "bad" else end.wait())
    async with (
        shop_of(server) as shop,
        Dedup(redis_url, namespace="m", on_event=events.append) as dedup,
        shop.consumer(dedup, work, attempts=2, dead_letter=shop.dead) as consumer,
    ):
        shop.add("beside", "bad")
        await wait_until(lambda: consumer.counts.dead_lettered, description="it is a dead letter")
        end.set()
        await wait_until(lambda: consumer.counts.first, description="the other one is done")
        assert consumer.is_running
    assert sorted(work.begun) == ["bad", "bad", "beside"]
    name = "Panic" if work_of is panics else "BaseExceptionGroup"
    assert [event for event in events if isinstance(event, DeadLettered)] == [
        DeadLettered("billing", "bad", "failed", 2, name)
    ]
    assert f"attempt 1 of 2 failed: consumer='billing' key='bad' error={name} at " in caplog.text


async def test_a_consumer_of_rabbitmq_goes_on(rabbitmq: RabbitServer, redis_url: str) -> None:
    async with rabbit_shop(rabbitmq, redis_url) as orders:
        orders.then = lambda message: panics() if message.message_id == "bad" else None
        async with orders.consuming(prefetch=1, attempts=2) as consumer:
            await orders.publish("bad", "later")
            await wait_until(lambda: consumer.counts.dead_lettered, description="it is a dead letter")
            await wait_until(lambda: consumer.counts.first, description="the next one is done")
        assert orders.runs["bad"] == 2
        assert len(await orders.dead()) == 1


@pytest.mark.parametrize("gated", [True, False])
async def test_the_transaction_of_a_panic_is_rolled_back(redis_url: str, tmp_path: Path, gated: bool) -> None:
    shop = Database(tmp_path / "shop.db")
    async with Dedup(redis_url, namespace="m") as dedup:
        consumer = Billing(dedup if gated else None, inbox=shop.inbox)
        consumer.then = panics
        decision = await consumer.get()
        assert (decision.action, decision.reason) == (Action.RETRY, Reason.FAILED)
        assert isinstance(decision.error, Panic)
        assert shop.effects() == 0
        consumer.then = lambda: None
        assert (await consumer.get()).reason is Reason.FIRST
        assert shop.effects() == 1


@pytest.mark.parametrize("inbox", [True, False])
@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt, GeneratorExit])
async def test_what_ends_the_process_is_no_failed_attempt(
    redis_url: str, tmp_path: Path, end: type[BaseException], inbox: bool
) -> None:
    """Alone, or beside others in a group of anyio's."""
    shop = Database(tmp_path / "shop.db")
    async with Dedup(redis_url, namespace="m") as dedup:
        consumer = Billing(dedup, inbox=shop.inbox) if inbox else BareConsumer(dedup)
        for error in (end(), BaseExceptionGroup("of anyio's", [ValueError(), end()])):
            with pytest.raises(type(error)):
                await consumer.deliveries.handle({"id": "order-7"}, raising(error), consumer.lay)
        assert (await consumer.get()).attempts == 3, "its key was free at once"


def raising(error: BaseException) -> Callable[..., Awaitable[Any]]:
    async def handler(*given: Any) -> None:
        raise error

    return handler


def test_an_end_of_the_process_is_told(
    server: RedisServer, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[Event] = []

    async def main() -> None:
        async with (
            shop_of(server) as shop,
            Dedup(redis_url, namespace="m", on_event=events.append) as dedup,
            shop.make(dedup) as consumer,
        ):
            shop.add("a")
            await consumer.run(Work(lambda order: sys.exit(3)))

    with pytest.raises(SystemExit) as ended:
        asyncio.run(main())
    assert ended.value.code == 3
    assert [event for event in events if isinstance(event, ConsumerEnded)] == [
        ConsumerEnded("billing", "SystemExit: 3")
    ]
    assert "consumer 'billing' has ended, and takes no more messages: SystemExit: 3" in caplog.text


# An exception whose `__str__` fails ended its consumer as the dead letter was laid down, again at each
# start.


TEXT = "without a text: its own code raised KeyError"


class Mute(Exception):
    def __str__(self) -> str:
        return str({}["text"])

    __repr__ = __str__


def fail(*_: Any) -> Any:
    raise Mute


class Codec:
    dumps = loads = fail


async def work(*_: Any) -> None:
    raise Mute


def rules(**options: Any) -> MessageRules:
    return MessageRules("orders", str, wait=0.0, **options)


async def test_an_error_without_a_text_becomes_a_dead_letter(server: RedisServer) -> None:
    async with (
        shop_of(server) as shop,
        Dedup(server.url, namespace="m", timeout=5.0) as dedup,
        shop.consumer(dedup, work, attempts=1, dead_letter=shop.dead) as consumer,
    ):
        shop.add("m-1")
        await wait_until(shop.dead_letters, description="a dead letter")
        await wait_until(lambda: not shop.pending(), description="its entry is acknowledged")
        assert consumer.is_running
        (letter,) = shop.dead_letters()
        assert letter[ERROR.encode()].decode() == f"Mute: Mute {TEXT}"


async def test_rules_that_raise_it_make_dead_letters() -> None:
    async def lay(decision: Decision) -> None:
        assert TEXT in dead_letter_headers(decision, "orders")[ERROR]

    async with Dedup("memory://", namespace="m") as dedup:
        for ours in (MessageRules("orders", fail), rules(fingerprint=fail)):
            decision = await Deliveries(ours, dedup).handle("m-1", work, lay)
            assert decision.action is Action.DEAD_LETTER


async def test_the_end_by_an_error_without_a_text_is_told(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Event] = []
    async with Dedup("memory://", namespace="m", on_event=told.append) as dedup:
        with caplog.at_level(logging.ERROR, "fastdedup.messages"):
            Deliveries(rules(), dedup).tell_end(Mute())
    assert TEXT in caplog.text
    assert [type(event) for event in told] == [ConsumerEnded]


async def test_an_error_without_a_text_is_recorded() -> None:
    async with Dedup("memory://", namespace="m") as dedup:
        await (await dedup.claim("failed")).fail(Mute())
        with pytest.raises(FailedError, match=TEXT):
            (await dedup.claim("failed")).replay()
        assert TEXT in Resolution.unknown(Mute()).value["message"]


def test_a_task_that_raises_it_is_recorded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with SyncDedup("memory://", namespace="m") as dedup:
        way = BlockingWay(rules(attempts=1), dedup)
        attempt = way.begin("m-1")
        assert isinstance(attempt, Attempt)
        with monkeypatch.context() as patch:  # such as a task's time limit while the outcome is sent
            patch.setattr(Claim, "say", raise_error)
            assert attempt.succeed().action is Action.ACK
        assert "may not be recorded: RuntimeError" in caplog.text
        assert attempt.fail(Mute()).action is Action.DEAD_LETTER
        again = way.begin("m-1")
        assert isinstance(again, Decision)
        assert TEXT in str(again.error)


async def test_a_codec_that_raises_it_is_told() -> None:
    async with Dedup("memory://", namespace="m", codec=Codec()) as dedup:
        with pytest.raises(ResultError, match=TEXT):
            await (await dedup.claim("key")).complete(1)


# A key whose own methods raise ended its consumer, again at each start, while the messages beside it
# waited.


def raise_error(*_: Any) -> Any:
    raise RuntimeError("no text")


class MuteKey(str):
    __str__ = __repr__ = __format__ = __len__ = __bool__ = encode = raise_error  # type: ignore[assignment]
    __slots__ = ()


class Column:
    """A value of a data frame: its truth is an error."""

    __bool__ = raise_error

    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")


class Kind(str, Enum):  # noqa: UP042 -- a StrEnum's text is its value anyway
    ORDER = "order"


def key_of(found: Any) -> str:
    return MessageRules("orders", lambda message: message, wait=0.0).key_of(found)


@pytest.mark.parametrize(
    ("make", "text"),
    [(lambda: MuteKey("m-1"), "m-1"), (lambda: Kind.ORDER, "order")],
    ids=["raises", "enum"],
)
def test_a_subclass_of_text_is_taken_as_plain_text(make: Callable[[], str], text: str) -> None:
    key = key_of(make())
    assert type(key) is str
    assert key == text


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: MuteKey(""), "has no key"),
        (lambda: None, "has no key"),
        (Column, "got Column"),
        (lambda: 0, "got int"),
        (lambda: b"", "got bytes"),
    ],
    ids=["empty", "none", "column", "zero", "bytes"],
)
def test_no_value_of_the_rule_raises_another_error(make: Callable[[], Any], why: str) -> None:
    with pytest.raises(NoKeyError, match=why):
        key_of(make())


async def test_a_stream_with_such_a_key_is_worked_off(server: RedisServer) -> None:
    def key(entry: Any) -> str:
        return MuteKey(entry.fields[b"id"].decode())

    work = Work()
    async with (
        shop_of(server) as shop,
        Dedup(server.url, namespace="keys", timeout=5.0) as dedup,
        shop.consumer(dedup, work, key=key, dead_letter=shop.dead) as consumer,
    ):
        shop.add("m-1", "m-1", "m-2")
        await wait_until(lambda: consumer.counts.delivered == 3, description="all are delivered")
        await wait_until(lambda: not shop.pending(), description="all are acknowledged")
        assert consumer.is_running
    assert sorted(work.done) == ["m-1", "m-2"]


@pytest.mark.parametrize(
    ("make", "expected"),
    [(MuteKey, Reason.FIRST), (lambda _: Column(), Reason.NO_KEY)],
    ids=["text", "column"],
)
async def test_the_decision_names_the_plain_key(make: Callable[[str], Any], expected: Reason) -> None:
    async with Dedup("memory://", namespace="m") as dedup:
        consumer = BareConsumer(dedup, key=lambda message: make("m-1"))
        decision = await consumer.get()
    assert decision.reason is expected
    assert decision.action is (Action.ACK if expected is Reason.FIRST else Action.DEAD_LETTER)
    assert type(decision.key) is (str if expected is Reason.FIRST else type(None))


# A message whose handler failed while its gate's store was away is tried again soon after the store is
# back. Neither the short lease nor the release of its key had reached the store, and nobody sent them
# again: with a lease of 30 seconds an outage of one second delayed the next attempt by 30. Without a delay
# between attempts it was right.


DELAY = 0.3
NEVER = 600.0


class Message:
    """A message whose handler fails at its first attempt, as an outage begins."""

    def __init__(
        self, dedup: Dedup, outage: Callable[[], object], delay: float, inbox: Inbox | None = None
    ) -> None:
        rules = MessageRules("billing", lambda message: "m-1", wait=0.0, retry_delay=delay)
        self._deliveries = Deliveries(rules, dedup, inbox)
        self._dedup = dedup
        self._outage = outage
        self._key = rules.gate_key("m-1") if inbox is None else inbox.gate_key("m-1")
        self.attempts = 0

    async def handler(self, *given: Any) -> None:
        self.attempts += 1
        if self.attempts == 1:
            self._outage()
            raise ValueError("no such customer")

    async def deliver(self) -> Reason:
        return (await self._deliveries.handle(None, self.handler, lay)).reason

    async def record(self) -> Record | None:
        """Return what the store holds of its key; None also while the store does not answer."""
        with suppress(UnavailableError):
            return await self._dedup.get(self._key)
        return None

    async def is_held(self, at_most: float) -> bool:
        """True where the key is held, and for so many seconds at most."""
        record = await self.record()
        return record is not None and record.state == "processing" and (record.lease or 0.0) <= at_most


async def lay(decision: Decision) -> None:
    raise AssertionError("it is no dead letter yet")


@asynccontextmanager
async def durable() -> AsyncIterator[RedisServer]:
    """A Redis that keeps its data when it is killed."""
    with RedisServer("--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


async def test_a_killed_redis_delays_no_retry_by_a_lease(server: RedisServer) -> None:
    def outage(order: str) -> None:
        if len(work.begun) == 1:
            redis.kill()
            raise ValueError("no such customer")

    work = Work(outage)
    async with (
        durable() as redis,
        shop_of(server) as shop,
        Dedup(redis.url, namespace="m", lease=NEVER, timeout=0.1) as dedup,
        shop.consumer(dedup, work, retry_delay=DELAY) as consumer,
    ):
        shop.add("order-7")
        await wait_until(lambda: consumer.is_paused, description="the next attempt waits for its gate")
        redis.start()
        await wait_until(lambda: work.done, description="it begins")
        assert work.begun == ["order-7"] * 2


@pytest.mark.parametrize("gated_inbox", [False, True], ids=["gate", "gate and inbox"])
@pytest.mark.parametrize("way", ["refused", "frozen", "lost_reply"])
async def test_no_attempt_comes_before_the_delay_is_over(way: str, gated_inbox: bool, tmp_path: Path) -> None:
    """The outage is shorter than the delay: the key is then held until that is over."""
    store = FakeStore()
    inbox = Database(tmp_path / "shop.db").inbox if gated_inbox else None
    async with Dedup(store, namespace="m", lease=2 * NEVER, timeout=0.05) as dedup:
        message = Message(dedup, lambda: store.outage.start(way), NEVER, inbox)
        assert await message.deliver() is Reason.FAILED
        store.outage.stop()
        await wait_until(lambda: message.is_held(at_most=NEVER), description="it has the shorter lease")
        # What had no reply is sent once more; after the clock's jump it would begin the delay anew.
        await wait_until(lambda: dedup.gate.connections.orphan_counts()[1] == 0, description="it was sent")
        assert await message.deliver() is Reason.IN_PROGRESS
        store.clock.advance(NEVER)
        assert await message.deliver() is Reason.FIRST
        assert message.attempts == 2


async def test_a_delay_that_is_over_frees_the_key_at_once(store: FakeStore) -> None:
    async with Dedup(store, namespace="m", lease=NEVER, timeout=0.05) as dedup:
        message = Message(dedup, lambda: store.outage.start("refused"), 0.01)
        assert await message.deliver() is Reason.FAILED
        store.outage.stop()

        async def is_free() -> bool:
            record = await message.record()
            return record is not None and record.state == "released"

        await wait_until(is_free, description="the key is free")
        assert await message.deliver() is Reason.FIRST


@virtual
async def test_a_gate_that_closes_sets_the_shorter_lease_first(store: FakeStore) -> None:
    async with Dedup(store, namespace="m", lease=2 * NEVER, timeout=1.0) as dedup:
        message = Message(dedup, lambda: store.outage.start("refused"), NEVER)
        assert await message.deliver() is Reason.FAILED
        assert dedup.gate.connections.orphan_counts()[1] == 1
        store.outage.stop()
    async with dedup:
        assert await message.is_held(at_most=NEVER)


async def test_a_policy_that_frees_the_key_leaves_nothing_to_send_again(store: FakeStore) -> None:
    async with Dedup(store, namespace="m", lease=NEVER, timeout=0.05, on_unavailable=LocalLRU()) as dedup:
        message = Message(dedup, lambda: store.outage.start("refused"), DELAY)
        assert await message.deliver() is Reason.FAILED
        assert dedup.gate.connections.orphan_counts()[1] == 0
        assert await message.deliver() is Reason.FIRST
        store.outage.stop()
