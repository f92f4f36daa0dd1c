"""Deliveries that crash at each step: a gate in front of an inbox, on a real Redis and a file of SQLite.

The first delivery of a message is a forked process, which `os._exit` ends as a crash would. A step is a callback that
its event loop runs; what SQLite does is a step of its own. The later deliveries run in this process. The server's
clock is set, so a lease ends at once. A run is a tuple, and the same each time.

`python -m tests.model.crashes NAME…` plays the runs of `SERIES`, and prints a line for each.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import logging
import os
import socket
import sqlite3
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

import aiosqlite
import redis.utils

from fastdedup import Dedup, InProgressError
from fastdedup.sql import Inbox
from fastdedup.sql.dialects import TableName, dialect_of
from fastdedup.sql.drivers.sqlite3 import is_begun
from fastdedup.sql.rules import TABLE
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.sync import loop as background
from fastdedup.sync.sql import Inbox as SyncInbox

from ..servers import DEADLINE
from ..stepping import SteppingServer

KEY = "k"
HOUR = 3600.0
LEASE = 30.0
NOW_US = 1_800_000_000_000_500
TABLES = f"{dialect_of('sqlite', TableName(TABLE)).ddl()} CREATE TABLE effects (doer TEXT, whole INTEGER);"
WRITE = "INSERT INTO effects VALUES (?, 0)"
FINISH = "UPDATE effects SET whole = 1"

STAGES = UNSENT, HELD, WRITTEN, COMMITTED, SETTLED = (
    "the claim is not sent",
    "the claim is held, no row is written",
    "the row is written, not committed",
    "the row is committed, the gate is not settled",
    "the gate is settled",
)
"""How far a delivery has come."""
CLAIMED, AT_WORK, DONE = "claimed", "at work", "done"


class Run(NamedTuple):
    """What decides a run.

    way: how the message is delivered, of `WAYS`.
    pauses: the step or the point at which the first delivery pauses; its lease ends, and another one takes it over.
    dies: the step before which the first delivery dies, counted from the pause on. 0: it does not die.
    forgets: instead of a lease's end, Redis forgets everything; it does so before each later delivery as well.
    """

    way: str
    pauses: int | str = 0
    dies: int = 0
    forgets: bool = False


class Played(NamedTuple):
    """What came of a run.

    stage: of the first delivery when it died or paused.
    told: what each delivery was told: who has done the work, or to wait.
    effects: who has done the work, by what is committed at the end.
    broken: what must not be.
    """

    run: Run
    stage: str
    told: dict[str, str]
    effects: list[str]
    broken: list[str]


class Delivery:
    """A delivery of the message.

    Args:
        doer: its name.
        on_busy: called if another one's transaction is in its way.
    """

    def __init__(self, doer: str, on_busy: Callable[[], object] = lambda: None) -> None:
        self.doer = doer
        self.on_busy = on_busy
        self.connection: sqlite3.Connection | None = None
        """That of the last transaction."""

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the steps within a block."""
        yield

    def step(self, *_: object) -> None:
        """Take a step."""

    def reach(self, point: int | str) -> None:
        """Reach a point."""


class FirstDelivery(Delivery):
    """The first delivery, which pauses and dies as a run says. `parent` hears of that."""

    def __init__(self, run: Run, parent: socket.socket) -> None:
        super().__init__("first")
        self._parent = parent
        self._pauses, self._dies = run.pauses, run.dies
        # Mutable: are steps counted, and the numbers to come.
        self._counts = False
        self._numbers = itertools.count(1)

    @contextmanager
    def counted(self) -> Iterator[None]:
        self._counts = True
        yield
        self._counts = False

    def step(self, *_: object) -> None:
        if self._counts:
            number = next(self._numbers)
            self.reach(number)
            if number == self._dies and not self._pauses:
                self.end("died")

    def reach(self, point: int | str) -> None:
        if self._pauses and point == self._pauses:
            self._pauses, self._numbers = 0, itertools.count(1)
            self._tell("paused")
            self._parent.recv(1)

    def end(self, how: str) -> None:
        self._tell(how)
        os._exit(0)

    def _tell(self, what: str) -> None:
        connection = self.connection
        has_written = connection is not None and is_begun(connection) and connection.total_changes > 0
        self._parent.send(json.dumps([what, has_written]).encode())


# The ways to deliver


class LoopConnection(aiosqlite.Connection):
    """A connection of aiosqlite that uses SQLite in steps of the loop, not in a thread."""

    async def __aenter__(self) -> LoopConnection:
        self._connection = self._connector()
        return self

    async def _execute(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return fn(*args, **kwargs)

    async def close(self) -> None:
        await self._execute(self._conn.close)
        self._connection = None


def connect(database: str, delivery: Delivery) -> sqlite3.Connection:
    delivery.connection = sqlite3.connect(database, timeout=0, isolation_level=None, check_same_thread=False)
    delivery.connection.execute("PRAGMA synchronous = OFF")  # the machine does not crash
    return delivery.connection


@asynccontextmanager
async def begin(database: str, delivery: Delivery) -> AsyncIterator[LoopConnection]:
    delivery.reach(CLAIMED)
    async with LoopConnection(partial(connect, database, delivery), 64) as connection:
        try:
            await connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:  # busy: SQLite itself would sleep until the other one has ended
            delivery.on_busy()
            await connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            await connection.rollback()
            raise
        await connection.execute("COMMIT")
    delivery.reach(DONE)


async def work(transaction: aiosqlite.Connection, delivery: Delivery) -> str:
    await transaction.execute(WRITE, (delivery.doer,))
    delivery.reach(AT_WORK)
    await transaction.execute(FINISH)
    return delivery.doer


async def inbox(url: str, database: str, delivery: Delivery) -> str:
    """Deliver as the documentation says: a gate, and an inbox in the transaction of the work."""
    async with Dedup(url, lease=LEASE, timeout=DEADLINE) as gate:
        rows = Inbox("shop", keep=HOUR, begin=partial(begin, database, delivery))

        @rows.once(key=lambda transaction: KEY, gate=gate)
        async def handle(transaction: aiosqlite.Connection) -> str:
            return await work(transaction, delivery)

        with delivery.counted():
            return await handle()


async def gate_alone(url: str, database: str, delivery: Delivery) -> str:
    """Deliver without an inbox: the work is done twice if it was committed and the gate was not told."""
    async with Dedup(url, lease=LEASE, timeout=DEADLINE) as gate:

        @gate.once(key=lambda: KEY)
        async def handle() -> str:
            async with begin(database, delivery) as transaction:
                return await work(transaction, delivery)

        with delivery.counted():
            return await handle()


async def sync_inbox(url: str, database: str, delivery: Delivery) -> str:
    """Deliver by synchronous code. Each statement is a step as well; the gate's steps are those of its thread."""
    background.new_loop = asyncio.new_event_loop  # not uvloop's, whose callbacks cannot be counted

    @contextmanager
    def begin_now() -> Iterator[sqlite3.Connection]:
        with closing(connect(database, delivery)) as connection:
            connection.set_trace_callback(delivery.step)
            connection.execute("BEGIN IMMEDIATE")
            with connection:
                yield connection

    with SyncDedup(url, lease=LEASE, timeout=DEADLINE) as gate:

        @SyncInbox("shop", keep=HOUR).once(key=lambda transaction: KEY, begin=begin_now, gate=gate)
        def handle(transaction: sqlite3.Connection) -> str:
            transaction.execute(WRITE, (delivery.doer,))
            transaction.execute(FINISH)
            return delivery.doer

        with delivery.counted():
            return handle()


Way = Callable[[str, str, Delivery], Coroutine[Any, Any, str]]
WAYS: dict[str, tuple[Way, Way]] = {
    "inbox": (inbox, inbox),
    "sync inbox": (sync_inbox, inbox),
    "gate alone": (gate_alone, gate_alone),
}
"""How the first delivery is done, and each later one: synchronous code would leave a thread in this process."""


def deliver(way: Way, url: str, database: str, delivery: Delivery) -> str:
    """Return what a delivery is told: who has done the work, to wait, or an error."""
    try:
        return asyncio.run(way(url, database, delivery))
    except InProgressError as error:
        return "wait" if 0 < (error.retry_after or 0) <= LEASE else f"wait {error.retry_after} s"
    except Exception as error:  # noqa: BLE001 -- whatever else is raised is a finding
        return repr(error)


# The runs


class Forked:
    """The process of a first delivery, which has ended or pauses."""

    def __init__(self, run: Run, url: str, database: str) -> None:
        self._way, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self._pid = os.fork()
        if self._pid == 0:
            self._live(run, url, database, theirs)
        theirs.close()
        self._way.settimeout(DEADLINE)
        self._hear()

    @staticmethod
    def _live(run: Run, url: str, database: str, parent: socket.socket) -> None:
        try:
            first = FirstDelivery(run, parent)
            do = asyncio.Handle._run

            def step(handle: asyncio.Handle) -> None:
                first.step()
                do(handle)

            asyncio.Handle._run = step  # type: ignore[method-assign, assignment]
            first.end(deliver(WAYS[run.way][0], url, database, first))
        finally:  # only if the machine itself has failed
            traceback.print_exc()
            os._exit(1)

    def _hear(self) -> None:
        self.said, self.has_written = json.loads(self._way.recv(4096))
        if self.said != "paused":
            self._way.close()
            os.waitpid(self._pid, 0)

    def go_on(self) -> None:
        """Let it come to its end, if it pauses."""
        if self.said == "paused":
            self._way.send(b"!")
            self._hear()


class Shop:
    """A redis-server and a database, in which a message is delivered again and again."""

    def __init__(self, server: SteppingServer) -> None:
        self._server = server
        self._raw = server.client()
        self._database = str(server.folder / "shop.db")
        self._now_us = NOW_US
        server.set_to(NOW_US)
        with closing(sqlite3.connect(self._database)) as connection:
            connection.executescript(TABLES)
        self.play(Run("inbox"))  # so that each fork knows all that a process finds out once
        gc.freeze()

    def play(self, run: Run) -> Played:
        """Deliver a message that no delivery has seen."""
        self._raw.flushall()
        self._sql("DELETE FROM effects", f"DELETE FROM {TABLE}")
        first = Forked(run, self._server.url, self._database)
        stage, told = self._stage(first.has_written), {}
        if first.said == "paused":
            self._disturb(run)
            told["other"] = self._deliver(run, "other", first.go_on)
            first.go_on()
        if run.forgets:
            self._disturb(run)
        told |= {"first": first.said, "second": self._deliver(run, "second")}
        self._disturb(run)
        told["third"] = self._deliver(run, "third")
        effects = [doer if whole else f"half of {doer}" for doer, whole in self._sql("SELECT * FROM effects")]
        broken = [*faults(run, stage, told, effects)]
        if (end := self._stage()) != SETTLED:
            broken.append(f"at the end: {end}")
        return Played(run, stage, told, effects, broken)

    def _deliver(self, run: Run, doer: str, on_busy: Callable[[], object] = lambda: None) -> str:
        return deliver(WAYS[run.way][1], self._server.url, self._database, Delivery(doer, on_busy))

    def _disturb(self, run: Run) -> None:
        """Let Redis forget everything, or let each lease end."""
        if run.forgets:
            self._raw.flushall()
        else:
            self._now_us += round(LEASE * 1e6) + 1_000
            self._server.set_to(self._now_us)

    def _stage(self, has_written: bool = False) -> str:
        self._raw.ping()
        self._raw.ping()  # once this is answered, the server has read what the first delivery has sent
        records: list[Any] = [self._raw.get(key) for key in self._raw.scan_iter()]
        states = b"".join(record[1:2] for record in records).decode()
        match states, bool(self._sql("SELECT 1 FROM effects")):
            case "", False:
                return UNSENT
            case "P", False:
                return WRITTEN if has_written else HELD
            case "P", True:
                return COMMITTED
            case "S", True:
                return SETTLED
            case _, is_committed:
                return f"the row is {'' if is_committed else 'not '}committed, the gate has {states!r}"

    def _sql(self, *statements: str) -> list[Any]:
        """Run statements; return the rows of the last one."""
        with closing(sqlite3.connect(self._database, isolation_level=None)) as connection:
            return [connection.execute(each).fetchall() for each in statements][-1]


def faults(run: Run, stage: str, told: dict[str, str], effects: list[str]) -> Iterator[str]:
    """Yield what must not be: the work is done once, and each delivery is told who has done it."""
    if len(effects) != 1:
        yield f"the work is done {len(effects)} times"
    if stage not in STAGES:
        yield stage
    right = dict.fromkeys(told, "".join(effects))
    if told["first"] == "died":
        right["first"] = "died"
        if stage in (HELD, WRITTEN, COMMITTED) and not run.pauses and not run.forgets:
            right["second"] = "wait"
    for doer, answer in told.items():
        if answer != right[doer]:
            yield f"{doer} is told {answer!r}, not {right[doer]!r}"


def each_step(shop: Shop, run: Run, happens: str) -> Iterator[Played]:
    """Play a run in which the first delivery "pauses" or "dies" at its first step, at its second step, to its end."""
    for step in itertools.count(1):
        played = shop.play(run._replace(dies=step) if happens == "dies" else run._replace(pauses=step))
        yield played
        if played.told["first"] != "died" if happens == "dies" else "other" not in played.told:
            return


SERIES = {
    "crash": ("dies", [Run("inbox")]),
    "crash, Redis forgets": ("dies", [Run("inbox", forgets=True)]),
    "takeover": ("pauses", [Run("inbox")]),
    "takeover, Redis forgets": ("pauses", [Run("inbox", forgets=True)]),
    "takeover, then crash": ("dies", [Run("inbox", pauses=point) for point in (CLAIMED, AT_WORK, DONE)]),
    "crash of synchronous code": ("dies", [Run("sync inbox")]),
    "crash without an inbox": ("dies", [Run("gate alone")]),
}


def main(*names: str) -> None:
    logging.disable(logging.CRITICAL)  # lost leases are told there
    redis.utils.get_lib_version = cache(redis.utils.get_lib_version)  # it reads the disk for each connection
    server = SteppingServer()
    try:
        server.start()
        shop = Shop(server)
        for name in names:
            happens, runs = SERIES[name]
            for played in itertools.chain.from_iterable(each_step(shop, run, happens) for run in runs):
                print(json.dumps([name, *played]))
    finally:
        server.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
