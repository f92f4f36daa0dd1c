"""A synchronous consumer over a real database and a real Redis: `shop.py` with a thread for each call."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from functools import partial
from threading import Event, Thread
from types import FrameType
from typing import Any

import psycopg
import pymysql

from fastdedup import Record, UnavailableError
from fastdedup.events import Event as GateEvent
from fastdedup.events import GateBypassed
from fastdedup.sql.local_calls import ThreadEnd
from fastdedup.sync import Dedup
from fastdedup.sync.sql import Inbox

from ..databases import PostgresServer
from ..servers import RedisServer
from .shop import WAYS, Place, Shop, open_shop
from .times import WEEK

PATIENCE = 20.0
SYNC_WAYS = ("psycopg", "pymysql")
_numbers = itertools.count(1)


class SyncShop:
    """A consumer. `act` is what its body does after its effect, a function or a coroutine function."""

    def __init__(self, place: Place, gate: Dedup, **options: Any) -> None:
        self.place = place
        self.gate = gate
        self.begin = options.pop("begin", None) or begin_of(place)
        self.inbox = Inbox(options.pop("name", "shop"), keep=WEEK)
        self.events: list[GateEvent] = []
        self.runs = 0
        self.act: Callable[[Any, str], Any] = lambda transaction, key: None
        self._loop = asyncio.get_running_loop()
        once = self.inbox.once(
            key=lambda transaction, key: key, begin=self.begin, **{"gate": gate, **options}
        )
        self.handle_here = once(self.work)
        """Handles a message in the thread that calls it."""
        self.handle = partial(in_thread, self.handle_here)
        self.elsewhere = partial(in_thread, once(self.work))
        """Handles messages as another process would: see `Shop`."""

    def work(self, transaction: Any, key: str) -> Any:
        self.runs += 1
        transaction.cursor().execute("INSERT INTO work VALUES (%s)", (key,))
        result = self.act(transaction, key)
        if not asyncio.iscoroutine(result):
            return result
        return asyncio.run_coroutine_threadsafe(result, self._loop).result(PATIENCE)

    async def record(self, key: str) -> Record | None:
        return self.gate.get(self.inbox.rules.gate_key(key))

    async def bypasses(self) -> list[GateBypassed]:
        """Give the events by which the gate was bypassed; they are told in the gate's thread, in order."""
        with suppress(UnavailableError):
            await self.record("no message")  # comes after them
        return [event for event in self.events if isinstance(event, GateBypassed)]

    async def ask(self, transaction: Any, statement: str) -> None:
        transaction.cursor().execute(statement)

    @property
    def waiters(self) -> int:
        return self.gate.bound.latest.gate.connection.wakeups.waiting

    def are_behind(self, calls: int) -> bool:
        return sum(map(is_behind, sys._current_frames().values())) == calls


def is_behind(frame: FrameType | None) -> bool:
    """True while a thread, of which this is the innermost frame, waits for the end of a call in another one."""
    inner = None
    while frame is not None and frame.f_code is not ThreadEnd.wait.__code__:
        inner, frame = frame, frame.f_back
    return inner is not None and frame is not None and inner.f_code is Event.wait.__code__


def begin_of(place: Place) -> Callable[[], Any]:
    """Give a `begin` through the proxy of a place."""
    connect: Callable[[], Any]
    if isinstance(place.server, PostgresServer):
        connect = partial(psycopg.connect, **{**place.database.psycopg, "host": str(place.proxy.folder)})
    else:
        path = str(place.proxy.path)
        connect = partial(pymysql.connect, **{**place.database.pymysql, "unix_socket": path})

    @contextmanager
    def begin() -> Iterator[Any]:
        connection = connect()
        try:
            yield connection
            connection.commit()
        finally:
            with suppress(pymysql.err.Error):  # closed already
                connection.close()  # rolls back what was not committed

    return begin


@asynccontextmanager
async def open_sync_shop(place: Place, redis: RedisServer, **options: Any) -> AsyncIterator[SyncShop]:
    """Open a consumer. `gate`: arguments of its Dedup; the other options go to `once`."""
    events: list[GateEvent] = []
    settings = {"namespace": f"s{next(_numbers)}", "on_event": events.append, **options.pop("gate", {})}
    with Dedup(redis.url, **settings) as gate:
        shop = SyncShop(place, gate, **options)
        shop.events = events
        yield shop


def open_either(
    place: Place, redis: RedisServer, way: str, **options: Any
) -> AbstractAsyncContextManager[Shop | SyncShop]:
    """Open a consumer over any driver."""
    return open_shop(place, redis, way, **options) if way in WAYS else open_sync_shop(place, redis, **options)


class Call:
    """A call in a thread of its own: `result` waits for what it returns, or raises what it raised."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._outcome: Any = None
        self._error: BaseException | None = None
        self.thread = Thread(target=self._run, args=(function, *args), daemon=True)
        self.thread.start()

    def _run(self, function: Callable[..., Any], *args: Any) -> None:
        try:
            self._outcome = function(*args)
        except BaseException as error:  # noqa: BLE001 -- raised again by `result`
            self._error = error

    @property
    def result(self) -> Any:
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()
        if self._error is not None:
            raise self._error
        return self._outcome


def waits_behind(call: Call) -> bool:
    """True while a call waits for the end of a call in another thread."""
    return is_behind(sys._current_frames().get(call.thread.ident or 0))


async def in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a thread of its own."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def run() -> Any:
        try:
            return function(*args)
        finally:
            loop.call_soon_threadsafe(ended.set)

    call = Call(run)
    await ended.wait()
    return call.result
