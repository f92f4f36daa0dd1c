"""An endpoint that commits with its work, beside the same endpoint that only writes its row. Main path: `committing`.

FastAPI under uvicorn, over PostgreSQL with fsync and Redis. Every request has a fresh key; all use Unix sockets.
"""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from bench.contest import Table
from bench.pairs import GENERATOR, MakePair, Pair, play_pairs
from bench.run import Run
from bench.server import listening
from bench.sidecar import clean_environment
from bench.web import CPU, Server, command, turn
from fastdedup.sql.dialects import TableName, dialect_of
from fastdedup.sql.rules import TABLE as INBOX
from tests.databases import PostgresServer

TIMES = 2
TABLE = "CREATE TABLE orders (id bigserial PRIMARY KEY, quantity int NOT NULL)"
ASYNCPG = ("FastAPI, one INSERT by asyncpg", "… that commits with its response")
GATE_ASYNCPG = ("FastAPI, one INSERT by asyncpg (2)", "… with Claimed(), the gate alone")
SQLALCHEMY = ("FastAPI, one row by SQLAlchemy's ORM", "… that commits with its response (2)")
GATE_SQLALCHEMY = ("FastAPI, one row by SQLAlchemy's ORM (2)", "… with Claimed(), the gate alone (2)")
INBOX_ASYNCPG = ("FastAPI, the inbox's row by hand, asyncpg", "… that commits with its response (3)")
INBOX_SQLALCHEMY = (
    "FastAPI, the inbox's row by hand, SQLAlchemy's ORM",
    "… that commits with its response (4)",
)
HAND_ASYNCPG = ("FastAPI, one INSERT by asyncpg (3)", "… with the gate and the inbox's row by hand")
HAND_SQLALCHEMY = (
    "FastAPI, one row by SQLAlchemy's ORM (3)",
    "… with the gate and the inbox's row by hand (2)",
)
PAIRS = {
    ASYNCPG: ("bare asyncpg", "committing asyncpg"),
    GATE_ASYNCPG: ("bare asyncpg", "claimed asyncpg"),
    SQLALCHEMY: ("bare sqlalchemy", "committing sqlalchemy"),
    GATE_SQLALCHEMY: ("bare sqlalchemy", "claimed sqlalchemy"),
    INBOX_ASYNCPG: ("inbox asyncpg", "committing asyncpg"),
    INBOX_SQLALCHEMY: ("inbox sqlalchemy", "committing sqlalchemy"),
    HAND_ASYNCPG: ("bare asyncpg", "hand asyncpg"),
    HAND_SQLALCHEMY: ("bare sqlalchemy", "hand sqlalchemy"),
}
NOTES = (
    "Each endpoint commits before its response is sent. A committing one also asks Redis twice, inserts the inbox's "
    "row and keeps the response in it. Load, server, Redis and PostgreSQL share this machine.",
    "By hand: the handler receives the row and keeps the result in it, without a gate, a fingerprint or headers.",
    "The gate and the row by hand: the handler also claims, and begins the transaction itself, which saves FastAPI's "
    "work for a dependency with yield. It has no fingerprint, no headers and no rule of HTTP: it shows the cost of "
    "two statements and of two round trips to Redis.",
)


def committing_steps(run: Run) -> int:
    return 2 * TIMES * run.plan.rounds * len(PAIRS)


async def committing(run: Run) -> Table:
    """Start a database, and a server for each way; play pair after pair."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fastdedup-bench-")))
        rows = await play_pairs(run.plan, "committing", _pairs(run, folder, stack), times=TIMES)
    title = "A FastAPI POST that commits with its response"
    return Table("committing", title, "rate", tuple(rows), notes=NOTES)


def _pairs(run: Run, folder: Path, stack: ExitStack) -> Iterator[tuple[tuple[str, str], MakePair]]:
    servers: dict[str, Server] = {}
    opened: list[Any] = []

    def database() -> Any:
        if not opened:
            opened.append(stack.enter_context(PostgresServer(durable=True)).fresh())
            make_tables(opened[0])
        return opened[0]

    def served(way: str) -> Server:
        if way not in servers:
            place = folder / f"{way.replace(' ', '-')}.sock"
            environment = _environment(run, way, database())
            started = command(place, "bench.committing_app:create")
            process = stack.enter_context(listening(started, place, environment))
            servers[way] = Server(place, process.pid)
        return servers[way]

    async def pair(names: tuple[str, str], ways: tuple[str, str]) -> Pair:
        first, second = (partial(turn, run, served(way), "/orders") for way in ways)
        return Pair(names, (first, second), GENERATOR, also={"cpu_us": CPU})

    for names, ways in PAIRS.items():
        yield names, partial(pair, names, ways)


def make_tables(database: Any) -> None:
    """Make the table of orders and the inbox's."""
    import psycopg  # not installed where only other scenarios run

    with psycopg.connect(**database.psycopg, autocommit=True) as connection:
        connection.execute(TABLE)
        for statement in dialect_of("postgresql", TableName(INBOX)).ddl().split(";"):
            if statement.strip():
                connection.execute(statement)  # type: ignore[arg-type] # no literal


def _environment(run: Run, way: str, database: Any) -> dict[str, str]:
    return {
        **clean_environment(),
        "BENCH_GATE": way,
        "BENCH_URL": run.plan.url,
        "BENCH_NAMESPACE": run.plan.namespace,
        "BENCH_DATABASE": database.name,
        "BENCH_FOLDER": str(database.folder),
    }
