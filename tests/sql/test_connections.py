"""What a caller has set on its own connection does not change what an inbox answers."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg
import psycopg
import pymysql
import pytest
from psycopg.rows import dict_row
from sqlalchemy import create_engine, event
from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker
from sqlalchemy.orm import scoped_session, sessionmaker

from fastdedup.messages import Action, Reason
from fastdedup.messages.dispatch import Dispatcher
from fastdedup.sql import Inbox
from fastdedup.sql.drivers.base import is_outage
from fastdedup.sync.sql import Inbox as SyncInbox

from ..databases import USER
from ..waiting import wait_until
from .conftest import Opener
from .places import Place
from .ways import WEEK, Party, async_engine_of, engine_of

Of = Callable[[str], Opener]


async def goes_round(party: Party, key: str) -> None:
    """Receive a key, keep a result, and replay it."""
    inbox = party.inbox()
    async with party.transaction():
        await party.call((await party.receive(inbox, key)).complete, "kept")
    async with party.transaction():
        found = await party.call(inbox.receive_many, party.raw, [key, f"{key} other"])
        assert [(each.first, each.result) for each in found] == [(False, "kept"), (True, None)]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("psycopg", {"row_factory": dict_row}),
        ("psycopg", {"cursor_factory": psycopg.RawCursor}),
        ("psycopg async", {"row_factory": dict_row}),
        ("psycopg async", {"cursor_factory": psycopg.AsyncRawCursor}),
        ("pymysql", {"cursorclass": pymysql.cursors.DictCursor}),
        ("pymysql", {"cursorclass": pymysql.cursors.SSCursor}),
        ("pymysql", {"client_flag": pymysql.constants.CLIENT.FOUND_ROWS}),
        ("pymysql", {"use_unicode": False}),
        ("pymysql", {"charset": "gbk"}),
        ("pymysql", {"sql_mode": "NO_BACKSLASH_ESCAPES,ANSI_QUOTES,STRICT_ALL_TABLES"}),
        ("pymysql", {"init_command": "SET time_zone = '+11:00'"}),
        ("aiomysql", {"cursorclass": pymysql.cursors.DictCursor}),
        ("aiomysql", {"charset": "gbk"}),
        ("sqlite3", {"detect_types": sqlite3.PARSE_DECLTYPES | sqlite3.PARSE_COLNAMES}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
async def test_a_connections_settings_change_nothing(
    of: Of, key: str, name: str, options: dict[str, Any]
) -> None:
    async with of(name)(**options) as party:
        await goes_round(party, key)


async def test_a_row_factory_of_sqlite_changes_nothing(of: Of, key: str) -> None:
    for name in ("sqlite3", "aiosqlite"):
        async with of(name)() as party:
            party.raw.row_factory = lambda cursor, row: dict(
                zip([each[0] for each in cursor.description], row, strict=True)
            )
            party.raw.text_factory = bytes
            await goes_round(party, f"{key} {name}")


async def test_codecs_of_asyncpg_change_nothing(of: Of, key: str) -> None:
    def hex_of(given: UUID) -> str:
        assert isinstance(given, UUID)
        return given.hex

    async with of("asyncpg")() as party:
        for kind, encoder in (("uuid", hex_of), ("text", str)):
            await party.raw.set_type_codec(
                kind, schema="pg_catalog", encoder=encoder, decoder=str, format="text"
            )
        await goes_round(party, key)


async def test_a_pipeline_of_psycopg_changes_nothing(of: Of, key: str) -> None:
    async with of("psycopg async")() as party, party.raw.pipeline():
        await goes_round(party, f"{key} async")
    async with of("psycopg")() as party:
        pipeline = party.raw.pipeline()
        await party.call(pipeline.__enter__)
        await goes_round(party, key)
        await party.call(pipeline.__exit__, None, None, None)


@pytest.mark.parametrize("name", ["psycopg", "psycopg async"])
async def test_a_connection_without_a_pipeline_begins_none(
    party: Party, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each statement was sent in a pipeline of its own, with one round trip more: a third of a receive's time."""
    monkeypatch.setattr(party.raw, "pipeline", None)
    await goes_round(party, key)


@pytest.mark.parametrize("name", ["asyncpg", "psycopg", "aiomysql"])
async def test_the_callers_lock_timeout_is_kept(of: Of, key: str, name: str) -> None:
    postgres = name != "aiomysql"
    async with of(name)() as ours, of(name)() as other:
        await ours.start()
        await ours.receive(ours.inbox(), key)
        await other.start()
        await other.sql("SET lock_timeout = '7s'" if postgres else "SET innodb_lock_wait_timeout = 7")
        found = await other.call(other.inbox().receive_many, other.raw, [key, f"{key} other"], busy="skip")
        assert [each.outcome for each in found] == ["in_progress", "acquired"]
        asked = "SHOW lock_timeout" if postgres else "SELECT @@innodb_lock_wait_timeout"
        assert await other.sql(asked) == [("7s" if postgres else 7,)]
        if postgres:
            with pytest.raises(Exception, match="does not exist"):
                await other.sql("ROLLBACK TO SAVEPOINT fastdedup_inbox")
        await other.rollback()
        await ours.rollback()


def test_an_engine_that_begins_by_an_event_serves(sqlite_place: Place, key: str) -> None:
    """SQLAlchemy's own recipe for SQLite: sqlite3 begins nothing, an event sends BEGIN."""
    engine = create_engine(sqlite_place.database.urls["pysqlite"], connect_args={"isolation_level": None})
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    inbox = SyncInbox("tests", keep=WEEK)
    with engine.connect() as connection:
        inbox.receive(connection, key).complete(1)
        connection.rollback()
        assert inbox.receive(connection, key).first
    engine.dispose()


async def test_a_scoped_session_serves(postgres_place: Place, key: str) -> None:
    urls = postgres_place.database.urls
    session = scoped_session(sessionmaker(engine_of(urls["psycopg"])))
    with session.begin():
        SyncInbox("tests", keep=WEEK).receive(session, key).complete(1)
    later = async_scoped_session(async_sessionmaker(async_engine_of(urls["asyncpg"])), asyncio.current_task)
    async with later.begin():
        assert (await Inbox("tests", keep=WEEK).receive(later, key)).result == 1
    session.remove()
    await later.remove()


async def test_a_nested_transaction_of_sqlalchemy_serves(of: Of, key: str) -> None:
    async with of("async session asyncpg")() as party, party.transaction():
        inbox = party.inbox()
        async with party.raw.begin_nested():
            receipt = await party.receive(inbox, key)
            await receipt.complete("inside")
        after = await party.receive(inbox, f"{key} other")
        async with party.raw.begin_nested():
            await after.complete("from outside")
        assert (await party.receive(inbox, key)).result == "inside"
        assert (await party.receive(inbox, f"{key} other")).result == "from outside"


@pytest.mark.parametrize("name", ["asyncpg", "psycopg", "pymysql", "aiomysql", "async session aiomysql"])
async def test_a_server_that_gives_no_connection_is_an_outage(of: Of, key: str, name: str) -> None:
    place = of(name)().place
    if place.kind == "postgresql":
        limit, without = f"ALTER ROLE {USER} CONNECTION LIMIT", -1
    else:
        limit, without = f"ALTER USER {USER}@localhost WITH MAX_USER_CONNECTIONS", 0
    place.as_admin(f"{limit} 1")
    try:
        async with of(name)() as first:
            await first.sql("SELECT 1")
            with pytest.raises(Exception, match=r"too many connections|max_user_connections") as caught:
                async with of(name)() as second:
                    await second.receive(second.inbox(), key)
    finally:
        place.as_admin(f"{limit} {without}")
    assert is_outage(caught.value)


async def test_a_connection_that_the_server_has_just_ended_is_an_outage(of: Of) -> None:
    """Asyncpg has read the server's last words, and not yet the end of the connection."""
    async with of("asyncpg")() as party:
        place = party.place
        [(number,)] = await party.sql("SELECT pg_backend_pid()")
        place.as_admin(f"SELECT pg_terminate_backend({number}, 5000)")  # returns once it has ended
        for _ in range(2):
            await asyncio.sleep(0)
        with pytest.raises(asyncpg.InternalClientError) as caught:
            await party.start()
        assert is_outage(caught.value)


async def test_a_message_is_held_if_its_connection_ends_as_a_transaction_begins(
    postgres_place: Place, key: str
) -> None:
    """The inbox gets a closed connection: that ended the consumer as a fault of its set-up."""
    done, ended = [], []

    async def handler(connection: Any, message: str) -> None:
        done.append(message)

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        connection = await asyncpg.connect(**postgres_place.database.asyncpg)
        try:
            await connection.execute("BEGIN")
            if not ended:
                ended.append(await connection.fetchval("SELECT pg_backend_pid()"))
                postgres_place.as_admin(f"SELECT pg_terminate_backend({ended[0]}, 5000)")
                await wait_until(connection.is_closed, description="it is closed")
            yield connection
            await connection.execute("COMMIT")
        finally:
            await connection.close()

    inbox = Inbox("tests", keep=WEEK, begin=begin)
    orders = Dispatcher("orders", None, key=lambda message: message, inbox=inbox)
    disposition = await orders.dispatch(key, handler)
    assert (disposition.action, disposition.reason, done) == (Action.ACK, Reason.FIRST, [key])
    assert orders.counts.held == 1
