"""A database that drops the inbox's insert was told to be a purge, and the transaction to be run again, for ever.

Neither a unique id nor an error: `INSERT IGNORE` ignores a missing partition and a foreign key, and a trigger may
return NULL. A row that a purge has deleted in between is inserted again, in the same transaction.
"""

from __future__ import annotations

from typing import Any

import pytest

from fastdedup import ConfigError
from fastdedup.sql.dialects import Dialect
from fastdedup.sql.dialects.base import Flow

from ..sql import conftest as sql
from ..sql.conftest import Opener
from ..sql.ways import WEEK

key, database = sql.key, sql.database
postgres_place, mariadb_place, sqlite_place = sql.postgres_place, sql.mariadb_place, sql.sqlite_place

DROPS: dict[str, list[tuple[str, ...]]] = {
    "postgresql": [
        (
            "CREATE OR REPLACE FUNCTION drops() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
            "CREATE TRIGGER drops BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION drops()",
        )
    ],
    "mysql": [
        ("ALTER TABLE {table} PARTITION BY RANGE COLUMNS(id) (PARTITION p VALUES LESS THAN (X'00000001'))",),
        (
            "CREATE TABLE {table}_of (id BINARY(16) PRIMARY KEY) ENGINE=InnoDB",
            "ALTER TABLE {table} ADD FOREIGN KEY (id) REFERENCES {table}_of (id)",
        ),
    ],
    "sqlite": [("CREATE TRIGGER {table}_drops BEFORE INSERT ON {table} BEGIN SELECT RAISE(IGNORE); END",)],
}


async def test_a_dropped_insert_is_told(database: Opener, key: str) -> None:
    async with database() as party:
        for statements in DROPS[party.place.kind]:
            table = party.place.fresh_table()
            party.place.create(table)
            party.place.sql(*(statement.format(table=table) for statement in statements))
            inbox = party.inbox(table=table)
            for options in ({}, {"busy": "skip"}, {"fingerprint": 5}):
                async with party.transaction():
                    with pytest.raises(ConfigError, match=f"drops what the inbox inserts into {table}"):
                        await party.receive(inbox, key, **options)
            async with party.transaction():
                with pytest.raises(ConfigError, match="drops what the inbox inserts"):
                    await party.call(inbox.receive_many, party.raw, [key, f"{key} too"])


@pytest.mark.parametrize("many", [False, True])
async def test_a_row_deleted_in_between_is_first_again(
    database: Opener, key: str, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a purge, between the insert that met the row and the read of it."""
    async with database() as party:
        inbox = party.inbox()
        async with party.transaction():
            await party.receive(inbox, key)
        dialect: type[Dialect] = type(inbox._rules.dialect((party.place.kind,)))
        kept = dialect.kept

        def purged(self: Any, ids: Any, *, marked: bool) -> Flow[Any]:
            """Delete the rows by the transaction itself, as SQLite has no other writer."""
            monkeypatch.setattr(dialect, "kept", kept)
            yield from self.purge(-WEEK, 1000)
            return (yield from kept(self, ids, marked=marked))

        monkeypatch.setattr(dialect, "kept", purged)
        async with party.transaction():
            if many:
                found = await party.call(inbox.receive_many, party.raw, [key, f"{key} new", key])
                assert [each.first for each in found] == [True, True, False]
            else:
                assert (await party.receive(inbox, key)).first
        async with party.transaction():
            assert not (await party.receive(inbox, key)).first
