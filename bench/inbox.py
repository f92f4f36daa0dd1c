"""The inbox beside bare transactions, a storm with and without a gate, and a purge under load. Main path: `inbox`.

Each database is a durable server of the benchmark's own, over a Unix socket.
"""

import asyncio
import secrets
import sqlite3
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any

import orjson

from bench.contest import Table
from bench.pairs import STRETCH, Figures, MakePair, Pair, play_pairs
from bench.run import Run
from fastdedup import Dedup
from fastdedup.sql import Inbox
from fastdedup.sql.dialects import TableName, dialect_of
from fastdedup.sql.drivers.base import placed
from fastdedup.sync.sql import Inbox as SyncInbox
from tests.databases import MariaServer, PostgresServer

CONNECTIONS = 64
STORM_CONNECTIONS, DUPLICATES = 16, 10  # each message is delivered so often at once
# Different messages in flight. Their own transactions leave half of the connections free, so that a bystander who
# waits for one waits for duplicates; were they more than the connections, the work alone would fill the pool.
IN_FLIGHT = 8
WORK = 0.005  # seconds that the work of a message takes, inside the transaction
STORM_TIMES = 2  # rounds for each of the plan: with a gate a turn takes a second, which a slow fsync changes
STORM_MESSAGES = 1000  # fewer would be over before a hundred questions of the bystander
OLD_ROWS, FOREGROUND = 200_000, 16  # rows to purge, and the callers beside the purge
TABLE = "fastdedup_inbox"
KEEP = timedelta(days=7)
POSTGRES = ("PostgreSQL, bare transaction", "PostgreSQL, with the inbox")
RESULT = ("PostgreSQL, bare", "PostgreSQL, with the inbox and a result")
FOLDED = ("PostgreSQL, bare, again", "PostgreSQL, folded into the first statement")
STATEMENTS = ("PostgreSQL, bare, beside the statements", "PostgreSQL, the inbox's statements by hand")
ALL_STATEMENTS = ("PostgreSQL, bare, beside all statements", "PostgreSQL, … and the result's by hand")
BY_HAND = ("PostgreSQL, bare, beside a table by hand", "PostgreSQL, with a table by hand")
PEER = ("PostgreSQL, bare, beside fastidempotent", "PostgreSQL, with fastidempotent")
MARIADB = ("MariaDB, bare transaction", "MariaDB, with the inbox")
SQLITE = ("SQLite, bare transaction", "SQLite, with the inbox")
SQLITE_STATEMENTS = ("SQLite, bare, beside the statements", "SQLite, the inbox's statements by hand")
STORM = ("storm, inbox alone", "storm, gate and inbox")
PURGE = ("PostgreSQL, no purge", "PostgreSQL, beside a purge")
MARIADB_PURGE = ("MariaDB, no purge", "MariaDB, beside a purge")
NOTES = (
    f"A transaction inserts an invoice; {CONNECTIONS} connections, by asyncpg and aiomysql; SQLite in WAL with "
    "synchronous=FULL, one writer. Servers with fsync, on this machine, which the client shares with them.",
    f"The storm: {IN_FLIGHT} messages at a time, each delivered {DUPLICATES} times at once, over "
    f"{STORM_CONNECTIONS} connections; the work takes {1000 * WORK:g} ms. A bystander asks for one row meanwhile, "
    "over the same connections: its p99 is `bystander_ms`.",
    f"The purge deletes {OLD_ROWS:,} rows, while {FOREGROUND} connections receive messages: `p99_ms` is theirs.",
)
INVOICES = {
    "postgresql": "CREATE TABLE invoice (id bigserial PRIMARY KEY, message text NOT NULL, amount int NOT NULL)",
    "mysql": "CREATE TABLE invoice (id bigint AUTO_INCREMENT PRIMARY KEY, message text NOT NULL, amount int)",
    "sqlite": "CREATE TABLE invoice (id integer PRIMARY KEY, message text NOT NULL, amount int NOT NULL)",
}
Work = Callable[[str], Awaitable[None]]
BARE = "INSERT INTO invoice (message, amount) VALUES ($1, 7)"
TABLE_BY_HAND = (
    "CREATE TABLE by_hand (message_id varchar(64) PRIMARY KEY, consumer varchar(64) NOT NULL, "
    "status varchar(16) NOT NULL, created_at timestamptz NOT NULL DEFAULT now()); "
    "CREATE INDEX ON by_hand (created_at)"
)
# A thousand messages a second, in the order of their arrival. A table of few rows has more of its bytes in pages that
# are not full yet.
MANY_ROWS = 300_000
FILLS = {
    TABLE: f"INSERT INTO {TABLE} (id, at) SELECT gen_random_uuid(), "
    f"date_trunc('second', now()) + number / 1000 * interval '1 s' FROM generate_series(1, {MANY_ROWS}) AS number",
    "by_hand": "INSERT INTO by_hand SELECT md5(random()::text), 'billing', 'done', "
    f"now() + number * interval '1 ms' FROM generate_series(1, {MANY_ROWS}) AS number",
}
MARK = "message_id, consumer, status) VALUES ($1, 'billing', 'done') ON CONFLICT (message_id) DO NOTHING RETURNING 1"
_POSTGRES = dialect_of("postgresql", TableName(TABLE))
INSERT = placed(_POSTGRES.insert_one(bytes(16)).sql, "$")
KEEP_RESULT = placed(_POSTGRES.complete(bytes(16), b"").sql, "$")
SQLITE_INSERT = dialect_of("sqlite", TableName(TABLE)).insert_one(bytes(16)).sql
FOLD = (
    f"WITH first AS (INSERT INTO {TABLE} (id) VALUES ($1) ON CONFLICT (id) DO NOTHING RETURNING 1) "
    "INSERT INTO invoice (message, amount) SELECT $2::text, 7 FROM first RETURNING 1"
)


MakePairs = Callable[[AsyncExitStack, float], list[tuple[tuple[str, str], MakePair]]]


def inbox_steps(run: Run) -> int:
    return 2 * len(_transactions(AsyncExitStack(), 1.0)) * run.plan.rounds


async def inbox(run: Run) -> Table:
    """Measure transactions with the inbox beside bare ones."""
    return await _table(
        run, "inbox", "The SQL inbox beside bare transactions", "rate", _transactions, NOTES[0]
    )


def inbox_storm_steps(run: Run) -> int:
    return 2 * STORM_TIMES * run.plan.rounds


async def inbox_storm(run: Run) -> Table:
    """Measure a storm of duplicates at the inbox, with a gate before it and without."""
    pairs = partial(_storms, run)
    title = "Ten-fold duplicates at the SQL inbox"
    return await _table(run, "inbox-storm", title, "rate", pairs, NOTES[1], times=STORM_TIMES)


def inbox_purge_steps(run: Run) -> int:
    return 2 * len(_purges(AsyncExitStack(), 1.0)) * run.plan.rounds


async def inbox_purge(run: Run) -> Table:
    """Measure what a purge does to those who work meanwhile."""
    return await _table(run, "inbox-purge", "The SQL inbox beside its purge", "p99_ms", _purges, NOTES[2])


async def _table(
    run: Run, name: str, title: str, main: str, pairs: MakePairs, note: str, *, times: int = 1
) -> Table:
    async with AsyncExitStack() as stack:
        rows = await play_pairs(run.plan, name, pairs(stack, STRETCH * run.plan.seconds), times=times)
    return Table(name, title, main, tuple(rows), notes=(note,))


def _transactions(stack: AsyncExitStack, seconds: float) -> list[tuple[tuple[str, str], MakePair]]:
    return [
        (POSTGRES, partial(_postgres, stack, seconds, POSTGRES, "receive")),
        (RESULT, partial(_postgres, stack, seconds, RESULT, "complete")),
        (FOLDED, partial(_postgres, stack, seconds, FOLDED, "fold")),
        (STATEMENTS, partial(_postgres, stack, seconds, STATEMENTS, "statements")),
        (ALL_STATEMENTS, partial(_postgres, stack, seconds, ALL_STATEMENTS, "all_statements")),
        (BY_HAND, partial(_postgres, stack, seconds, BY_HAND, "by_hand")),
        (PEER, partial(_fastidempotent, stack, seconds)),
        (MARIADB, partial(_mariadb, stack, seconds)),
        (SQLITE, partial(_sqlite, stack, seconds, SQLITE)),
        (SQLITE_STATEMENTS, partial(_sqlite, stack, seconds, SQLITE_STATEMENTS)),
    ]


def _storms(run: Run, stack: AsyncExitStack, seconds: float) -> list[tuple[tuple[str, str], MakePair]]:
    return [(STORM, partial(_storm, stack, run))]


def _purges(stack: AsyncExitStack, seconds: float) -> list[tuple[tuple[str, str], MakePair]]:
    return [(PURGE, partial(_postgres_purge, stack)), (MARIADB_PURGE, partial(_mariadb_purge, stack))]


# PostgreSQL


@dataclass(frozen=True, slots=True)
class Postgres:
    """A fresh database, and the ways to handle a message in it."""

    pool: Any
    box: Inbox
    url: str

    async def bare(self, message: str) -> None:
        async with self.begin() as connection:
            await connection.execute(BARE, message)

    async def receive(self, message: str) -> None:
        async with self.begin() as connection:
            if (await self.box.receive(connection, message)).first:
                await connection.execute(BARE, message)

    async def complete(self, message: str) -> None:
        async with self.begin() as connection:
            receipt = await self.box.receive(connection, message)
            if receipt.first:
                await connection.execute(BARE, message)
                await receipt.complete({"invoice": message})

    async def statements(self, message: str) -> None:
        async with self.begin() as connection:
            if await connection.execute(INSERT, uuid.uuid4()) == "INSERT 0 1":
                await connection.execute(BARE, message)

    async def all_statements(self, message: str) -> None:
        row_id = uuid.uuid4()
        async with self.begin() as connection:
            if await connection.execute(INSERT, row_id) == "INSERT 0 1":
                await connection.execute(BARE, message)
                await connection.execute(KEEP_RESULT, orjson.dumps({"invoice": message}), row_id)

    async def by_hand(self, message: str) -> None:
        async with self.begin() as connection:
            if await connection.fetch(f"INSERT INTO by_hand ({MARK}", message):
                await connection.execute(BARE, message)

    async def fold(self, message: str) -> None:
        async with self.begin() as connection:
            await connection.fetch(FOLD, uuid.uuid4(), message)

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        async with self.pool.acquire() as connection, connection.transaction():
            yield connection

    async def bytes_an_id(self, table: str) -> float:
        """Fill a table as messages would, look at its size, and empty it again."""
        async with self.begin() as connection:
            await connection.execute(FILLS[table])
            size = await connection.fetchval("SELECT pg_total_relation_size($1::text::regclass)", table)
            await connection.execute(f"TRUNCATE {table}")
            return float(size / MANY_ROWS)


async def open_postgres(stack: AsyncExitStack, connections: int) -> Postgres:
    import asyncpg  # type: ignore[import-untyped] # ships no types

    server = stack.enter_context(PostgresServer(durable=True))
    database = server.fresh()
    pool = await asyncpg.create_pool(**database.asyncpg, min_size=connections, max_size=connections)
    stack.push_async_callback(pool.close)
    async with pool.acquire() as connection:
        await connection.execute(dialect_of("postgresql", TableName(TABLE)).ddl() + INVOICES["postgresql"])
        await connection.execute(TABLE_BY_HAND)
    return Postgres(pool, Inbox("bench", keep=KEEP), database.urls["asyncpg"])


async def _postgres(stack: AsyncExitStack, seconds: float, names: tuple[str, str], way: str) -> Pair:
    database = await open_postgres(stack, CONNECTIONS)
    table = {"receive": TABLE, "by_hand": "by_hand"}.get(way)
    size = {"bytes_an_id": await database.bytes_an_id(table)} if table else {}

    async def second() -> Figures:
        return {**await _callers(getattr(database, way), seconds, CONNECTIONS), **size}

    first = partial(_callers, database.bare, seconds, CONNECTIONS)
    return Pair(names, (first, second), "asyncpg", also={"cpu_us": f"{names[0]} CPU"})


async def _fastidempotent(stack: AsyncExitStack, seconds: float) -> Pair:
    """Its key and the work commit in three transactions, so a crash between them loses the work, or doubles it."""
    from fastidempotent.backends.postgres import PostgresBackend
    from fastidempotent.models import IdempotencyRecord, IdempotencyStatus

    database = await open_postgres(stack, CONNECTIONS)
    backend = PostgresBackend(database.url, pool_size=CONNECTIONS)
    await stack.enter_async_context(backend)

    async def handle(message: str) -> None:
        if await backend.acquire_lock(message, 60):
            await database.bare(message)
            now = datetime.now(UTC)
            done = {"status": IdempotencyStatus.COMPLETE, "status_code": 200, "response_body": b"{}"}
            await backend.set(
                IdempotencyRecord(key=message, fingerprint="", created_at=now, expires_at=now + KEEP, **done)
            )

    turns = (
        partial(_callers, database.bare, seconds, CONNECTIONS),
        partial(_callers, handle, seconds, CONNECTIONS),
    )
    return Pair(PEER, turns, "SQLAlchemy and asyncpg")


async def _postgres_purge(stack: AsyncExitStack) -> Pair:
    database = await open_postgres(stack, FOREGROUND + 1)
    fill = (
        f"INSERT INTO {TABLE} (id, at) SELECT gen_random_uuid(), now() - interval '8 days' "
        f"FROM generate_series(1, {OLD_ROWS})"
    )

    async def prepare() -> None:
        async with database.begin() as connection:
            await connection.execute(fill)

    return _purge_pair(PURGE, database.receive, prepare, partial(database.box.purge, begin=database.begin))


# MariaDB


async def _open_mariadb(stack: AsyncExitStack, connections: int) -> Any:
    import aiomysql  # type: ignore[import-untyped] # ships no types

    server = stack.enter_context(MariaServer(durable=True))
    pool = await aiomysql.create_pool(minsize=connections, maxsize=connections, **server.fresh().aiomysql)

    async def close() -> None:
        pool.close()
        await pool.wait_closed()

    stack.push_async_callback(close)
    async with pool.acquire() as connection, connection.cursor() as cursor:
        for statement in (dialect_of("mysql", TableName(TABLE)).ddl(), INVOICES["mysql"]):
            await cursor.execute(statement)

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        async with pool.acquire() as connection:
            await connection.begin()
            try:
                yield connection
            except BaseException:
                await connection.rollback()
                raise
            await connection.commit()

    return begin


def _on_mariadb(begin: Any) -> tuple[Work, Work]:
    box = Inbox("bench", keep=KEEP)
    insert = "INSERT INTO invoice (message, amount) VALUES (%s, 7)"

    async def bare(message: str) -> None:
        async with begin() as connection, connection.cursor() as cursor:
            await cursor.execute(insert, (message,))

    async def receive(message: str) -> None:
        async with begin() as connection:
            if (await box.receive(connection, message)).first:
                async with connection.cursor() as cursor:
                    await cursor.execute(insert, (message,))

    return bare, receive


async def _mariadb(stack: AsyncExitStack, seconds: float) -> Pair:
    bare, receive = _on_mariadb(await _open_mariadb(stack, CONNECTIONS))
    turns = partial(_callers, bare, seconds, CONNECTIONS), partial(_callers, receive, seconds, CONNECTIONS)
    return Pair(MARIADB, turns, "aiomysql", also={"cpu_us": f"{MARIADB[0]} CPU"})


async def _mariadb_purge(stack: AsyncExitStack) -> Pair:
    begin = await _open_mariadb(stack, FOREGROUND + 1)
    fill = (
        f"INSERT INTO {TABLE} (id, at) SELECT RANDOM_BYTES(16), UTC_TIMESTAMP(3) - INTERVAL 8 DAY "
        f"FROM seq_1_to_{OLD_ROWS}"
    )

    async def prepare() -> None:
        async with begin() as connection, connection.cursor() as cursor:
            await cursor.execute(fill)

    box = Inbox("bench", keep=KEEP)
    return _purge_pair(MARIADB_PURGE, _on_mariadb(begin)[1], prepare, partial(box.purge, begin=begin))


# SQLite


async def _sqlite(stack: AsyncExitStack, seconds: float, names: tuple[str, str]) -> Pair:
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fastdedup-bench-"))
    database = sqlite3.connect(Path(folder) / "inbox.sqlite3", isolation_level=None)
    stack.callback(database.close)
    ddl = dialect_of("sqlite", TableName(TABLE)).ddl()
    database.executescript(
        f"PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; {ddl}{INVOICES['sqlite']};"
    )
    box = SyncInbox("bench", keep=KEEP)
    insert = "INSERT INTO invoice (message, amount) VALUES (?, 7)"

    @contextmanager
    def begin() -> Iterator[None]:
        with database:
            database.execute("BEGIN IMMEDIATE")
            yield

    async def bare(message: str) -> None:
        with begin():
            database.execute(insert, (message,))

    async def receive(message: str) -> None:
        with begin():
            if box.receive(database, message).first:
                database.execute(insert, (message,))

    async def statements(message: str) -> None:
        with begin():
            if database.execute(SQLITE_INSERT, (uuid.uuid4().bytes,)).rowcount:
                database.execute(insert, (message,))

    way = receive if names is SQLITE else statements
    turns = partial(_callers, bare, seconds, 1), partial(_callers, way, seconds, 1)
    return Pair(names, turns, "sqlite3")


# The storm


async def _storm(stack: AsyncExitStack, run: Run) -> Pair:
    database = await open_postgres(stack, STORM_CONNECTIONS)
    gate = await stack.enter_async_context(Dedup(run.plan.url, namespace=run.plan.namespace, timeout=5.0))
    begun = 0

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        nonlocal begun
        begun += 1
        async with database.begin() as connection:
            yield connection

    async def work(connection: Any, message: str) -> str:
        await connection.execute(BARE, message)
        await connection.execute("SELECT pg_sleep($1)", WORK)
        return message

    ways = [
        database.box.once(key=lambda connection, message: message, begin=begin, gate=each, wait=60.0)(work)
        for each in (None, gate)
    ]
    for way in ways:
        await way(secrets.token_hex(8))  # the first message is looked up in a second transaction

    async def turn(handle: Callable[[str], Awaitable[str]]) -> Figures:
        nonlocal begun
        begun = 0
        figures = await _crowd(handle, database.begin)
        return {**figures, "transactions_a_message": begun / STORM_MESSAGES}

    turns = partial(turn, ways[0]), partial(turn, ways[1])
    return Pair(STORM, turns, "asyncpg", also={"bystander_ms": f"{STORM[0]} bystander"})


async def _crowd(handle: Callable[[str], Awaitable[str]], begin: Any) -> Figures:
    """Deliver each message many times at once; a bystander asks for a row meanwhile, over the same connections."""
    messages = iter([secrets.token_hex(8) for _ in range(STORM_MESSAGES)])
    spent: list[float] = []

    async def deliver() -> None:
        for message in messages:
            answers = await asyncio.gather(*[handle(message) for _ in range(DUPLICATES)])
            if answers != [message] * DUPLICATES:
                raise RuntimeError(f"{message} was answered by {answers}")

    async def bystand() -> None:
        while True:
            began = time.perf_counter()
            async with begin() as connection:
                await connection.fetchval("SELECT 1")
            spent.append(time.perf_counter() - began)
            await asyncio.sleep(0.005)

    bystander = asyncio.create_task(bystand())
    began = time.perf_counter()
    try:
        await asyncio.gather(*[deliver() for _ in range(IN_FLIGHT)])
    finally:
        bystander.cancel()
    seconds = time.perf_counter() - began
    return {
        "rate": STORM_MESSAGES * DUPLICATES / seconds,
        "bystander_ms": 1000 * quantiles(spent, n=100)[98] if len(spent) > 1 else float("nan"),
    }


# Callers


def _purge_pair(
    names: tuple[str, str], receive: Work, prepare: Callable[[], Awaitable[None]], purge: Any
) -> Pair:
    async def alone() -> Figures:
        return await _callers(receive, 1.0, FOREGROUND)

    async def beside() -> Figures:
        await prepare()
        batches: list[float] = []
        last = time.perf_counter()

        def on_batch(rows: int) -> None:
            nonlocal last
            now = time.perf_counter()
            batches.append(now - last)
            last = now

        purging = asyncio.create_task(purge(on_batch=on_batch))
        began = last = time.perf_counter()
        figures = await _callers(receive, 60.0, FOREGROUND, until=purging)
        deleted = await purging
        return {
            **figures,
            "purged_rate": deleted / (time.perf_counter() - began),
            "batch_ms": 1000 * max(batches, default=0.0),
        }

    return Pair(names, (alone, beside), "callers of its own", "p99_ms")


async def _callers(
    work: Work, seconds: float, callers: int, *, until: asyncio.Task[Any] | None = None
) -> Figures:
    """Let callers handle fresh messages, one after another each; return their rate, client CPU and p99."""
    spent: list[float] = []
    stop = time.perf_counter() + seconds

    async def call() -> None:
        while (began := time.perf_counter()) < stop and not (until is not None and until.done()):
            await work(secrets.token_hex(16))
            spent.append(time.perf_counter() - began)

    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*[call() for _ in range(callers)])
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {
        "rate": len(spent) / took,
        "cpu_us": 1e6 * cpu / len(spent),
        "p50_ms": 1000 * quantiles(spent, n=100)[49],
        "p99_ms": 1000 * quantiles(spent, n=100)[98],
    }
