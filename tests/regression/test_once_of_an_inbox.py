"""`once`: its signature, its row, its keys to the next hop, and what it tells apart."""

from __future__ import annotations

import inspect
import sqlite3
import warnings
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from pickle import dumps, loads
from typing import Any
from uuid import UUID

import aiosqlite
import httpx
import pytest
from fastapi import FastAPI
from pydantic import BaseModel
from sqlalchemy import create_engine, text
from sqlalchemy.event import listens_for
from sqlalchemy.orm import Session, sessionmaker

from fastdedup import Dedup, UsageError
from fastdedup.client.httpx import AsyncIdempotentTransport, IdempotentTransport
from fastdedup.messages import MessageRules
from fastdedup.messages.decisions import Action, Decision
from fastdedup.messages.deliveries import Deliveries
from fastdedup.sql import Inbox, RetryTransaction
from fastdedup.sql.dialects.base import Rows, Statement
from fastdedup.sql.rules import InboxRules
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.sync.sql import Inbox as SyncInbox
from fastdedup.testing import inbox_database

from ..faces import each_face, gate_of, told
from ..inbox_file import make_tables, work_in
from ..kinds import Colour, Pair, Row
from ..sql import conftest as sql
from ..sql.ways import WAYS, WEEK, Party

# A function under `Inbox.once` showed the transaction, which its caller must not give, and to checkers
# `(...)`.


async def later(session: Any, order: str, *, amount: int = 1) -> int:
    return amount


def now(session: Any, order: str, *, amount: int = 1) -> int:
    return amount


class Desk:
    async def later(self, session: Any, order: str, *, amount: int = 1) -> int:
        return amount

    def now(self, session: Any, order: str, *, amount: int = 1) -> int:
        return amount


@pytest.mark.parametrize(
    ("kind", "function", "method"), [(Inbox, later, Desk.later), (SyncInbox, now, Desk.now)]
)
def test_the_signature_is_the_functions_without_the_transaction(
    kind: Any, function: Any, method: Any
) -> None:
    once, of_methods = (kind(name, keep=60.0, begin=lambda: None).once(str) for name in ("billing", "desk"))
    work = once(function)
    assert str(inspect.signature(work)) == "(order: 'str', *, amount: 'int' = 1) -> 'int'"
    assert sorted(work.__annotations__) == ["amount", "order", "return"]
    assert "session" in function.__annotations__
    assert str(inspect.signature(of_methods(method))) == "(self, order: 'str', *, amount: 'int' = 1) -> 'int'"
    assert (work.__name__, work.__wrapped__) == (function.__name__, function)


def test_a_class_method_gets_its_class_and_the_transaction() -> None:
    """They were exchanged: only `self` was known as an argument before the transaction."""
    inbox = SyncInbox("billing", keep=60.0)
    with inbox_database(inbox) as database:

        class Till:
            @classmethod
            @inbox.once(key=lambda order: order, begin=lambda: database)
            def pay(cls, transaction: Any, order: str) -> bool:
                return cls is Till and hasattr(transaction, "execute") and order == "order-1"

        assert Till.pay("order-1") is True


@pytest.mark.parametrize(
    "function", [lambda *given: given, lambda *given, **more: given], ids=["positional", "all"]
)
def test_a_function_of_any_arguments_keeps_them(function: Callable[..., Any]) -> None:
    once = SyncInbox("billing", keep=60.0, begin=lambda: None).once(str)  # type: ignore[arg-type,return-value]
    assert inspect.signature(once(function)) == inspect.signature(function)


def test_fastapi_asks_its_client_for_the_rest() -> None:
    inbox = SyncInbox("billing", keep=60.0)
    with inbox_database(inbox) as connection:
        app = FastAPI()

        @app.post("/orders/{order}")
        @inbox.once(key=lambda session, order, amount: order, begin=lambda: connection)
        def book(session: Any, order: str, amount: int) -> int:
            return amount

        operation = app.openapi()["paths"]["/orders/{order}"]["post"]
        assert [parameter["name"] for parameter in operation["parameters"]] == ["order", "amount"]


def telling(connection: Any, kind: type[BaseException], told: type[Exception]) -> Any:
    """Return a `begin=` that raises an error of its own from each one of this kind."""

    @contextmanager
    def begin() -> Iterator[Any]:
        try:
            with connection:
                yield connection
        except kind as error:
            raise told("in other words") from error

    return begin


@pytest.mark.parametrize("told", [LookupError, RetryTransaction])
def test_begin_may_raise_an_error_of_its_own_from_the_works(told: type[Exception]) -> None:
    """It is the caller's, and decides whether the transaction is run again."""
    inbox, runs = SyncInbox("billing", keep=60.0), []
    with inbox_database(inbox) as connection:
        begin = telling(connection, ZeroDivisionError, told)

        @inbox.once(lambda transaction, order: order, begin=begin, attempts=2)
        def work(transaction: Any, order: str) -> float:
            runs.append(order)
            return 1 / (len(runs) - 1)

        if told is LookupError:
            with pytest.raises(LookupError, match="in other words"):
                work("order-1")
        assert work("order-1") == 1.0
        assert runs == ["order-1"] * 2


def test_an_error_of_begin_hides_no_interrupt() -> None:
    inbox = SyncInbox("billing", keep=60.0)
    with inbox_database(inbox) as connection:
        begin = telling(connection, BaseException, LookupError)

        @inbox.once(lambda transaction, order: order, begin=begin)
        def work(transaction: Any, order: str) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            work("order-1")


# `Inbox.once` told that begin= does not commit and the work was rolled back, but it was committed without
# its row. The work had deleted its message's row, and returned None, on SQLite or MariaDB. So each delivery
# did it again.


key, of = sql.key, sql.of
postgres_place, mariadb_place, sqlite_place = sql.postgres_place, sql.mariadb_place, sql.sqlite_place


@pytest.fixture(params=list(WAYS))
def party_of(request: pytest.FixtureRequest) -> Callable[[], Party]:
    return sql.opener(request, request.param)


def deletion(party: Party, key: str) -> str:
    row = party.inbox().id_of(key).hex()
    value = {"sqlite": f"X'{row}'", "mysql": f"UNHEX('{row}')"}.get(party.place.kind, f"'{row}'")
    return f"DELETE FROM fastdedup_inbox WHERE id = {value}"


@pytest.mark.parametrize("result", [None, "paid"])
async def test_work_without_its_row_is_not_committed(
    party_of: Callable[[], Party], key: str, result: Any
) -> None:
    async with party_of() as party:
        deletes = True

        async def work(transaction: Any, key: str) -> Any:
            await party.work(key)
            if deletes:
                await party.sql(deletion(party, key))
            return result

        once = party.inbox(begin=party.beginning).once(lambda transaction, key: key)(party.own(work))
        for _ in range(2):
            with pytest.raises(UsageError, match="or the row was deleted"):
                await party.call(once, key)
            assert not party.place.sql(f"SELECT note FROM work WHERE note = '{key}'")
        deletes = False
        assert await party.call(once, key) == result
        assert await party.call(once, key) == result
        assert len(party.place.sql(f"SELECT note FROM work WHERE note = '{key}'")) == 1


def statements(flow: Generator[Statement, Rows, Any], row: tuple[Any, ...]) -> int:
    """Return how many statements a flow has, if each one finds this row."""
    count = 0
    try:
        next(flow)
        while True:
            count += 1
            flow.send(Rows([row], 1))
    except StopIteration:
        return count


@pytest.mark.parametrize("dialect", ["sqlite", "mysql", "postgresql"])
def test_no_further_statement_is_sent_once_begin_is_known_to_commit(dialect: str) -> None:
    rules = InboxRules("tests", keep=WEEK, table="fastdedup_inbox", schema=None, codec=None, max_result=1000)
    row = (b"", None) if dialect == "mysql" else (b"\1" * 16, b"", None)
    for result in (None, "paid"):
        sent = [
            statements(rules.finish((dialect, ""), b"\1" * 16, result, "anchor", look=look), row)
            for look in (False, True)
        ]
        is_bare = result is None and dialect != "postgresql"
        assert sent[1] - sent[0] == (1 if is_bare else 0)


# A transaction that the database ended, and that ran again, sent its requests to the next hop under other
# keys. One `ClaimedWork`, which counts the requests, spanned all runs of the transaction: the second run's
# first charge was counted as the work's second one. So the bank charged twice.


KEEP = 86_400
NOBODY = "unix:///nowhere/redis.sock"
WITH_AND_WITHOUT_THE_GATE = pytest.mark.parametrize("url", ["memory://", NOBODY], ids=["gate", "gate down"])


class Bank:
    """Charges once for each key that it is sent."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.transport = httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.keys.append(request.headers["Idempotency-Key"])
        return httpx.Response(200)

    async def pay(self, transaction: Any, order: str) -> None:
        """Send two requests to one address."""
        async with httpx.AsyncClient(transport=AsyncIdempotentTransport(self.transport)) as client:
            for _ in range(2):
                await client.post("http://bank/charges")

    def pay_now(self, transaction: Any, order: str) -> None:
        """Do as `pay`."""
        with httpx.Client(transport=IdempotentTransport(self.transport)) as client:
            for _ in range(2):
                client.post("http://bank/charges")

    def check(self) -> None:
        """See that the work ran twice, and sent the same keys in the same order."""
        assert len(self.keys) == 4
        assert self.keys[:2] == self.keys[2:]
        assert len(set(self.keys)) == 2


class Database:
    """A file of SQLite whose first COMMIT gets SQLITE_BUSY, as somebody reads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = sqlite3.connect(path)
        self._reader.execute("BEGIN")
        self._reader.execute("SELECT 1 FROM sqlite_master").fetchall()

    def end_reading(self) -> None:
        """Let the next COMMIT through."""
        self._reader.close()

    @contextmanager
    def begin_now(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=0.0)) as connection:
            try:
                with connection:
                    yield connection
            finally:
                self.end_reading()

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[aiosqlite.Connection]:
        async with aiosqlite.connect(self.path, timeout=0.0) as connection:
            try:
                yield connection
                await connection.commit()
            except BaseException:
                await connection.rollback()
                raise
            finally:
                self.end_reading()


@contextmanager
def database(inbox: Any, folder: Path) -> Iterator[Database]:
    with inbox_database(inbox, path=folder / "inbox.db"):
        found = Database(folder / "inbox.db")
        try:
            yield found
        finally:
            found.end_reading()


@each_face
@WITH_AND_WITHOUT_THE_GATE
async def test_each_run_sends_the_same_keys(tmp_path: Path, url: str, face: str) -> None:
    bank, is_async = Bank(), face == "asyncio"
    inbox: Any = (Inbox if is_async else SyncInbox)("billing", keep=KEEP)
    with database(inbox, tmp_path) as place:
        async with gate_of(face, url, namespace="s", timeout=0.25) as gate:
            begin = place.begin if is_async else place.begin_now
            once = inbox.once(key=lambda transaction, order: order, begin=begin, gate=gate)
            await told(once(bank.pay if is_async else bank.pay_now)("order-1"))
    bank.check()


@WITH_AND_WITHOUT_THE_GATE
async def test_each_run_of_a_consumer_sends_the_same_keys(tmp_path: Path, url: str) -> None:
    bank, inbox = Bank(), Inbox("billing", keep=KEEP)

    async def lay(decision: Decision) -> None:
        raise AssertionError(decision)

    with database(inbox, tmp_path) as place:
        async with Dedup(url, namespace="s", timeout=0.25) as gate:
            deliveries = Deliveries(MessageRules("orders", str), gate, inbox, place.begin)
            assert (await deliveries.handle("m-1", bank.pay, lay)).action is Action.ACK
    bank.check()


# A duplicate got another type than the first call, two functions with one key each other's results: in
# silence.


@dataclass
class Receipt:
    number: int


class Model(BaseModel):
    number: int


class Pickle:
    dumps = staticmethod(dumps)
    loads = staticmethod(loads)


def warnings_of(decorate: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        decorate()
    assert all(each.filename == __file__ for each in caught), "at the function's own line"
    return [str(each.message) for each in caught]


def returning(declared: Any) -> Any:
    async def work(order: str) -> Any: ...

    work.__annotations__["return"] = declared
    return work


FACES: list[Callable[[], tuple[Any, bool]]] = [
    lambda: (Dedup("memory://").once, True),
    lambda: (SyncDedup("memory://").once, False),
    lambda: (Inbox("tests", keep=60.0, begin=lambda: None).once, True),
    lambda: (SyncInbox("tests", keep=60.0, begin=lambda: None).once, False),
]


@pytest.mark.parametrize(
    "declared",
    [
        *(int, str, float, bool, None, dict[str, Any], list[int], Row, Any, "Missing"),
        *(Receipt, Model, Pair, Colour, UUID, datetime, Decimal, bytes, set[int], tuple[int, str]),
        *(Receipt | None, list[Receipt], dict[str, UUID]),
    ],
)
def test_a_type_that_comes_back_is_not_told(declared: Any) -> None:
    assert (
        warnings_of(lambda: Dedup("memory://").once(key=lambda order: f"o:{order}")(returning(declared)))
        == []
    )


def test_a_codec_of_ones_own_is_not_told_of() -> None:
    dedup = Dedup("memory://", codec=Pickle())
    assert warnings_of(lambda: dedup.once(key=lambda order: f"o:{order}")(returning(Receipt))) == []


@pytest.mark.parametrize("face", FACES, ids=["asyncio", "sync", "inbox", "sync inbox"])
def test_two_functions_with_equal_keys_are_told(face: Callable[[], tuple[Any, bool]]) -> None:
    once, is_async = face()

    def decorate(name: str, key: Any) -> list[str]:
        async def later(transaction: str, order: str = "") -> None: ...

        def now(transaction: str, order: str = "") -> None: ...

        function: Any = later if is_async else now
        function.__qualname__ = name
        return warnings_of(lambda: once(key=key)(function))

    assert decorate("ship", lambda *order: order[-1]) == []
    (text,) = decorate("charge", lambda *id: id[-1])
    assert "ship()" in text
    assert "charge()" in text
    assert decorate("ship", lambda *order: order[-1]) == [], "decorated again, as by a reload"
    assert decorate("refund", lambda *order: f"refund:{order[-1]}") == []
    prefix = "mail"
    assert decorate("mail", lambda *order: f"{prefix}:{order[-1]}") == []


def test_another_namespace_has_keys_of_its_own() -> None:
    dedup = Dedup("memory://")
    assert warnings_of(lambda: dedup.once(key=lambda order: order)(returning(int))) == []
    other = returning(int)
    other.__qualname__ = "other"
    assert warnings_of(lambda: dedup.scoped("sms").once(key=lambda order: order)(other)) == []


def test_a_hook_that_fails_after_the_commit_leaves_the_key_free(tmp_path: Path) -> None:
    """The row answers the next call at once, and not when the first one's lease ends at the gate."""
    path = tmp_path / "inbox.db"
    make_tables(path)

    class Hooked(Session):
        """Breaks a constraint after each COMMIT, in a transaction of its own."""

    @listens_for(Hooked, "after_commit")
    def fail(session: Session) -> None:
        with closing(sqlite3.connect(path)) as other:
            other.execute("INSERT INTO fastdedup_inbox SELECT * FROM fastdedup_inbox")

    engine = create_engine(f"sqlite:///{path}", connect_args={"isolation_level": "IMMEDIATE"})
    with SyncDedup("memory://", namespace="hooked") as gate:
        inbox = SyncInbox("hooked", keep=WEEK, begin=sessionmaker(engine, class_=Hooked).begin)

        @inbox.once(key=lambda order: order, gate=gate)
        def pay(session: Session, order: str) -> str:
            session.execute(text("INSERT INTO work VALUES (:id)"), {"id": order})
            return f"paid {order}"

        with pytest.raises(sqlite3.IntegrityError):
            pay("a")
        assert (pay("a"), pay("a"), work_in(path)) == ("paid a", "paid a", ["a"])
    engine.dispose()
