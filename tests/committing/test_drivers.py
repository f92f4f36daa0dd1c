"""`Commits` over each driver, async and in threads, on PostgreSQL and real Redis."""

# No `from __future__ import annotations` here: FastAPI reads the annotations of handlers made in a function.

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Annotated, Any

import httpx
import psycopg
import pytest
from fastapi import FastAPI, Response
from sqlalchemy import create_engine, text
from sqlalchemy.orm import sessionmaker

from fastdedup import Dedup
from fastdedup.integrations.fastapi import Commits, Committed, Idempotency, everyone
from fastdedup.integrations.http import response_stage
from fastdedup.sql import Inbox
from fastdedup.sync.sql import Inbox as BlockingInbox

from ..fixtures import async_fixture
from ..gated_inbox.shop import Place, asyncpg_begin, broken, flush
from ..gated_inbox.times import WEEK
from ..integrations.desk import client, problem
from ..servers import RedisServer

INSERT = "INSERT INTO work VALUES (%s)"
Begin = Callable[[], Any]


def options_of(place: Place) -> dict[str, Any]:
    """Return the arguments by which psycopg connects through the proxy."""
    return {**place.database.psycopg, "host": str(place.proxy.folder)}


@asynccontextmanager
async def psycopg_async_connections(place: Place) -> AsyncIterator[Begin]:
    """Give a `begin` that connects for each transaction."""
    options = options_of(place)

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(**options) as connection:
            yield connection

    yield begin


@asynccontextmanager
async def psycopg_connections(place: Place) -> AsyncIterator[Begin]:
    """Give a synchronous `begin` that connects for each transaction."""
    options = options_of(place)
    yield partial(psycopg.connect, **options)


@asynccontextmanager
async def sqlalchemy_sessions(place: Place) -> AsyncIterator[Begin]:
    """Give SQLAlchemy's synchronous `Session.begin`."""
    url = place.database.urls["psycopg"].partition("?")[0]
    engine = create_engine(f"{url}?host={place.proxy.folder}", pool_size=8, max_overflow=0)
    try:
        yield sessionmaker(engine).begin
    finally:
        engine.dispose()


ASYNC = {"asyncpg": asyncpg_begin, "psycopg": psycopg_async_connections}
SYNC = {"psycopg in threads": psycopg_connections, "sqlalchemy in threads": sqlalchemy_sessions}
each_way = pytest.mark.parametrize("way", [*ASYNC, *SYNC])


class Till:
    """An application over a driver. `act` is called after the work; errors of the statement `last` are ignored."""

    def __init__(self, gate: Dedup, way: str, begin: Begin) -> None:
        self.gate = gate
        self.runs = 0
        self.act: Callable[[], int] = lambda: 201
        self.last = "SELECT 1"
        self.app = FastAPI()
        Idempotency(self.app, gate)
        inbox: Any = (Inbox if way in ASYNC else BlockingInbox)("till", keep=WEEK)
        depends = Commits(inbox, begin=begin, principal=everyone)

        async def pay(
            note: str, request: Annotated[Committed[Any], depends], response: Response
        ) -> dict[str, int]:
            self.runs += 1
            if way == "asyncpg":
                await request.session.execute(INSERT.replace("%s", "$1"), note)
            else:
                await request.session.execute(INSERT, [note])
            with suppress(Exception):
                await request.session.execute(self.last)
            response.status_code = self.act()
            return {"run": self.runs}

        def pay_in_thread(
            note: str, request: Annotated[Committed[Any], depends], response: Response
        ) -> dict[str, int]:
            self.runs += 1
            if way == "psycopg in threads":
                request.session.execute(INSERT, [note])
            else:
                request.session.execute(text("INSERT INTO work VALUES (:note)"), {"note": note})
            with suppress(Exception):
                last: Any = text(self.last) if way == "sqlalchemy in threads" else self.last
                request.session.execute(last)
            response.status_code = self.act()
            return {"run": self.runs}

        self.app.post("/payments/{note}")(pay if way in ASYNC else pay_in_thread)
        self.client = client(self.app)

    async def pay(self, key: str, *, keyed: bool = True) -> httpx.Response:
        """Send a request."""
        return await self.client.post(f"/payments/{key}", headers={"idempotency-key": key} if keyed else {})


@asynccontextmanager
async def open_till(place: Place, redis: RedisServer, way: str, **gate: Any) -> AsyncIterator[Till]:
    """Open an application."""
    async with AsyncExitStack() as stack:
        begin = await stack.enter_async_context((ASYNC | SYNC)[way](place))
        till = Till(await stack.enter_async_context(Dedup(redis.url, namespace="till", **gate)), way, begin)
        await stack.enter_async_context(till.client)
        yield till


till = async_fixture(lambda mortal_postgres, mortal_redis, way: open_till(mortal_postgres, mortal_redis, way))


@each_way
async def test_work_and_response_are_committed_once(
    till: Till, mortal_postgres: Place, mortal_redis: RedisServer, key: str
) -> None:
    first, again = await till.pay(key), await till.pay(key)
    flush(mortal_redis)
    third = await till.pay(key)
    assert [(one.status_code, one.content) for one in (again, third)] == [(201, first.content)] * 2
    assert third.headers["idempotency-replayed"] == "true"
    assert (till.runs, mortal_postgres.effects(key)) == (1, 1)


@each_way
@pytest.mark.parametrize("how", ["5xx", "error"])
async def test_what_fails_is_rolled_back(how: str, till: Till, mortal_postgres: Place, key: str) -> None:
    def fail() -> int:
        if how == "error":
            raise LookupError
        return 503

    till.act = fail
    assert (await till.pay(key)).status_code == (500 if how == "error" else 503)
    assert mortal_postgres.effects(key) == 0
    till.act = lambda: 201
    assert (await till.pay(key)).json() == {"run": 2}
    assert mortal_postgres.effects(key) == 1


@each_way
@pytest.mark.parametrize("keyed", [True, False], ids=["key", "no key"])
@pytest.mark.parametrize(
    "last",
    ["SELECT 1/0", "SELECT pg_terminate_backend(pg_backend_pid())", "ROLLBACK"],
    ids=["failed", "killed", "ended"],
)
async def test_work_that_cannot_commit_is_no_success(
    last: str, keyed: bool, till: Till, mortal_postgres: Place, key: str
) -> None:
    """Also if the handler ignores the error, and if the COMMIT would pass without one."""
    till.last = last
    assert (await till.pay(key, keyed=keyed)).status_code >= 500
    assert mortal_postgres.effects(key) == 0
    till.last = "SELECT 1"
    assert (await till.pay(key, keyed=keyed)).json() == {"run": 2}
    assert mortal_postgres.effects(key) == 1


@each_way
@pytest.mark.parametrize("keyed", [True, False], ids=["key", "no key"])
async def test_a_connection_that_is_lost_under_the_work_is_503(
    keyed: bool, till: Till, mortal_postgres: Place, key: str
) -> None:
    """Also if the handler does not notice it, or ignores its error."""
    till.last = "SELECT pg_terminate_backend(pg_backend_pid())"
    problem(await till.pay(key, keyed=keyed), "database-unavailable", 503)
    assert mortal_postgres.effects(key) == 0


@each_way
async def test_a_lost_reply_of_commit_is_answered_by_the_row(
    till: Till, mortal_postgres: Place, key: str
) -> None:
    mortal_postgres.proxy.lose()
    lost = await till.pay(key)
    problem(lost, "commit-unknown", 503)
    assert lost.headers["retry-after"] == "1"
    again = await till.pay(key)
    assert (again.status_code, again.json()) == (201, {"run": 1})
    assert again.headers["idempotency-replayed"] == "true"
    assert (till.runs, mortal_postgres.effects(key)) == (1, 1)


@each_way
async def test_without_a_database_the_answer_is_503(till: Till, mortal_postgres: Place, key: str) -> None:
    with broken_database(mortal_postgres):
        away = await till.pay(key)
        problem(away, "database-unavailable", 503)
        assert away.headers["retry-after"] == "1"
    assert (await till.pay(key)).json() == {"run": 1}
    assert mortal_postgres.effects(key) == 1


@contextmanager
def broken_database(place: Place) -> Iterator[None]:
    """Have the database killed for the length of a block."""
    place.server.kill()
    try:
        yield
    finally:
        place.server.start()


def held_up(till: Till) -> tuple[threading.Event, threading.Event]:
    """Let a till's work wait; return what says that it is at work, and what lets it go on."""
    is_there, go_on = threading.Event(), threading.Event()

    def act() -> int:
        is_there.set()
        go_on.wait(20.0)
        return 201

    till.act = act
    return is_there, go_on


@pytest.mark.parametrize("way", SYNC)
async def test_waiters_in_threads_leave_a_thread_for_the_first(
    way: str,
    mortal_postgres: Place,
    mortal_redis: RedisServer,
    key: str,
    wait_until: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without Redis duplicates wait at the row, in all threads that begin transactions; the first still commits."""
    monkeypatch.setattr(response_stage, "THREADS", 2)
    async with open_till(mortal_postgres, mortal_redis, way, timeout=0.1) as till:
        is_there, go_on = held_up(till)
        with broken(mortal_redis, "killed"):
            first = asyncio.create_task(till.pay(key))
            await wait_until(is_there.is_set, description="it is at work")
            others = [asyncio.create_task(till.pay(key)) for _ in range(4)]
            await wait_until(lambda: mortal_postgres.waiting() == 2, description="two wait at the row")
            go_on.set()
            answers = await asyncio.gather(first, *others)
        assert {one.content for one in answers} == {b'{"run":1}'}
        assert (till.runs, mortal_postgres.effects(key)) == (1, 1)


@pytest.mark.parametrize("way", SYNC)
async def test_a_client_that_leaves_a_thread_leaves_no_transaction_open(
    till: Till, mortal_postgres: Place, key: str, wait_until: Callable[..., Any]
) -> None:
    """A thread cannot be stopped: its request's cancellation waits for it, and its transaction is rolled back."""
    is_there, go_on = held_up(till)
    task = asyncio.create_task(till.pay(key))
    await wait_until(is_there.is_set, description="it is at work")
    task.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    till.act = lambda: 201
    again = await till.pay(key)
    assert (again.status_code, again.json()) == (201, {"run": 2})
    assert mortal_postgres.effects(key) == 1
