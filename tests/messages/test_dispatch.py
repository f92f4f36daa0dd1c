"""`dispatch`: what a poller of any queue is told about its messages."""

from __future__ import annotations

import asyncio
import marshal
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.event import listens_for
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session

from fastdedup import (
    ClaimLostError,
    ConfigError,
    Dedup,
    FailedError,
    InProgressError,
    UnavailableError,
    UsageError,
)
from fastdedup.codec import Encoded
from fastdedup.events import LeaseLost
from fastdedup.messages import Action, DeadLetterError, Reason, gated
from fastdedup.messages.dispatch import Dispatcher, Disposition, SyncDispatcher
from fastdedup.messages.failed_attempts import AT_ONCE
from fastdedup.messages.keys import gate_key
from fastdedup.messages.rules import LAYING_PAUSE
from fastdedup.sql import Inbox
from fastdedup.sync import Dedup as SyncDedup

from ..codecs import CodecOf
from ..committing.bank import tables
from ..fixtures import async_fixture
from ..servers import RedisServer
from ..waiting import cancel, wait_until
from .test_pages import names_of


def key(message: Any) -> Any:
    return message


async def ends(message: Any) -> None:
    return None


async def never(session: AsyncSession, message: Any) -> None:
    raise AssertionError("it was done before")


async def fails(message: Any) -> None:
    raise ValueError("no such customer")


def seen(found: Disposition) -> tuple[Action, Reason, float]:
    return found.action, found.reason, found.retry_after


ACKED = (Action.ACK, Reason.FIRST, 0.0)
DUPLICATE = (Action.ACK, Reason.DUPLICATE, 0.0)


dedup = async_fixture(lambda: Dedup("memory://", namespace="m"))


async def test_poison_is_retried_and_then_a_dead_letter_at_each_delivery(dedup: Dedup) -> None:
    """A poller that dies before it has laid the message down is told again."""
    orders = Dispatcher("orders", dedup, key=key, attempts=2, retry_delay=0.01)
    assert seen(await orders.dispatch("a", fails)) == (Action.RETRY, Reason.FAILED, 0.01)
    found = [await orders.dispatch("a", fails) for _ in range(2)]
    assert [each.action for each in found] == [Action.DEAD_LETTER, Action.DEAD_LETTER]
    assert [each.reason for each in found] == [Reason.FAILED, Reason.DUPLICATE]
    assert seen(await orders.dispatch("a", ends, again=True)) == ACKED


LONG = "k" * 2000
"""A key that no gate takes."""


async def test_a_key_that_no_gate_takes_is_named() -> None:
    async with Dedup("memory://", namespace="m") as dedup:
        found = await Dispatcher("orders", dedup, key=key).dispatch(LONG, ends)
    with SyncDedup("memory://", namespace="m") as blocking:
        same = SyncDispatcher("orders", blocking, key=key).dispatch(LONG, str)
    assert [(each.reason, each.key) for each in (found, same)] == [(Reason.NO_KEY, LONG)] * 2


async def test_what_is_done_stays_done_if_its_result_cannot_be_read(redis_url: str) -> None:
    """A broker would deliver the message again and again to consumers that its record ends."""
    async with Dedup(redis_url, namespace="m", codec=CodecOf(marshal.dumps, marshal.loads)) as former:
        await (await former.claim(gate_key("orders", "a"))).complete({"paid": 7})
    async with Dedup(redis_url, namespace="m") as dedup:
        assert seen(await Dispatcher("orders", dedup, key=key).dispatch("a", ends)) == DUPLICATE
    with SyncDedup(redis_url, namespace="m") as blocking:
        assert seen(SyncDispatcher("orders", blocking, key=key).dispatch("a", str)) == DUPLICATE


async def test_a_failure_that_cannot_be_read_stays_a_failure(redis_url: str) -> None:
    """Clients of the sidecar record bytes of any kind."""
    async with Dedup(redis_url, namespace="m") as dedup:
        claim = await dedup.claim(gate_key("orders", "a"))
        await claim.settlement.record(Encoded((b"refused",)), succeeded=False)
        found = await Dispatcher("orders", dedup, key=key).dispatch("a", ends)
    with SyncDedup(redis_url, namespace="m") as blocking:
        same = SyncDispatcher("orders", blocking, key=key).dispatch("a", str)
    for each in (found, same):
        assert seen(each) == (Action.DEAD_LETTER, Reason.DUPLICATE, 0.0)
        assert isinstance(each.error, FailedError)


@pytest.mark.parametrize("failed", ["1", None, 1.5, True, -1])
async def test_failed_attempts_must_be_a_count(failed: Any) -> None:
    """A queue may give its own count as text. An error after the claim would leave the key held for its lease."""
    words = "failed must be a whole number of at least 0"
    async with Dedup("memory://", namespace="m") as dedup:
        orders = Dispatcher("orders", dedup, key=key, wait=0.0)
        with pytest.raises(ConfigError, match=words):
            await orders.dispatch("a", ends, failed=failed)
        assert seen(await orders.dispatch("a", ends)) == ACKED
    with SyncDedup("memory://", namespace="m") as blocking:
        same = SyncDispatcher("orders", blocking, key=key, wait=0.0)
        with pytest.raises(ConfigError, match=words):
            same.dispatch("a", str, failed=failed)
        assert seen(same.dispatch("a", str)) == ACKED


async def test_a_twin_at_work_is_retried_later_and_a_cancelled_one_is_free(dedup: Dedup) -> None:
    orders = Dispatcher("orders", dedup, key=key, wait=0.0, retry_delay=3.0)
    begun = asyncio.Event()

    async def forever(message: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(orders.dispatch("a", forever))
    await begun.wait()
    assert seen(await orders.dispatch("a", ends)) == (Action.RETRY, Reason.IN_PROGRESS, 3.0)
    await cancel(running)
    assert seen(await orders.dispatch("a", ends)) == ACKED


async def test_a_setting_that_a_dispatcher_does_not_have_is_named() -> None:
    more: Any = {"grace": 1.0}
    with pytest.raises(TypeError, match="no setting 'grace'; it has key, inbox, begin"):
        Dispatcher("orders", Dedup("memory://"), key=key, **more)


async def test_a_gate_that_forgets_before_the_queue_is_refused() -> None:
    orders = Dispatcher("orders", Dedup("memory://", ttl=60.0), key=key)
    with pytest.raises(ConfigError, match="retention"):
        orders.check_memory(3600.0, "retention")


def told(orders: SyncDispatcher, handler: Callable[[Any], Any], message: Any = "a") -> Any:
    return seen(orders.dispatch(message, handler))


def test_blocking_code_is_told_the_same() -> None:
    def give_up(message: Any) -> None:
        raise DeadLetterError("cancelled")

    def divide(message: Any) -> float:
        return 1 / 0

    with SyncDedup("memory://", namespace="m") as dedup:
        orders = SyncDispatcher("orders", dedup, key=key, attempts=2, retry_delay=0.1)
        assert told(orders, divide) == (Action.RETRY, Reason.FAILED, 0.1)
        assert told(orders, lambda message: None) == ACKED
        assert told(orders, divide) == DUPLICATE
        assert told(orders, give_up, "b") == (Action.DEAD_LETTER, Reason.FAILED, 0.0)
        assert told(orders, divide, "b") == (Action.DEAD_LETTER, Reason.DUPLICATE, 0.0)
        assert told(orders, divide, None) == (Action.DEAD_LETTER, Reason.NO_KEY, 0.0)
        with pytest.raises(KeyboardInterrupt):
            orders.dispatch("c", interrupted)
        assert told(orders, lambda message: time.monotonic(), "c") == ACKED
        assert orders.counts.delivered == 8
        assert seen(orders.dispatch("b", lambda message: None, again=True)) == ACKED
        assert seen(orders.dispatch("b", divide, again=True)) == DUPLICATE


def test_a_failed_attempt_of_blocking_code_keeps_its_key_for_the_delay() -> None:
    """Or a copy of the message that is here already would spend the next attempt at once."""
    with SyncDedup("memory://", namespace="m") as dedup:
        orders = SyncDispatcher("orders", dedup, key=key, wait=0.0, retry_delay=7.0, lease=60.0)
        assert told(orders, lambda message: 1 / 0) == (Action.RETRY, Reason.FAILED, 7.0)
        assert told(orders, lambda message: None) == (Action.RETRY, Reason.IN_PROGRESS, 7.0)
        (record,) = dedup.records().records
        assert record.lease is not None
        assert 0.0 < record.lease <= 7.1


def test_a_twin_of_blocking_code_is_not_met_again_at_once() -> None:
    with SyncDedup("memory://", namespace="m") as dedup:
        orders = SyncDispatcher("orders", dedup, key=key, wait=0.0, retry_delay=0.0)
        since = time.monotonic()
        assert told(orders, lambda message: told(orders, interrupted)) == ACKED
        assert orders.counts.retried == 1
        assert time.monotonic() - since > LAYING_PAUSE / 2  # the clock of a loop is coarse


def test_blocking_code_logs_few_failed_handlers_and_checks_together(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def look_up(takeover: Any) -> Any:
        raise ValueError("no such customer")

    with SyncDedup("memory://", namespace="m") as dedup:
        orders = SyncDispatcher("orders", dedup, key=key, retry_delay=0.0, resolve=look_up)
        for number in 2 * list(range(AT_ONCE)):
            assert told(orders, lambda message: 1 / 0, str(number)) == (Action.RETRY, Reason.FAILED, 0.0)
    assert len([line for line in caplog.messages if line.startswith("attempt ")]) == AT_ONCE


def test_blocking_code_is_told_that_it_has_no_inbox() -> None:
    more: Any = {"inbox": object()}
    with pytest.raises(ConfigError, match="SyncDispatcher takes no inbox: decorate the work by"):
        SyncDispatcher("orders", SyncDedup("memory://"), key=key, **more)


async def test_a_handler_that_is_not_async_is_refused_before_it_works(dedup: Dedup) -> None:
    """Its work would be done, and then its result awaited in vain: a failed attempt, and the work done again."""
    done: list[Any] = []
    blocking: Any = done.append
    orders = Dispatcher("orders", dedup, key=key)
    with pytest.raises(ConfigError, match="the handler must be async def"):
        await orders.dispatch("a", blocking)
    assert (done, seen(await orders.dispatch("a", ends))) == ([], ACKED)


async def test_a_handler_of_other_arguments_is_refused_at_once(dedup: Dedup) -> None:
    """It would raise for each message, and so make a dead letter of each."""
    inbox = Inbox("orders", keep=timedelta(days=7))

    async def charge(message: Any, amount: int, *, currency: str = "EUR") -> None:
        await ends(message)

    with pytest.raises(
        ConfigError, match=r"takes the message alone, got charge\(message, amount, currency\)"
    ):
        await Dispatcher("orders", dedup, key=key).dispatch("a", charge)  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match=r"takes the transaction and the message alone, got ends\(message\)"
    ):
        await Dispatcher("orders", dedup, key=key, inbox=inbox, begin=dict).dispatch("a", ends)
    with SyncDedup("memory://", namespace="m") as blocking:
        wrong: Any = lambda: None  # noqa: E731 -- a function that takes nothing
        with pytest.raises(ConfigError, match="the handler must be a function that takes the message alone"):
            SyncDispatcher("orders", blocking, key=key).dispatch("a", wrong)


async def test_a_check_of_other_arguments_is_refused_at_once(dedup: Dedup) -> None:
    """It would raise at each attempt after a crash, and so make a dead letter of work that may be done."""
    wrong: Any = lambda: None  # noqa: E731 -- a function that takes nothing
    with pytest.raises(ConfigError, match="resolve must be a function that takes a Takeover alone"):
        Dispatcher("orders", dedup, key=key, resolve=wrong)


class Desk:
    async def __call__(self, message: Any) -> None:
        await ends(message)

    async def charge(self, message: Any, amount: int = 1) -> None:
        await ends(message)

    async def any(self, *given: Any, **more: Any) -> None:
        await ends(given)


@pytest.mark.parametrize(
    "handler",
    [Desk(), Desk().charge, Desk().any, partial(Desk.charge, Desk()), partial(Desk().charge, amount=2)],
)
async def test_a_handler_may_be_anything_that_takes_the_message(dedup: Dedup, handler: Any) -> None:
    orders = Dispatcher("orders", dedup, key=key)
    assert [seen(await orders.dispatch(message, handler)) for message in "ab"] == [ACKED, ACKED]


async def test_again_is_no_text_that_counts_as_true(dedup: Dedup) -> None:
    """A header's "false" would let work that failed for good run again."""
    header: Any = "false"
    with pytest.raises(ConfigError, match="again must be True or False, got str"):
        await Dispatcher("orders", dedup, key=key).dispatch("a", ends, again=header)
    with (
        SyncDedup("memory://", namespace="m") as blocking,
        pytest.raises(ConfigError, match="again must be True or False, got str"),
    ):
        SyncDispatcher("orders", blocking, key=key).dispatch("a", str, again=header)


def test_a_handler_that_returns_a_coroutine_has_done_nothing() -> None:
    with SyncDedup("memory://", namespace="m") as dedup:
        orders = SyncDispatcher("orders", dedup, key=key)
        wrong: Any = None
        for handler in (ends, wrong):
            with pytest.raises(ConfigError, match="the handler must be a plain function, not async, got "):
                orders.dispatch("a", handler)
        with pytest.raises(UsageError, match="returned a coroutine, which was never run"):
            orders.dispatch("a", lambda message: ends(message))
        assert told(orders, lambda message: None) == ACKED


async def test_dispatch_waits_while_the_store_is_away(own_redis: RedisServer) -> None:
    async with Dedup(own_redis.url, namespace="m", timeout=0.1) as dedup:
        orders = Dispatcher("orders", dedup, key=key)
        own_redis.kill()
        running = asyncio.create_task(orders.dispatch("a", ends))
        await wait_until(lambda: orders.counts.held, description="it is held")
        own_redis.start()
        assert seen(await running) == ACKED


def test_blocking_code_gets_a_retry_while_the_store_is_away(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a message that an operator sends again is worked on once the store is back."""
    monkeypatch.setattr("fastdedup.messages.blocking.HOLD", 0.0)
    with SyncDedup(own_redis.url, namespace="m", timeout=0.2) as dedup:
        orders = SyncDispatcher("orders", dedup, key=key, attempts=1)
        assert told(orders, lambda message: 1 / 0) == (Action.DEAD_LETTER, Reason.FAILED, 0.0)
        own_redis.freeze()
        found = orders.dispatch("a", lambda message: None, again=True)
        own_redis.thaw()
        assert seen(found) == (Action.RETRY, Reason.UNAVAILABLE, 1.0)
        while seen(found)[0] is Action.RETRY:
            found = orders.dispatch("a", lambda message: None, again=True)
        assert seen(found) == ACKED


def interrupted(message: Any) -> None:
    raise KeyboardInterrupt


class Queue:
    """A queue in memory that delivers each message twice."""

    def __init__(self, *ids: str | None) -> None:
        self.left = [SimpleNamespace(headers={"order-id": each} if each else {}) for each in ids] * 2
        self.deleted: list[Any] = []
        self.dead: list[Any] = []

    async def receive(self, most: int) -> list[Any] | None:
        found, self.left = self.left[:most], self.left[most:]
        return found or None

    async def return_after(self, message: Any, seconds: float) -> None:
        self.left.append(message)

    async def put_dead_letter(self, message: Any, reason: str) -> None:
        self.dead.append(reason)

    async def delete(self, message: Any) -> None:
        self.deleted.append(message)


async def test_the_page_of_any_queue_runs() -> None:
    names = names_of("any-queue.md")
    done: list[str] = []

    async def on_order(message: Any) -> None:
        done.append(message.headers["order-id"])

    names["on_order"] = on_order
    queue = Queue("a", "b", None)
    async with Dedup("memory://", namespace="m") as dedup:
        await names["consume"](queue, dedup)
    assert (sorted(done), queue.dead, len(queue.deleted)) == (["a", "b"], ["no_key", "no_key"], 6)
    with SyncDedup("memory://", namespace="m") as blocking:
        message = SimpleNamespace(headers={"order-id": "c"})
        assert names["consumer_of"](blocking).dispatch(message, lambda message: None).action is Action.ACK


@asynccontextmanager
async def sessions_in(folder: Path) -> AsyncIterator[Any]:
    """Open sessions of a database with an inbox's table."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{folder / 'inbox.db'}")
    async with engine.begin() as connection:
        for statement in tables("sqlite"):
            await connection.execute(text(statement))
    try:
        yield async_sessionmaker(engine)
    finally:
        await engine.dispose()


async def test_an_inboxs_attempt_that_lost_its_lease_is_no_dead_letter(tmp_path: Path) -> None:
    """The gate has forgotten it: another delivery waits for its row, and does the work once it is rolled back."""
    lost = asyncio.Event()

    def heard(event: object) -> None:
        if isinstance(event, LeaseLost):
            lost.set()

    async with (
        sessions_in(tmp_path) as sessions,
        Dedup("memory://", namespace="m", lease=0.3, on_event=heard) as dedup,
    ):
        inbox = Inbox("orders", keep=timedelta(days=7))

        async def loses(session: AsyncSession, message: Any) -> None:
            await dedup.forget(inbox.rules.gate_key(message))
            await lost.wait()
            raise ValueError("no such customer")

        orders = Dispatcher("orders", dedup, key=key, inbox=inbox, begin=sessions.begin, attempts=1)
        assert seen(await orders.dispatch("a", loses)) == (Action.RETRY, Reason.LOST, 1.0)


@pytest.mark.parametrize("is_gated", [True, False])
async def test_work_whose_hook_fails_after_the_commit_is_no_dead_letter(
    tmp_path: Path, is_gated: bool
) -> None:
    class Hooked(Session):
        """Breaks a constraint after each COMMIT, in a transaction of its own."""

    @listens_for(Hooked, "after_commit")
    def fail(session: Session) -> None:
        with closing(sqlite3.connect(tmp_path / "inbox.db")) as other:
            other.execute("INSERT INTO fastdedup_inbox SELECT * FROM fastdedup_inbox")

    async with sessions_in(tmp_path) as sessions, Dedup("memory://", namespace="m") as dedup:

        @asynccontextmanager
        async def begin() -> AsyncIterator[AsyncSession]:
            async with sessions(sync_session_class=Hooked) as session, session.begin():
                yield session

        done: list[Any] = []

        async def pays(session: AsyncSession, message: Any) -> None:
            done.append(message)

        gate, inbox = dedup if is_gated else None, Inbox("orders", keep=timedelta(days=7))
        orders = Dispatcher("orders", gate, key=key, inbox=inbox, begin=begin, attempts=1)
        assert [seen(await orders.dispatch("a", pays)) for _ in range(2)] == [DUPLICATE] * 2
        assert done == ["a"]


@pytest.mark.parametrize("is_gated", [True, False])
async def test_a_cancellation_at_the_commit_ends_the_call(tmp_path: Path, is_gated: bool) -> None:
    """A poller that is cancelled then would go on for ever, if the call returned what the row says."""
    at_commit = asyncio.Event()

    @asynccontextmanager
    async def begin() -> AsyncIterator[AsyncSession]:
        async with sessions.begin() as session:
            yield session
        if not at_commit.is_set():
            at_commit.set()
            await asyncio.Event().wait()  # the reply does not come

    async def pays(session: AsyncSession, message: Any) -> None:
        await session.execute(text("INSERT INTO work VALUES ('n')"))

    async with sessions_in(tmp_path) as sessions, Dedup("memory://", namespace="m") as dedup:
        gate, inbox = dedup if is_gated else None, Inbox("orders", keep=timedelta(days=7))
        orders = Dispatcher("orders", gate, key=key, inbox=inbox, begin=begin)
        task = asyncio.create_task(orders.dispatch("a", pays))
        await at_commit.wait()
        await cancel(task)
        assert task.cancelled()
        again = Dispatcher("orders", gate, key=key, inbox=inbox, begin=sessions.begin)
        assert seen(await again.dispatch("a", pays)) == DUPLICATE


async def test_a_letter_that_is_taken_again_as_the_store_dies_is_still_worked_on(
    dedup: Dedup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store did not answer as the failure was to be forgotten: the message was acknowledged without its work."""
    orders = Dispatcher("orders", dedup, key=key, attempts=1)
    assert (await orders.dispatch("a", fails)).action is Action.DEAD_LETTER
    reopen = gated.reopen
    errors = [UnavailableError("away"), ClaimLostError("its lock"), InProgressError("the lock of that try")]

    async def dies_first(*args: Any) -> None:
        if errors:
            raise errors.pop()
        await reopen(*args)

    monkeypatch.setattr(gated, "reopen", dies_first)
    assert seen(await orders.dispatch("a", ends, again=True)) == ACKED


@pytest.mark.parametrize("is_gated", [True, False])
@pytest.mark.parametrize(
    ("codec", "result"), [(CodecOf(marshal.dumps, marshal.loads), {"paid": 7}), (None, object())]
)
@pytest.mark.filterwarnings("ignore::fastdedup.ResultWarning")
async def test_a_row_whose_result_cannot_be_told_is_done(
    tmp_path: Path, is_gated: bool, codec: Any, result: Any
) -> None:
    """If it cannot be read, it ended the consumer, at each start again; if it was not kept, the message was held."""
    async with sessions_in(tmp_path) as sessions, Dedup("memory://", namespace="m") as dedup:
        inboxes = [Inbox("orders", keep=timedelta(days=7), codec=each) for each in (codec, None)]

        @inboxes[0].once(key=lambda session, message: message, begin=sessions.begin)
        async def pays(session: AsyncSession, message: Any) -> Any:
            return result

        await pays("a")
        gate = dedup if is_gated else None
        orders = Dispatcher("orders", gate, key=key, inbox=inboxes[1], begin=sessions.begin)
        assert [seen(await orders.dispatch("a", never)) for _ in range(2)] == [DUPLICATE] * 2


async def test_a_begin_that_does_not_commit_makes_no_dead_letters(tmp_path: Path) -> None:
    async def pays(session: AsyncSession, message: Any) -> None: ...

    async with sessions_in(tmp_path) as sessions:
        inbox = Inbox("orders", keep=timedelta(days=7))
        orders = Dispatcher("orders", None, key=key, inbox=inbox, begin=sessions, attempts=1)
        with pytest.raises(ConfigError, match="begin= does not commit"):
            await orders.dispatch("a", pays)


def test_a_key_function_takes_the_message_alone() -> None:
    """One that takes a session as well, as an inbox's does, made each message a dead letter."""
    for kind, gate in ((Dispatcher, Dedup("memory://")), (SyncDispatcher, SyncDedup("memory://"))):
        with pytest.raises(ConfigError, match=r"key= must be a function that takes the message alone"):
            kind("orders", gate, key=lambda session, message: message)  # type: ignore[operator]
