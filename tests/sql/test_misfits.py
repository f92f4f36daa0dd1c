"""A table that is no inbox is told at its first use, and what `fastdedup inbox ddl` prints is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fastdedup import ConfigError
from fastdedup.sql.dialects import TableName, dialect_of

from ..databases import MariaServer
from .conftest import Opener
from .places import place_of
from .ways import WAYS

# For each kind of database: a table's columns, and what the error says of them.
MISFITS: dict[str, list[tuple[str, str]]] = {
    "postgresql": [
        ("(id uuid PRIMARY KEY, name text)", "it has no column at, and it has no column result"),
        ("(id text PRIMARY KEY, at timestamptz, result bytea)", "its column id is text, not uuid"),
        (
            "(id uuid PRIMARY KEY, at timestamp, result bytea)",
            "at is timestamp without time zone",
        ),
        ("(id uuid, at timestamptz, result bytea)", "its column id is not unique"),
        (
            "(id uuid, at timestamptz, result bytea, PRIMARY KEY (id, at))",
            "id is not unique",
        ),
        (
            "(id uuid UNIQUE DEFERRABLE, at timestamptz, result bytea)",
            "its column id is not unique",
        ),
    ],
    "mysql": [
        ("(id BINARY(16) PRIMARY KEY, name TEXT)", "it has no column at, and it has no column"),
        ("(id VARCHAR(64) PRIMARY KEY, at DATETIME(3), result MEDIUMBLOB)", "id is varchar"),
        ("(id BINARY(16) PRIMARY KEY, at DATETIME, result MEDIUMBLOB)", "its column at is datetime"),
        ("(id BINARY(16) PRIMARY KEY, at DATETIME(3), result BLOB)", "result is blob"),
        ("(id BINARY(16), at DATETIME(3), result MEDIUMBLOB)", "its column id is not unique"),
        (
            "(id BINARY(16), at DATETIME(3), result MEDIUMBLOB, UNIQUE (id(8)))",
            "its column id is not unique",
        ),
        (
            "(id BINARY(16) PRIMARY KEY, at DATETIME(3), result MEDIUMBLOB) ENGINE=MyISAM",
            "its engine is MyISAM, not InnoDB",
        ),
    ],
    "sqlite": [
        ("(id BLOB PRIMARY KEY, name TEXT)", "it has no column at, and it has no column result"),
        ("(id TEXT PRIMARY KEY, at INTEGER, result BLOB)", "its column id is text, not blob"),
        ("(id BLOB, at INTEGER, result BLOB)", "its column id is not unique"),
        ("(id BLOB, at INTEGER, result BLOB, UNIQUE (id, at))", "id is not unique"),
    ],
}


async def test_a_table_that_is_not_there_is_told(way: Opener, key: str) -> None:
    async with way() as party, party.transaction():
        inbox = party.inbox(table=party.place.fresh_table())
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"there is no table inbox\d+ .*`fastdedup inbox ddl"):
                await party.receive(inbox, key)
        assert (await party.receive(party.inbox(), key)).first  # the transaction goes on


async def test_a_table_that_does_not_fit_is_told(database: Opener, key: str) -> None:
    async with database() as party:
        for columns, fault in MISFITS[party.place.kind]:
            table = party.place.fresh_table()
            party.place.sql(f"CREATE TABLE {table} {columns}")
            async with party.transaction():
                with pytest.raises(ConfigError, match=rf"the table {table} is no inbox: .*{fault}"):
                    await party.receive(party.inbox(table=table), key)


async def test_purge_and_stats_tell_of_a_table_as_well(database: Opener) -> None:
    async with database() as party:
        inbox = party.inbox(table=party.place.fresh_table(), begin=party.begin)
        for attempt in (inbox.purge, inbox.stats):
            with pytest.raises(ConfigError, match="there is no table"):
                await attempt()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("DROP TABLE {0}", "there is no table"),
        ("ALTER TABLE {0} RENAME COLUMN at TO then_at", "the table {0} is no inbox"),
    ],
    ids=["dropped", "changed"],
)
async def test_what_becomes_of_a_table_later_is_told(
    change: str, told: str, database: Opener, key: str
) -> None:
    async with database() as party:
        table = party.place.fresh_table()
        party.place.create(table)
        inbox = party.inbox(table=table)
        async with party.transaction():
            await party.receive(inbox, f"{key} before")
        party.place.sql(change.format(table))
        await party.start()
        with pytest.raises(ConfigError, match=told.format(table)):
            await party.receive(inbox, key)
        await party.rollback()


@pytest.mark.parametrize("name", [name for name, way in WAYS.items() if way.kind == "mysql"])
async def test_the_table_of_each_database_is_looked_at(mariadb: MariaServer, key: str, name: str) -> None:
    """A second one was restored without its primary key: there `INSERT IGNORE` called every message the first."""
    places = [place_of("mysql", mariadb.fresh(), mariadb.admin) for _ in range(2)]
    places[1].sql("ALTER TABLE fastdedup_inbox DROP PRIMARY KEY")
    async with WAYS[name].party(places[0]) as whole, WAYS[name].party(places[1]) as restored:
        inbox = whole.inbox()
        async with whole.transaction():
            assert (await whole.receive(inbox, key)).first
        async with restored.transaction():
            with pytest.raises(ConfigError, match="its column id is not unique"):
                await restored.receive(inbox, key)


async def test_a_table_may_have_any_name_and_further_columns(database: Opener, key: str) -> None:
    async with database() as party:
        table = f"Order_{party.place.fresh_table()}"
        party.place.create(table)
        quote = "`" if party.place.kind == "mysql" else '"'
        party.place.sql(f"ALTER TABLE {quote}{table}{quote} ADD COLUMN note VARCHAR(9)")
        inbox = party.inbox("names", table=table)
        for first in (True, False):
            async with party.transaction():
                assert (await party.receive(inbox, key)).first is first


@pytest.mark.parametrize("name", ["asyncpg", "session psycopg", "aiomysql", "async session aiomysql"])
async def test_a_table_may_be_in_another_schema(of: Any, key: str, name: str) -> None:
    async with of(name)() as party:
        place = party.place
        schema = f"other_{place.fresh_table()}"
        owner = "AUTHORIZATION fastdedup" if place.kind == "postgresql" else ""
        if place.kind == "mysql":
            place.as_admin(f"GRANT ALL ON {schema}.* TO fastdedup@localhost")
        place.sql(f"CREATE SCHEMA {schema} {owner}")
        with pytest.raises(ConfigError, match=rf"there is no table {schema}\.fastdedup_inbox"):
            async with party.transaction():
                await party.receive(party.inbox(schema=schema), key)
        place.create("fastdedup_inbox", schema)
        for inbox in (party.inbox(schema=schema), party.inbox()):
            for first in (True, False):
                async with party.transaction():
                    assert (await party.receive(inbox, key)).first is first


async def test_a_table_may_be_in_an_attached_database(of: Any, key: str, tmp_path: Path) -> None:
    async with of("aiosqlite")() as party:
        await party.sql(f"ATTACH '{tmp_path / 'other.db'}' AS other")
        inbox = party.inbox(schema="other")
        async with party.transaction():
            with pytest.raises(ConfigError, match=r"there is no table other\.fastdedup_inbox"):
                await party.receive(inbox, key)
        for statement in dialect_of("sqlite", TableName("fastdedup_inbox", "other")).ddl().split(";"):
            await party.sql(statement)
        for first in (True, False):
            async with party.transaction():
                assert (await party.receive(inbox, key)).first is first
        async with party.transaction():
            assert (await party.receive(party.inbox(), key)).first
