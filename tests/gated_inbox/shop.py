"""A consumer of messages over a real database and a real Redis, and what its work left behind.

`sync_shop.py` has the synchronous one, with the same methods.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from fastdedup import Dedup, InProgressError, Record
from fastdedup.events import Event, GateBypassed
from fastdedup.model import State
from fastdedup.sql import Inbox

from ..databases import MariaServer, PostgresServer
from ..servers import RedisServer
from ..sql.places import place_of
from ..waiting import wait_until
from .commits import CommitProxy, commit_proxy
from .times import WEEK

_numbers = itertools.count(1)


def new_key() -> str:
    """Give a key that no test has used."""
    return f"message-{next(_numbers)}"


class Place:
    """A database with the inbox's table and a table of effects, and the proxy that consumers reach it by."""

    def __init__(self, server: PostgresServer | MariaServer, proxy: CommitProxy) -> None:
        self.server = server
        self.proxy = proxy
        kind = "postgresql" if isinstance(server, PostgresServer) else "mysql"
        place = place_of(kind, server.fresh(), server)
        self.database, self.sql, self.waiting = place.database, place.sql, place.waiting

    def effects(self, key: str) -> int:
        """Give the number of times that a message's work was committed."""
        return int(self.sql(f"SELECT count(*) FROM work WHERE note = '{key}'")[0][0])


@contextmanager
def open_place(kind: type[PostgresServer | MariaServer]) -> Iterator[Place]:
    """Start a database server that may be killed, behind a proxy."""
    with (
        kind() as server,
        tempfile.TemporaryDirectory(prefix="fastdedup-commits-") as folder,
        commit_proxy(server.socket, Path(folder, server.socket.name)) as proxy,
    ):
        yield Place(server, proxy)


@contextmanager
def broken(redis: RedisServer, how: str) -> Iterator[None]:
    """Have Redis killed, or frozen, for the length of a block."""
    if how == "frozen":
        with redis.frozen():
            yield
        return
    redis.kill()
    try:
        yield
    finally:
        redis.start()


def flush(redis: RedisServer) -> None:
    """Let Redis forget everything, as a failover to an empty replica does."""
    with redis.client() as client:
        client.flushall()


def is_unsettled(record: Record | None) -> bool:
    """True where a message was neither completed nor released at the gate. Its lease may have ended meanwhile."""
    return record is None or record.state is State.PROCESSING


def scripts(redis: RedisServer) -> int:
    """Give the number of scripts that Redis has run."""
    with redis.client() as client:
        ran = client.info("commandstats")
    return sum(int(ran[name]["calls"]) for name in ("cmdstat_evalsha", "cmdstat_eval") if name in ran)


# Async

Body = Callable[[Any, str], Awaitable[Any]]


async def nothing(transaction: Any, key: str) -> None:
    """A body's own part that does nothing."""


class Shop:
    """An async consumer. Each of `ways` gives a `begin`; `act` is what its body does after its effect."""

    def __init__(self, place: Place, gate: Dedup, begin: Callable[[], Any], **options: Any) -> None:
        self.place = place
        self.gate = gate
        self.begin = begin
        self.inbox = Inbox(options.pop("name", "shop"), keep=WEEK)
        self.events: list[Event] = []
        self.runs = 0
        self.act: Body = nothing
        once = self.inbox.once(key=lambda transaction, key: key, begin=begin, **{"gate": gate, **options})
        self.handle = once(self.work)
        self.elsewhere = once(self.work)
        """Handles messages as another process would: it does not know of the calls of `handle`."""

    async def work(self, transaction: Any, key: str) -> Any:
        self.runs += 1
        await do_work(transaction, key)
        return await self.act(transaction, key)

    def gate_key(self, key: str) -> str:
        return self.inbox.gate_key(key)

    async def record(self, key: str) -> Record | None:
        """Give what the gate holds of a message."""
        return await self.gate.get(self.gate_key(key))

    async def bypasses(self) -> list[GateBypassed]:
        """Give the events by which the gate was bypassed."""
        return [event for event in self.events if isinstance(event, GateBypassed)]

    async def ask(self, transaction: Any, statement: str) -> None:
        """Run a statement in a body."""
        await transaction.execute(text(statement) if isinstance(transaction, AsyncSession) else statement)

    @property
    def waiters(self) -> int:
        """The number of callers that wait at the gate."""
        return self.gate.gate.connection.wakeups.waiting

    def are_behind(self, calls: int) -> bool:
        """True once so many calls wait behind another one of this process: tasks do so at once."""
        return True


def answer(result: Any) -> Body:
    """Give a body that returns this."""

    async def act(transaction: Any, key: str) -> Any:
        return result

    return act


def held() -> tuple[asyncio.Event, Body]:
    """Give a body that waits until the event is set, and returns its key."""
    go_on = asyncio.Event()

    async def act(transaction: Any, key: str) -> str:
        await go_on.wait()
        return key

    return go_on, act


async def at_work(
    shop: Shop, call: Coroutine[Any, Any, Any], *, fails: bool = False
) -> tuple[asyncio.Event, asyncio.Task[Any]]:
    """Start a call whose work waits; give the event that lets it go on, and its task, once it is at work.

    `fails`: this call's work then raises a LookupError; later work returns its key at once.
    """
    go_on, wait = held()

    async def fail_first(transaction: Any, key: str) -> str:
        if shop.runs == 1:
            await wait(transaction, key)
            raise LookupError(key)
        return key

    shop.act = fail_first if fails else wait
    task = asyncio.create_task(call)
    await wait_until(lambda: shop.runs, description="it is at work")
    return go_on, task


async def redelivered(shop: Shop, key: str) -> list[Any]:
    """Deliver a message again: its result in a list, or nothing while its gate is still held."""
    try:
        return [await shop.handle(key)]
    except InProgressError:
        return []


async def do_work(transaction: Any, key: str) -> None:
    """Leave an effect behind."""
    if isinstance(transaction, AsyncSession):
        await transaction.execute(text("INSERT INTO work VALUES (:note)"), {"note": key})
    else:
        await transaction.execute("INSERT INTO work VALUES ($1)", key)


@asynccontextmanager
async def asyncpg_begin(place: Place) -> AsyncIterator[Callable[[], Any]]:
    """Give a `begin` over a pool of asyncpg's."""
    options = {**place.database.asyncpg, "host": str(place.proxy.folder)}
    async with asyncpg.create_pool(**options, min_size=0, max_size=8) as pool:

        @asynccontextmanager
        async def begin() -> AsyncIterator[Any]:
            async with pool.acquire() as connection, connection.transaction():
                yield connection

        yield begin


@asynccontextmanager
async def sqlalchemy_begin(place: Place) -> AsyncIterator[Callable[[], Any]]:
    """Give SQLAlchemy's `Session.begin` over asyncpg."""
    url = place.database.urls["asyncpg"].partition("?")[0]
    engine = create_async_engine(f"{url}?host={place.proxy.folder}")
    try:
        yield async_sessionmaker(engine).begin
    finally:
        await engine.dispose()


WAYS = {"asyncpg": asyncpg_begin, "sqlalchemy": sqlalchemy_begin}


@asynccontextmanager
async def open_shop(
    place: Place, redis: RedisServer | str, way: str = "asyncpg", **options: Any
) -> AsyncIterator[Shop]:
    """Open a consumer. `gate`: arguments of its Dedup; the other options go to `once`."""
    url = redis if isinstance(redis, str) else redis.url
    events: list[Event] = []
    settings = {"namespace": f"t{next(_numbers)}", **options.pop("gate", {})}
    gate = Dedup(url, on_event=events.append, **settings)
    async with AsyncExitStack() as stack:
        begin = options.pop("begin", None)
        begin = begin or await stack.enter_async_context(WAYS[way](place))
        await stack.enter_async_context(gate)
        shop = Shop(place, gate, begin, **options)
        shop.events = events
        yield shop
