"""A synchronous consumer over a real database and a real Redis: see `shop.py`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import Event, Thread
from typing import Any

import psycopg
import pymysql

from fastdedup import InProgressError, Record, UnavailableError
from fastdedup.events import Event as GateEvent
from fastdedup.events import GateBypassed
from fastdedup.sync import Dedup
from fastdedup.sync.sql import Inbox

from ..databases import PostgresServer
from ..servers import RedisServer
from .shop import Place
from .times import WEEK

Body = Callable[[Any, str], Any]
_numbers = itertools.count(1)


class SyncShop:
    """A consumer. `act` is what its body does after its effect."""

    def __init__(self, place: Place, gate: Dedup, **options: Any) -> None:
        self.place = place
        self.gate = gate
        self.begin = options.pop("begin", None) or begin_of(place)
        self.inbox = Inbox(options.pop("name", "shop"), keep=WEEK)
        self.events: list[GateEvent] = []
        self.runs = 0
        self.act: Body = lambda transaction, key: key
        once = self.inbox.once(
            key=lambda transaction, key: key, begin=self.begin, **{"gate": gate, **options}
        )
        self.handle = once(self._work)
        self.elsewhere = once(self._work)
        """Handles messages as another process would: see `Shop`."""

    def _work(self, transaction: Any, key: str) -> Any:
        self.runs += 1
        transaction.cursor().execute("INSERT INTO work VALUES (%s)", (key,))
        return self.act(transaction, key)

    def record(self, key: str) -> Record | None:
        """Give what the gate holds of a message."""
        return self.gate.get(self.inbox._rules.gate_key(key))

    def redelivered(self, key: str) -> list[Any]:
        """Deliver a message again: its result in a list, or nothing while its gate is still held."""
        try:
            return [self.handle(key)]
        except InProgressError:
            return []

    @property
    def waiters(self) -> int:
        """The number of callers that wait at the gate."""
        return self.gate._dedup.latest._namespace.connection.wakeups._count


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


@contextmanager
def open_sync_shop(place: Place, redis: RedisServer, **options: Any) -> Iterator[SyncShop]:
    """Open a consumer. `gate`: arguments of its Dedup; the other options go to `once`."""
    events: list[GateEvent] = []
    options_of_gate = options.pop("gate", {})
    namespace = f"s{next(_numbers)}"
    settings = {"namespace": namespace, "on_event": events.append, **options_of_gate}
    with Dedup(redis.url, **settings) as gate:
        shop = SyncShop(place, gate, **options)
        shop.events = events
        yield shop


def bypasses(shop: SyncShop) -> list[GateBypassed]:
    """Give the events by which the gate was bypassed; they are told in the gate's thread, in order."""
    with suppress(UnavailableError):
        shop.record("no message")  # comes after them
    return [event for event in shop.events if isinstance(event, GateBypassed)]


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
        self.thread.join(20.0)
        assert not self.thread.is_alive()
        if self._error is not None:
            raise self._error
        return self._outcome


def held() -> tuple[Event, Body]:
    """Give a body that waits until the event is set, and returns its key."""
    go_on = Event()

    def act(transaction: Any, key: str) -> str:
        assert go_on.wait(20.0)
        return key

    return go_on, act
