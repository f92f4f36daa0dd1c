"""One database of each kind for all tests of a worker, with an inbox and a business table in it."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pymysql

from fastdedup.sql.dialects import TableName, dialect_of
from fastdedup.sql.rules import TABLE

from ..databases import MariaDatabase, PostgresDatabase

WORK = {
    "postgresql": "CREATE TABLE work (note varchar(200));",
    "mysql": "CREATE TABLE work (note VARCHAR(200)) ENGINE=InnoDB;",
    "sqlite": "CREATE TABLE work (note TEXT);",
}
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class SQLiteDatabase:
    """A file of SQLite's."""

    file: Path

    @property
    def urls(self) -> dict[str, str]:
        """SQLAlchemy's URL for each driver."""
        return {driver: f"sqlite+{driver}:///{self.file}" for driver in ("pysqlite", "aiosqlite")}

    @property
    def django(self) -> dict[str, Any]:
        """The database's settings in Django's `DATABASES`."""
        options = {"transaction_mode": "IMMEDIATE"}
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(self.file), "OPTIONS": options}


Database = PostgresDatabase | MariaDatabase | SQLiteDatabase


@dataclass(frozen=True, slots=True)
class Place:
    """A database with the tables, and a connection of an observer's, which commits each statement by itself."""

    kind: str
    database: Any
    observe: Callable[[], Any]
    server: Any = None

    def sql(self, *statements: str) -> list[Any]:
        """Run statements beside the tests' transactions; give the rows of the last one."""
        with closing(self.observe()) as connection:
            cursor = connection.cursor()
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def as_admin(self, statement: str) -> list[Any]:
        """Run a statement as the server's superuser; give its rows."""
        with closing(self.server.admin()) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def run(self, script: str) -> None:
        """Run the statements of a script, each ended by a semicolon."""
        self.sql(*filter(str.strip, script.split(";")))

    def create(self, table: str, schema: str | None = None) -> None:
        """Create an inbox's table, as `fastdedup inbox ddl` tells to."""
        self.run(dialect_of(self.kind, TableName(table, schema)).ddl())

    def fresh_table(self) -> str:
        """Give a name that no table has."""
        return f"inbox{next(_numbers)}"

    def waiting(self) -> int:
        """Give the number of transactions that wait for a lock."""
        number: int = self.server.waiting()
        return number


def place_of(kind: str, database: Database, server: Any = None) -> Place:
    """Make the tables in an empty database. `server`: a `DatabaseServer`, whose superuser `as_admin` is."""
    place = Place(kind, database, lambda: observer(database), server)
    place.create(TABLE)
    place.run(WORK[kind])
    if isinstance(database, PostgresDatabase):  # the tests wait for deadlocks, a second each
        place.as_admin("GRANT SET ON PARAMETER deadlock_timeout TO fastdedup")
    return place


def observer(database: Database) -> Any:
    if isinstance(database, PostgresDatabase):
        return psycopg.connect(**database.psycopg, autocommit=True)
    if isinstance(database, MariaDatabase):
        return pymysql.connect(**database.pymysql, autocommit=True)
    return sqlite3.connect(database.file, isolation_level=None)
