"""The rules of consumers, row by row, on a real Redis and a real database, without a broker."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, nullcontext
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import aiosqlite
import pytest

from fastdedup import ConfigError, Dedup, Resolution
from fastdedup.errors import RetryTransaction
from fastdedup.events import ConsumerPaused, ConsumerResumed, DeadLettered, Event, GateBypassed
from fastdedup.messages import Action, Decision, MessageRules, Reason, body_digest
from fastdedup.messages.deliveries import Deliveries
from fastdedup.messages.keys import gate_key, text_of
from fastdedup.messages.rules import LAYING_PAUSE
from fastdedup.messages.settings import deliveries_of
from fastdedup.sql import Inbox
from fastdedup.sql.rules import TABLE

from ..fixtures import async_fixture
from ..inbox_file import make_tables, transaction, work_in
from ..servers import RedisServer
from ..waiting import cancel, wait_until
from .consumers import Answers

Message = dict[str, Any]
Open = Callable[..., AbstractAsyncContextManager[Any]]
WEEK = timedelta(days=7)


def order(number: int = 7, **more: Any) -> Message:
    return {"id": f"order-{number}", **more}


class Consumer:
    """A consumer without a broker: what its handler does can be told, and what came of it be seen."""

    def __init__(self, dedup: Dedup | None, **options: Any) -> None:
        names = ("begin", "inbox", "remember", "resolve")
        begin, inbox, remember, resolve = (options.pop(name, None) for name in names)
        options = {"key": lambda message: message.get("id"), "wait": 0.0, **options}
        rules = MessageRules("orders", **options)
        self.dedup: Any = dedup
        self.deliveries = Deliveries(rules, dedup, inbox, begin, remember, resolve)
        self.runs: list[Any] = []
        self.dead: list[Decision] = []
        self.then: Callable[[], Any] = lambda: None

    async def handler(self, *given: Any) -> Any:
        self.runs.append(given[-1])
        found = self.then()
        return await found if asyncio.iscoroutine(found) else found

    async def begin(self) -> tuple[asyncio.Task[Decision], asyncio.Event]:
        """Begin with a message; return its task, and the event that lets the handler end."""
        begun, end = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            begun.set()
            await end.wait()

        self.then = work
        first = asyncio.create_task(self.get())
        await begun.wait()
        return first, end

    async def lay(self, decision: Decision) -> None:
        self.dead.append(decision)

    async def get(self, message: Message | None = None, **more: Any) -> Decision:
        return await self.deliveries.handle(message or order(), self.handler, self.lay, **more)


def fault() -> None:
    raise ValueError("no such customer")


@pytest.fixture
def events() -> list[Event]:
    return []


@asynccontextmanager
async def opened(url: str, events: list[Event], **options: Any) -> AsyncIterator[Dedup]:
    async with Dedup(url, namespace="m", timeout=5.0, on_event=events.append, **options) as dedup:
        yield dedup


@pytest.fixture
def open_consumer(redis_url: str, events: list[Event]) -> Open:
    """Opens a consumer with a gate of its own, which tells its events."""

    @asynccontextmanager
    async def open_one(**options: Any) -> AsyncIterator[Consumer]:
        async with opened(redis_url, events) as dedup:
            yield Consumer(dedup, **options)

    return open_one


def told(decision: Decision) -> tuple[Action, Reason]:
    return decision.action, decision.reason


consumer = async_fixture(lambda open_consumer: open_consumer())


# The gate alone


async def test_a_ledger_remembers_what_is_done(redis_url: str, events: list[Event]) -> None:
    """In place of a record for each message; what failed has a record, and may be taken again."""
    async with opened(redis_url, events) as dedup:
        ledger = dedup.ledger("done", window=WEEK, capacity=1000)
        consumer = Consumer(dedup, remember=ledger, attempts=1)
        assert [(await consumer.get()).reason for _ in range(2)] == [Reason.FIRST, Reason.DUPLICATE]
        assert (await ledger.stats()).ids == 1
        consumer.then = fault
        assert told(await consumer.get(order(8))) == (Action.DEAD_LETTER, Reason.FAILED)
        consumer.then = lambda: None
        assert (await consumer.get(order(8))).reason is Reason.DUPLICATE
        assert told(await consumer.get(order(8), again=True)) == (Action.ACK, Reason.FIRST)
        assert (await ledger.stats()).ids == 2
        consumer.deliveries.check_memory(WEEK.total_seconds(), "ack_wait")
        with pytest.raises(ConfigError, match="ack_wait"):
            consumer.deliveries.check_memory(WEEK.total_seconds() + 1, "ack_wait")


async def test_abandoned_work_is_resolved_before_the_handler_runs(open_consumer: Open) -> None:
    """A consumer asks after a failed attempt, too: done is acknowledged, unknown goes to the dead letters."""
    check = Answers(Resolution.not_done(), Resolution.done("before"), Resolution.unknown("ask the bank"))
    async with open_consumer(resolve=check.later, keep_result=True) as consumer:
        consumer.then = fault
        assert [(await consumer.get()).action for _ in range(2)] == [Action.RETRY] * 2
        assert len(consumer.runs) == 2
        assert told(await consumer.get()) == (Action.ACK, Reason.FIRST)
        assert told(await consumer.get(order(8))) == (Action.RETRY, Reason.FAILED)
        assert told(await consumer.get(order(8))) == (Action.DEAD_LETTER, Reason.FAILED)
        assert "ask the bank" in str(consumer.dead[0].error)
        assert (len(consumer.runs), check.attempts) == (3, [2, 3, 2])
        assert (await consumer.get()).result == "before"
    with pytest.raises(ConfigError, match="resolve goes with a gate alone"):
        Consumer(None, inbox=Inbox("orders", keep=WEEK), resolve=check.later)


async def test_the_result_is_kept_for_duplicates_on_wish(open_consumer: Open) -> None:
    async with open_consumer(keep_result=True) as consumer:
        consumer.then = lambda: {"invoice": 7}
        assert [(await consumer.get()).result for _ in range(2)] == [{"invoice": 7}] * 2


async def test_a_result_that_cannot_be_kept_is_left_out(open_consumer: Open) -> None:
    async with open_consumer(keep_result=True) as consumer:
        consumer.then = object
        assert told(await consumer.get()) == (Action.ACK, Reason.FIRST)
        assert (await consumer.get()).result is None


async def test_a_twin_at_work_delays_the_message(open_consumer: Open) -> None:
    async with open_consumer(wait=0.05) as consumer:
        first, end = await consumer.begin()
        decision = await consumer.get()
        assert told(decision) == (Action.RETRY, Reason.IN_PROGRESS)
        assert decision.attempts == 0
        assert consumer.deliveries.counts.held == 1
        end.set()
        assert (await first).reason is Reason.FIRST


async def test_a_twin_that_ends_in_time_wakes_the_held_message(open_consumer: Open) -> None:
    async with open_consumer(wait=30.0) as consumer:
        first, end = await consumer.begin()
        second = asyncio.create_task(consumer.get())
        await wait_until(lambda: consumer.deliveries.counts.held, description="the second is held")
        end.set()
        assert [(await first).reason, (await second).reason] == [Reason.FIRST, Reason.DUPLICATE]


@pytest.mark.parametrize("wait", [0.0, 30.0], ids=["turned away", "held"])
async def test_a_copy_begins_no_attempt_before_the_delay_is_over(open_consumer: Open, wait: float) -> None:
    async with open_consumer(wait=wait, retry_delay=0.3) as consumer:
        consumer.then = fault
        started = asyncio.get_running_loop().time()
        assert told(await consumer.get()) == (Action.RETRY, Reason.FAILED)
        consumer.then = lambda: None
        found = await consumer.get()
        if wait:
            assert (found.reason, found.attempts) == (Reason.FIRST, 2)
            assert asyncio.get_running_loop().time() - started >= 0.299  # uvloop counts whole milliseconds
        else:
            assert (told(found), found.attempts) == ((Action.RETRY, Reason.IN_PROGRESS), 0)
            assert len(consumer.runs) == 1


async def test_a_failed_handler_is_retried_then_dead_lettered(
    open_consumer: Open, events: list[Event]
) -> None:
    async with open_consumer(attempts=3) as consumer:
        consumer.then = fault
        decisions = [await consumer.get() for _ in range(4)]
        assert [told(each) for each in decisions] == [
            (Action.RETRY, Reason.FAILED),
            (Action.RETRY, Reason.FAILED),
            (Action.DEAD_LETTER, Reason.FAILED),
            (Action.ACK, Reason.DUPLICATE),
        ]
        assert [each.attempts for each in decisions[:3]] == [1, 2, 3]
        assert len(consumer.runs) == 3
        assert [str(each.error) for each in consumer.dead] == ["no such customer"]
        assert [event for event in events if isinstance(event, DeadLettered)] == [
            DeadLettered("orders", "order-7", "failed", 3, "ValueError")
        ]


async def test_attempts_that_the_message_tells_of_count_too(open_consumer: Open) -> None:
    async with open_consumer(attempts=3) as consumer:
        consumer.then = fault
        assert (await consumer.get(failed=2)).action is Action.DEAD_LETTER


async def test_attempts_of_consumers_that_died_count(redis_url: str, events: list[Event]) -> None:
    async with opened(redis_url, events) as dedup:
        for _ in range(2):  # as consumers leave it that die: acquired, and never settled
            assert (await dedup.claim(gate_key("orders", "order-7"), lease=0.02, wait=5.0)).acquired
        consumer = Consumer(dedup, attempts=2, wait=5.0)
        assert told(await consumer.get()) == (Action.DEAD_LETTER, Reason.EXHAUSTED)
        assert consumer.runs == []


async def test_a_release_of_the_same_record_elsewhere_spends_an_attempt(open_consumer: Open) -> None:
    """As of an endpoint that claims the consumer's record; `docs/recipes/migration.md`."""
    async with open_consumer(attempts=2) as consumer:
        for _ in range(2):
            await (await consumer.dedup.claim(gate_key("orders", "order-7"))).release()
        decision = await consumer.get()
        assert told(decision) == (Action.DEAD_LETTER, Reason.EXHAUSTED)
        assert "another program has claimed and released its key" in str(decision.error)
        assert not consumer.runs


async def test_another_message_with_the_same_key_is_dead_lettered(open_consumer: Open) -> None:
    async with open_consumer(fingerprint=lambda message: message["total"]) as consumer:
        await consumer.get(order(total=1))
        assert told(await consumer.get(order(total=2))) == (Action.DEAD_LETTER, Reason.MISMATCH)
        assert told(await consumer.get(order(total=None))) == (Action.ACK, Reason.DUPLICATE), "not compared"


@pytest.mark.parametrize(
    "message",
    [{"total": 1}, {"id": ""}, {"id": None}, {"id": 7}, {"id": "x" * 1025}, {"id": "\ud800"}],
    ids=repr,
)
async def test_a_message_without_a_usable_key_is_dead_lettered(consumer: Consumer, message: Message) -> None:
    assert told(await consumer.get(message)) == (Action.DEAD_LETTER, Reason.NO_KEY)
    assert consumer.runs == []


async def test_a_key_rule_that_fails_is_no_key(open_consumer: Open) -> None:
    async with open_consumer(key=lambda message: message["order"]["id"]) as consumer:
        decision = await consumer.get()
        assert told(decision) == (Action.DEAD_LETTER, Reason.NO_KEY)
        assert "KeyError: 'order'" in str(decision.error)


async def test_a_foreign_record_is_no_usable_key(server: RedisServer, events: list[Event]) -> None:
    async with opened(server.url, events) as dedup:
        with server.client() as raw:
            raw.set("m:=orders|order-7", "another program's value", ex=60)
        assert told(await Consumer(dedup).get()) == (Action.DEAD_LETTER, Reason.NO_KEY)


async def test_a_foreign_record_in_place_of_the_claim_buries_no_work_that_is_done(
    server: RedisServer, events: list[Event]
) -> None:
    """A replay of the dead letter would do it again."""
    async with opened(server.url, events) as dedup:
        consumer = Consumer(dedup)
        with server.client() as raw:
            consumer.then = lambda: raw.set("m:=orders|order-8", "another program's value", ex=60)
            assert told(await consumer.get(order(8))) == (Action.ACK, Reason.FIRST)
        assert consumer.dead == []


async def test_where_no_dead_letter_is_laid_nothing_is_settled(open_consumer: Open) -> None:
    async with open_consumer(attempts=1) as consumer:
        consumer.then = fault

        async def refused(decision: Decision) -> None:
            raise ConnectionError("the broker is gone")

        with pytest.raises(ConnectionError):
            await consumer.deliveries.handle(order(), consumer.handler, refused)
        assert told(await consumer.get()) == (Action.DEAD_LETTER, Reason.EXHAUSTED)


async def test_a_dead_letter_that_is_taken_again_is_worked_on(open_consumer: Open) -> None:
    async with open_consumer(attempts=1) as consumer:
        consumer.then = fault
        await consumer.get()
        consumer.then = lambda: None
        assert (await consumer.get()).reason is Reason.DUPLICATE
        assert told(await consumer.get(again=True)) == (Action.ACK, Reason.FIRST)
        assert (await consumer.get(again=True)).reason is Reason.DUPLICATE


async def test_a_message_taken_again_twice_is_worked_on_once(open_consumer: Open) -> None:
    async with open_consumer(attempts=1, wait=5.0) as consumer:
        consumer.then = fault
        await consumer.get()
        consumer.then = lambda: asyncio.sleep(0)
        found = await asyncio.gather(*(consumer.get(again=True) for _ in range(8)))
        assert [each.reason for each in found].count(Reason.FIRST) == 1
        assert len(consumer.runs) == 2


async def test_an_outage_holds_the_message_and_spends_no_attempt(
    server: RedisServer, events: list[Event]
) -> None:
    async with Dedup(server.url, namespace="m", timeout=0.5, on_event=events.append) as dedup:
        consumer = Consumer(dedup)
        await consumer.get(order(1))
        server.kill()
        held = [asyncio.create_task(consumer.get(order(number))) for number in (2, 3)]
        await wait_until(lambda: consumer.deliveries.counts.held == 2, description="both are held")
        assert consumer.deliveries.is_paused
        server.start()
        decisions = await asyncio.gather(*held)
        assert [(each.reason, each.attempts) for each in decisions] == [(Reason.FIRST, 1)] * 2
        assert not consumer.deliveries.is_paused
        kinds = [type(event) for event in events if isinstance(event, ConsumerPaused | ConsumerResumed)]
        assert kinds == [ConsumerPaused, ConsumerResumed]


async def test_a_delay_of_less_than_a_millisecond_is_none(open_consumer: Open) -> None:
    """No lease is that short, and the whole one must not stay."""
    async with open_consumer(wait=0.0, retry_delay=0.0005) as consumer:
        consumer.then = fault
        assert told(await consumer.get()) == (Action.RETRY, Reason.FAILED)
        consumer.then = lambda: None
        assert (await consumer.get()).reason is Reason.FIRST


async def test_a_twin_at_work_is_not_met_again_at_once(open_consumer: Open) -> None:
    """No attempt is spent, so the message would come again without end, thousands of times a second."""
    async with open_consumer(wait=0.0, retry_delay=0.0) as consumer:
        first, end = await consumer.begin()
        since = monotonic()
        assert (await consumer.get()).reason is Reason.IN_PROGRESS
        assert monotonic() - since > LAYING_PAUSE / 2  # the clock of a loop is coarse
        end.set()
        await first


async def test_a_failure_that_cannot_be_told_is_no_success(server: RedisServer, events: list[Event]) -> None:
    """Leaving the claim would record one; so the message would be lost."""
    async with Dedup(server.url, namespace="m", timeout=0.1, lease=1.0, on_event=events.append) as dedup:
        consumer = Consumer(dedup)

        def fail() -> None:
            server.kill()
            fault()

        consumer.then = fail
        assert told(await consumer.get()) == (Action.RETRY, Reason.FAILED)


async def test_a_held_message_can_be_cancelled(server: RedisServer, events: list[Event]) -> None:
    async with Dedup(server.url, namespace="m", timeout=0.1, on_event=events.append) as dedup:
        consumer = Consumer(dedup)
        server.kill()
        held = asyncio.create_task(consumer.get())
        await wait_until(lambda: consumer.deliveries.is_paused, description="it is held")
        await cancel(held)
        assert not consumer.deliveries.is_paused


@pytest.mark.parametrize("has_inbox", [False, True], ids=["gate", "gate and inbox"])
@pytest.mark.parametrize(
    ("of_gate", "own", "most"), [(30.0, None, 20.0), (30.0, 25.0, 25.0), (5.0, None, 5.0), (5.0, 60.0, 60.0)]
)
async def test_the_lease_follows_the_brokers_timeout_unless_one_is_given(
    redis_url: str, tmp_path: Path, has_inbox: bool, of_gate: float, own: float | None, most: float
) -> None:
    inbox = Shop(tmp_path / "shop.db").inbox if has_inbox else None
    async with opened(redis_url, [], lease=of_gate) as dedup:
        consumer = Consumer(dedup, lease=own, inbox=inbox)
        consumer.deliveries.follow(30.0)
        first, end = await consumer.begin()
        (record,) = (await dedup.records()).records
        assert record.lease is not None
        assert most - 3.0 < record.lease < most + 0.1
        end.set()
        assert (await first).action is Action.ACK


async def test_a_lost_lease_stops_the_handler_and_retries(redis_url: str, events: list[Event]) -> None:
    async with opened(redis_url, events, lease=0.3) as dedup:
        consumer = Consumer(dedup)
        stopped = False

        async def work() -> None:
            nonlocal stopped
            await dedup.forget(gate_key("orders", "order-7"))
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                stopped = True
                raise

        consumer.then = work
        assert told(await consumer.get()) == (Action.RETRY, Reason.LOST)
        assert stopped


async def test_work_that_is_done_is_acknowledged_though_its_lease_is_lost(consumer: Consumer) -> None:
    consumer.then = lambda: consumer.dedup.forget(gate_key("orders", "order-7"))
    assert told(await consumer.get()) == (Action.ACK, Reason.FIRST)


async def test_a_cancelled_handler_frees_the_key(consumer: Consumer) -> None:
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    consumer.then = work
    task = asyncio.create_task(consumer.get())
    await begun.wait()
    await cancel(task)
    consumer.then = lambda: None
    assert (await consumer.get()).reason is Reason.FIRST


# With an inbox


class Shop:
    """An SQLite database with an inbox and a table of effects; `away` makes it refuse, and `before` runs first."""

    def __init__(self, path: Path, *, is_new: bool = True) -> None:
        self.path = path
        self.away = False
        self.lose_commit = False
        self.refuse_commit = False
        self.before: Callable[[], Awaitable[None]] | None = None
        if is_new:
            make_tables(path)
        self.inbox = Inbox("billing", keep=WEEK, begin=self.begin)

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[aiosqlite.Connection]:
        if self.away:
            raise ConnectionRefusedError("the database is down")
        if self.before is not None:
            await self.before()
        async with transaction(self.path) as connection:
            yield connection
            if self.refuse_commit:
                raise ValueError("an event before the COMMIT says no")
        if self.lose_commit:
            self.lose_commit = False
            raise ConnectionResetError("the reply was lost")

    def effects(self) -> int:
        return len(work_in(self.path))


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "shop.db")


class Billing(Consumer):
    """A consumer whose work is a row in the inbox's transaction."""

    async def handler(self, *given: Any) -> Any:
        transaction, message = given
        await transaction.execute("INSERT INTO work VALUES (?)", (message["id"],))
        return await super().handler(message)

    async def held(self, shop: Shop) -> Decision:
        """Get a message, which is held because the database is away, and return what is decided once it is back."""
        held = asyncio.create_task(self.get())
        await wait_until(lambda: self.deliveries.is_paused, description="it is held")
        shop.away = False
        return await held


@pytest.fixture
def open_billing(redis_url: str, shop: Shop, events: list[Event], gated: bool) -> Open:
    """Opens a consumer with the inbox, behind a gate or alone; each test runs with both."""

    @asynccontextmanager
    async def open_one(**options: Any) -> AsyncIterator[Billing]:
        async with opened(redis_url, events) as dedup:
            yield Billing(dedup if gated else None, inbox=shop.inbox, **options)

    return open_one


@pytest.fixture(params=[True, False], ids=["gate and inbox", "inbox alone"])
def gated(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


class TestInbox:
    async def test_a_copy_begins_no_attempt_before_the_delay_is_over(
        self, open_billing: Open, gated: bool
    ) -> None:
        """Without a gate copies cannot know of each other's failures."""
        async with open_billing(retry_delay=30.0) as consumer:
            consumer.then = fault
            assert (await consumer.get()).reason is Reason.FAILED
            assert (await consumer.get()).reason is (Reason.IN_PROGRESS if gated else Reason.FAILED)

    async def test_done_once(self, open_billing: Open, shop: Shop) -> None:
        async with open_billing(keep_result=True) as consumer:
            consumer.then = lambda: "invoice 7"
            found = [await consumer.get() for _ in range(2)]
            assert [each.reason for each in found] == [Reason.FIRST, Reason.DUPLICATE]
            assert [each.result for each in found] == ["invoice 7"] * 2
            assert shop.effects() == 1

    async def test_a_failed_handler_leaves_nothing(self, open_billing: Open, shop: Shop) -> None:
        async with open_billing(attempts=2) as consumer:
            consumer.then = fault
            assert (await consumer.get()).action is Action.RETRY
            decision = await consumer.get(failed=1)
            assert told(decision) == (Action.DEAD_LETTER, Reason.FAILED)
            assert decision.attempts == 2
            assert shop.effects() == 0

    async def test_a_database_that_is_away_holds_the_message(self, open_billing: Open, shop: Shop) -> None:
        async with open_billing() as consumer:
            shop.away = True
            decision = await consumer.held(shop)
            assert (decision.reason, decision.attempts) == (Reason.FIRST, 1)
            assert shop.effects() == 1

    async def test_a_lost_reply_of_the_commit_is_asked_again(self, open_billing: Open, shop: Shop) -> None:
        async with open_billing() as consumer:
            shop.lose_commit = True
            decision = await consumer.get()
            assert decision.action is Action.ACK
            assert shop.effects() == 1
            assert (await consumer.get()).reason is Reason.DUPLICATE

    async def test_a_commit_that_always_fails_spends_attempts(self, open_billing: Open, shop: Shop) -> None:
        """Such as by an event of SQLAlchemy's before the COMMIT: held, the message would be worked on for ever."""
        async with open_billing(attempts=2) as consumer:
            shop.refuse_commit = True
            first, last = await consumer.get(), await consumer.get(failed=1)
            assert (told(first), first.attempts) == ((Action.RETRY, Reason.FAILED), 1)
            assert (told(last), last.attempts) == ((Action.DEAD_LETTER, Reason.FAILED), 2)
            assert isinstance(last.error, ValueError)
            assert (len(consumer.runs), shop.effects()) == (2, 0)

    async def test_a_database_that_goes_before_the_second_try_holds_the_message(
        self, open_billing: Open, shop: Shop
    ) -> None:
        """It was a failed attempt, because the work of the first try had begun."""
        async with open_billing(attempts=1) as consumer:

            def then() -> None:
                shop.away = len(consumer.runs) == 1
                if shop.away:
                    raise RetryTransaction("the database has ended it")

            consumer.then = then
            decision = await consumer.held(shop)
            assert (decision.reason, decision.attempts) == (Reason.FIRST, 1)
            assert (len(consumer.runs), shop.effects()) == (2, 1)

    async def test_a_copy_that_is_done_before_the_second_try_is_a_duplicate(
        self, open_billing: Open, shop: Shop
    ) -> None:
        async def copy() -> None:
            async with transaction(shop.path) as connection:
                assert (await shop.inbox.receive(connection, "order-7")).first

        async with open_billing() as consumer:

            def then() -> None:
                shop.before = copy
                raise RetryTransaction("the database has ended it")

            consumer.then = then
            assert told(await consumer.get()) == (Action.ACK, Reason.DUPLICATE)
            assert (len(consumer.runs), shop.effects()) == (1, 0)

    async def test_done_work_is_no_exhausted_message(
        self, open_billing: Open, shop: Shop, redis_url: str, events: list[Event]
    ) -> None:
        """A consumer that dies between COMMIT and its record spends the only attempt, and has done the work."""
        async with open_billing(attempts=1) as consumer:
            assert (await consumer.get()).reason is Reason.FIRST
            async with opened(redis_url, events) as dedup:
                await dedup.forget(shop.inbox.gate_key("order-7"))
            assert told(await consumer.get(failed=1)) == (Action.ACK, Reason.DUPLICATE)

    async def test_exhausted_attempts_are_dead_lettered(self, open_billing: Open) -> None:
        async with open_billing(attempts=1) as consumer:
            assert told(await consumer.get(failed=1)) == (Action.DEAD_LETTER, Reason.EXHAUSTED)
            assert consumer.runs == []

    async def test_a_wrong_setup_is_raised(self, open_billing: Open, shop: Shop) -> None:
        with closing(sqlite3.connect(shop.path)) as connection:
            connection.execute(f"DROP TABLE {TABLE}")
        async with open_billing() as consumer:
            with pytest.raises(ConfigError, match="there is no table"):
                await consumer.get()


async def test_without_its_gate_the_inbox_decides(
    server: RedisServer, shop: Shop, events: list[Event]
) -> None:
    async with Dedup(server.url, namespace="m", timeout=0.1, on_event=events.append) as dedup:
        consumer = Billing(dedup, inbox=shop.inbox)
        server.kill()
        assert [(await consumer.get()).reason for _ in range(2)] == [Reason.FIRST, Reason.DUPLICATE]
        assert [type(event) for event in events if isinstance(event, GateBypassed)] == [GateBypassed] * 2
        assert shop.effects() == 1


# Keys and settings


def test_a_header_of_any_kind_is_text() -> None:
    given = ("a", b"a", 7, b"\xff", None, True, 1.5)
    assert [text_of(each) for each in given] == ["a", "a", "7", "ff", None, None, None]


def test_keys_of_two_consumers_never_meet() -> None:
    assert gate_key("a|b", "c") != gate_key("a", "b|c")
    assert gate_key("a\\", "b") != gate_key("a", "\\|b")


def test_a_long_key_of_a_long_name_stays_a_key() -> None:
    keys = [gate_key("q" * 200, "x" * 1000 + end) for end in "ab"]
    assert keys[0] != keys[1]
    assert all(len(key) < 64 for key in keys)


def test_equal_bodies_have_one_digest() -> None:
    assert body_digest(b"a") == body_digest(b"a") != body_digest(b"b")


async def unusual(message: Message) -> str:
    return "a"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"key": "id"}, "key= must be a function of the message"),
        ({"key": unusual}, "not async"),
        ({"fingerprint": "total"}, "fingerprint= must be a function"),
        ({"attempts": 0}, "attempts must be a whole number of at least 1"),
        ({"wait": -1}, "wait must be between"),
    ],
)
def test_a_wrong_setting_is_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        MessageRules("orders", **{"key": lambda message: "a", **options})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((None, None), "a gate, an inbox, or both"),
        (("redis://h", None), "dedup must be a fastdedup.Dedup, got str"),
        ((None, "billing"), "inbox must be a fastdedup.sql.Inbox, got str"),
    ],
)
def test_a_wrong_gate_or_inbox_is_named(given: tuple[Any, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Deliveries(MessageRules("orders", lambda message: "a"), *given)


def test_an_inbox_needs_what_begins_a_transaction() -> None:
    with pytest.raises(ConfigError, match="begin="):
        Deliveries(MessageRules("orders", lambda message: "a"), None, Inbox("nothing-begins", keep=WEEK))


def test_what_begins_a_transaction_needs_an_inbox() -> None:
    with pytest.raises(ConfigError, match="give inbox= too, or leave begin= out"):
        Deliveries(MessageRules("orders", lambda message: "a"), Dedup("memory://"), begin=nullcontext)  # type: ignore[arg-type]


def test_a_consumer_needs_a_name() -> None:
    with pytest.raises(ConfigError, match="a consumer needs a name"):
        MessageRules("", lambda message: "a")
    with pytest.raises(ConfigError, match="a consumer needs a name"):
        deliveries_of("orders", Dedup("memory://"), lambda message: "a", {"name": ""})


def test_a_setting_that_consumers_do_not_have_is_named() -> None:
    settings: Any = {"wait": 1.0, "retries": 3}
    with pytest.raises(
        TypeError, match="the consumer has no setting 'retries'; it has limit, inbox, begin, remember"
    ):
        deliveries_of("orders", Dedup("memory://"), lambda message: "a", settings, ["limit"])
