"""`once` without a gate: one transaction a call, run again where the database ended it, a bounded number of times."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager, nullcontext
from functools import partial
from inspect import isawaitable
from pathlib import Path
from typing import Any

import aiosqlite
import pytest

from fastdedup import (
    ConfigError,
    InProgressError,
    InvalidKeyError,
    ResultTooLargeError,
    UsageError,
    by,
)
from fastdedup.arguments import CallRules
from fastdedup.sql import Inbox, RetryTransaction
from fastdedup.sql.open_transaction import OnceRules
from fastdedup.sync.sql import Inbox as SyncInbox
from fastdedup.testing import inbox_database

from ..faces import each_face, gate_of, once_of
from ..kinds import returning
from ..waiting import cancel
from .conftest import Opener
from .ways import WEEK, Party, SyncParty

Of = Callable[[str], Opener]
BOTH = ["asyncpg", "psycopg", "async session aiomysql", "pymysql", "aiosqlite", "django sqlite"]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that `once` would make; it makes none."""
    made: list[float] = []
    pause = OnceRules.pause

    def none(rules: Any, attempt: int, error: Exception) -> float:
        made.append(pause(rules, attempt, error))
        return 0.0

    monkeypatch.setattr(OnceRules, "pause", none)
    return made


class Handler:
    """A consumer's function under `once`, on a party's connection: it does its work, and then what it is told to."""

    def __init__(self, party: Party, *, then: Callable[[int], Any] = lambda run: run, **options: Any) -> None:
        self.party = party
        self.then = then
        self.runs = 0
        decorate = party.inbox(begin=party.beginning).once(lambda transaction, key: key, **options)
        self._decorated = decorate(party.own(self._work))

    async def __call__(self, key: str) -> Any:
        return await self.party.call(self._decorated, key)

    async def _work(self, transaction: Any, key: str) -> Any:
        assert transaction is self.party.raw
        self.runs += 1
        await self.party.work(key)
        answer = self.then(self.runs)
        return await answer if isawaitable(answer) else answer


def done(party: Party, key: str) -> int:
    """How often the work of a key was committed."""
    return int(party.place.sql(f"SELECT count(*) FROM work WHERE note = '{key}'")[0][0])


@pytest.mark.parametrize("name", BOTH)
async def test_the_work_is_done_once_and_its_result_replayed(party: Party, key: str) -> None:
    handler = Handler(party, then=lambda run: {"run": run})
    assert [await handler(key), await handler(key)] == [{"run": 1}] * 2
    assert (handler.runs, done(party, key)) == (1, 1)


@pytest.mark.parametrize("name", BOTH)
async def test_a_key_made_of_arguments_and_a_name_keep_functions_apart(party: Party, key: str) -> None:
    begin = party.beginning
    for said in ("charged", "shipped"):
        work = returning(str, said, is_async=not isinstance(party, SyncParty), before=True)
        once = party.inbox(begin=begin).once(by("key"), name=said)(work)
        for _ in range(2):
            assert await party.call(once, key) == said


@pytest.mark.parametrize("name", BOTH)
async def test_a_method_gets_the_transaction_behind_self(party: Party, key: str) -> None:
    begin = party.beginning
    once = party.inbox(begin=begin).once(lambda self, transaction, key: self.prefix + key)

    class Consumer:
        prefix = "p:"

        async def work(self, transaction: Any, key: str) -> list[Any]:
            return [self.prefix, transaction is party.raw, key]

    pay = once(party.own(Consumer.work))
    for _ in range(2):
        assert await party.call(pay, Consumer(), key) == ["p:", True, key]


@pytest.mark.parametrize("name", BOTH)
async def test_an_error_of_the_function_rolls_back(party: Party, key: str) -> None:
    handler = Handler(party, then=lambda run: 1 / (run - 1))
    with pytest.raises(ZeroDivisionError):
        await handler(key)
    assert done(party, key) == 0
    assert await handler(key) == 1.0
    assert (handler.runs, done(party, key)) == (2, 1)


@pytest.mark.parametrize("name", BOTH)
async def test_a_result_too_large_rolls_back(party: Party, key: str) -> None:
    handler = Handler(party, then=lambda run: "x" * 300_000 if run == 1 else run)
    with pytest.raises(ResultTooLargeError):
        await handler(key)
    assert done(party, key) == 0
    assert await handler(key) == 2


@pytest.mark.parametrize("name", BOTH)
async def test_a_key_of_another_type_is_refused(party: Party) -> None:
    handler = Handler(party)
    for wrong in (7, None, b"bytes"):
        with pytest.raises(InvalidKeyError, match="a key must be text"):
            await handler(wrong)  # type: ignore[arg-type]
    assert handler.runs == 0


def ended(runs: int) -> Callable[[int], int]:
    """End as many runs as the database would."""

    def then(run: int) -> int:
        if run <= runs:
            raise RetryTransaction("ended")
        return run

    return then


@pytest.mark.parametrize("name", ["asyncpg", "pymysql"])
async def test_an_ended_transaction_is_run_again(party: Party, key: str, pauses: list[float]) -> None:
    handler = Handler(party, then=ended(4))
    assert await handler(key) == 5
    assert (handler.runs, done(party, key), len(pauses)) == (5, 1, 4)
    assert all(0 <= pause <= 0.01 * 2**number for number, pause in enumerate(pauses, 1))


@pytest.mark.parametrize("name", ["asyncpg", "pymysql"])
async def test_the_last_attempts_error_is_raised(party: Party, key: str, pauses: list[float]) -> None:
    handler = Handler(party, then=ended(3), attempts=3)
    with pytest.raises(RetryTransaction, match="ended 3 transactions of this call"):
        await handler(key)
    assert (handler.runs, done(party, key), len(pauses)) == (3, 0, 2)


def test_pauses_differ_and_grow(monkeypatch: pytest.MonkeyPatch, of: Of) -> None:
    rules = OnceRules(SyncInbox("tests", keep=WEEK), list, CallRules(str), attempts=100)
    longest = [max(rules.pause(attempt, RetryTransaction()) for _ in range(200)) for attempt in (1, 3, 5, 50)]
    assert longest == sorted(longest)
    assert longest[-1] <= 1.0
    assert len({rules.pause(5, RetryTransaction()) for _ in range(20)}) > 10


FAILURES = {
    "postgresql": "DO $$ BEGIN RAISE EXCEPTION 'body' USING ERRCODE = '40001'; END $$",
    "mysql": "SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'body'",
}


@pytest.mark.parametrize(
    "name", ["asyncpg", "psycopg", "aiomysql", "session pymysql", "async session asyncpg"]
)
async def test_the_functions_own_conflict_is_run_again(party: Party, key: str, pauses: list[float]) -> None:
    """Not what the inbox asked the database ends, but what the function asked."""
    handler = Handler(party, then=lambda run: party.sql(FAILURES[party.place.kind]) if run == 1 else run)
    assert await handler(key) == 2
    assert (done(party, key), len(pauses)) == (1, 1)


async def test_a_busy_begin_of_sqlite_is_run_again(of: Of, key: str, pauses: list[float]) -> None:
    async with of("sqlite3")(timeout=0) as party:
        handler = Handler(party, attempts=2)
        with closing(sqlite3.connect(party.place.database.file, isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            with pytest.raises(RetryTransaction):
                await handler(key)
            writer.rollback()
        assert (handler.runs, len(pauses)) == (0, 1)
        assert await handler(key) == 1


async def test_a_conflict_in_the_commit_is_run_again(of: Of, key: str, pauses: list[float]) -> None:
    """SERIALIZABLE: the database finds out at the COMMIT that two transactions read what the other one wrote."""
    async with (
        of("asyncpg")(isolation="serializable") as ours,
        of("asyncpg")(isolation="serializable") as other,
    ):

        async def work(transaction: Any, key: str) -> int:
            await ours.sql("SELECT count(*) FROM work")
            await ours.work(key)
            if not pauses:
                async with other.transaction():
                    await other.sql("SELECT count(*) FROM work")
                    await other.work("crosses")
            return len(pauses)

        decorated = ours.inbox(begin=ours.begin).once(lambda transaction, key: key)(work)
        assert await decorated(key) == 1
        assert (done(ours, key), len(pauses)) == (1, 1)


@pytest.mark.parametrize(
    "name", ["asyncpg", "aiomysql", "sqlite3", "session psycopg", "async session aiomysql"]
)
async def test_of_many_twins_exactly_one_does_the_work(of: Of, key: str, name: str) -> None:
    """Two of them fail after their work, so the others' wait ends in a rollback, which InnoDB calls a deadlock."""
    failures = [2]

    def then(run: int) -> str:
        if failures and failures[0]:
            failures[0] -= 1
            raise ZeroDivisionError
        return "done"

    async with AsyncExitStack() as stack:
        parties = [await stack.enter_async_context(of(name)()) for _ in range(6)]
        handlers = [Handler(party, then=then, attempts=20) for party in parties]
        answers = await asyncio.gather(*(handler(key) for handler in handlers), return_exceptions=True)
        assert sorted(map(repr, answers)) == ["'done'"] * 4 + ["ZeroDivisionError()"] * 2
        assert done(parties[0], key) == 1


@pytest.mark.parametrize("name", ["asyncpg", "pymysql"])
async def test_a_twin_that_is_skipped_is_in_progress(of: Of, key: str, name: str) -> None:
    async with of(name)() as party, of(name)() as other:
        handler = Handler(party, busy="skip")
        async with other.transaction():
            await other.receive(other.inbox(), key)
            with pytest.raises(InProgressError):
                await handler(key)
        assert await handler(key) is None
        assert handler.runs == 0


@pytest.mark.parametrize("name", [*BOTH, "sqlite3", "aiomysql"])
async def test_calls_within_a_call_share_its_transaction(party: Party, key: str) -> None:
    """MySQL forgets a savepoint when a second one gets its name."""

    async def part(transaction: Any, key: str) -> None:
        await party.work(key)

    inside = party.inbox("inside", begin=lambda: nullcontext(party.raw))
    decorated = inside.once(lambda transaction, key: key)(party.own(part))

    async def work(transaction: Any, key: str) -> None:
        for each in "ab":
            await party.call(decorated, f"{key} {each}")

    outside = party.inbox(begin=party.beginning)
    call = outside.once(lambda transaction, key: key)(party.own(work))
    for _ in range(2):
        await party.call(call, key)
    assert [done(party, f"{key} {each}") for each in "ab"] == [1, 1]


class Interrupt(BaseException):
    """Ends the process, like a KeyboardInterrupt."""


@pytest.mark.parametrize("name", ["asyncpg", "psycopg", "pymysql", "aiomysql", "django postgresql"])
async def test_an_interrupt_is_raised_though_the_rollback_fails(party: Party, key: str) -> None:
    """Such as a cancellation, after which aiomysql closes the connection: else the caller goes on."""

    def interrupt(run: int) -> None:
        raise Interrupt

    def fail() -> None:
        raise ConnectionResetError("the connection is lost")

    handler = Handler(party, then=interrupt)
    real = party._rollback
    party._rollback = fail  # type: ignore[method-assign]
    with pytest.raises(Interrupt):
        await handler(key)
    await party.call(real)
    assert done(party, key) == 0


async def test_a_cancelled_statement_of_aiomysql_ends_the_call(of: Of, key: str) -> None:
    async with of("aiomysql")() as party:
        asked = asyncio.Event()

        async def work(transaction: Any, key: str) -> None:
            asked.set()
            await party.sql("SELECT SLEEP(5)")

        call = asyncio.create_task(
            party.inbox(begin=party.begin).once(lambda transaction, key: key)(work)(key)
        )
        await asked.wait()
        await cancel(call)
        assert call.cancelled()


async def test_a_cancelled_call_rolls_back(of: Of, key: str) -> None:
    async with of("asyncpg")() as party:
        begun = asyncio.Event()

        async def work(transaction: Any, key: str) -> None:
            await party.work(key)
            begun.set()
            await asyncio.Event().wait()

        decorated = party.inbox(begin=party.begin).once(lambda transaction, key: key)(work)
        call = asyncio.create_task(decorated(key))
        await begun.wait()
        await cancel(call)
        assert done(party, key) == 0
        assert await Handler(party)(key) == 1


async def later(transaction: Any) -> None: ...
def now(transaction: Any) -> None: ...


@pytest.mark.parametrize("name", ["asyncpg", "psycopg"])
def test_what_once_cannot_use_is_refused(of: Of, name: str) -> None:
    inbox = of(name)().inbox()
    wrong: list[Callable[[], Any]] = [
        lambda: inbox.once(str),
        lambda: inbox.once("key", begin=now),
        lambda: inbox.once(later, begin=now),
        lambda: inbox.once(str, begin=now, attempts=0),
        lambda: inbox.once(str, begin=now, wait=-1),
        lambda: inbox.once(str, begin=now, gate="redis://"),
        lambda: inbox.once(str, begin=now)(now if name == "asyncpg" else later),
    ]
    for attempt in wrong:
        with pytest.raises(ConfigError):
            attempt()


async def test_once_needs_a_transaction_that_begins(of: Of, key: str) -> None:
    """A `begin` that yields a connection without a transaction, as `pool.acquire` does."""
    async with of("asyncpg")() as party:

        @asynccontextmanager
        async def acquire() -> Any:
            yield party.raw

        async def work(transaction: Any, key: str) -> None: ...

        with pytest.raises(UsageError, match=r"connection\.transaction"):
            await party.inbox().once(lambda transaction, key: key, begin=acquire)(work)(key)


# Fault: with a `begin` that logs an error and goes on, work that had failed was told as done, to its gate
# too.


DAY = 86_400


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "shop.db"
    with inbox_database(Inbox("billing", keep=DAY), path=path):
        yield path


@asynccontextmanager
async def swallowing(file: Path) -> AsyncIterator[aiosqlite.Connection]:
    async with aiosqlite.connect(file, isolation_level=None) as connection:
        await connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            await connection.commit()
        except ValueError:
            await connection.rollback()


@contextmanager
def swallowing_now(file: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.commit()
        except ValueError:
            connection.rollback()


@pytest.mark.parametrize("proven", [False, True], ids=["at its first use", "once it is known to commit"])
@each_face
async def test_work_that_failed_is_not_done(file: Path, face: str, proven: bool) -> None:
    fails = not proven

    def work(transaction: Any, key: str) -> str:
        if fails:
            raise ValueError("no such customer")
        return key

    async with gate_of(face, "memory://") as dedup:
        kind: Any = Inbox if face == "asyncio" else SyncInbox
        begin = partial(swallowing if face == "asyncio" else swallowing_now, file)
        inbox = kind("billing", keep=DAY, begin=begin)
        call = once_of(face, inbox.once(key=lambda transaction, key: key, gate=dedup), work)
        if proven:
            assert await call("m-0") == "m-0"
            fails = True
        with pytest.raises(ValueError, match="no such customer"):
            await call("m-1")
        fails = False
        assert await call("m-1") == "m-1"


async def test_a_beginning_of_the_other_kind_of_code_is_named() -> None:
    """Both are functions, so only their blocks differ."""

    async def later(transaction: Any) -> None: ...

    def now(transaction: Any) -> None: ...

    inbox, blocking = Inbox("awaits", keep=WEEK), SyncInbox("blocks", keep=WEEK)
    with pytest.raises(ConfigError, match="begin= must return an async context manager"):
        await inbox.once(lambda transaction: "k", begin=block_of_threads)(later)()
    with pytest.raises(ConfigError, match="begin= must return a context manager"):
        blocking.once(lambda transaction: "k", begin=block_of_asyncio)(now)()


@contextmanager
def block_of_threads() -> Iterator[None]:
    yield


@asynccontextmanager
async def block_of_asyncio() -> AsyncIterator[None]:
    yield
