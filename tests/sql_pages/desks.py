"""Connections to one database that run statements in an explicit order, also where one waits for another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pymysql

from ..databases import MariaServer, PostgresServer
from ..waiting import wait_until
from .pages import placed

Rows = list[tuple[Any, ...]]
AS_BEFORE = "SET SESSION innodb_snapshot_isolation = OFF"
"""From 11.6 on MariaDB sets it, and ends some of the wrong ways with error 1020. MySQL does not have it."""


class Desk:
    """One connection, and the transaction that it is in. It notes how many rows its last statement has changed."""

    def __init__(self, raw: Any, waits: Callable[[], int]) -> None:
        self._raw = raw
        self._waits = waits
        self.changed = 0

    def run(self, statement: str, **values: Any) -> Rows:
        with self._raw.cursor() as cursor:
            cursor.execute(placed(statement), values)
            self.changed = cursor.rowcount
            return list(cursor.fetchall()) if cursor.description else []

    def set_up(self, statements: list[str]) -> None:
        """Run statements, and commit them."""
        for each in statements:
            self.run(each)
        self.commit()

    def one(self, statement: str, **values: Any) -> Any:
        """Give the first value of the first row; None without a row."""
        rows = self.run(statement, **values)
        return rows[0][0] if rows else None

    async def begin(self, statement: str, **values: Any) -> asyncio.Task[Rows]:
        """Start a statement that waits for another transaction; return once it waits."""
        before = self._waits()
        task = asyncio.create_task(asyncio.to_thread(self.run, statement, **values))
        await wait_until(lambda: self._waits() > before, description="the statement waits for a lock")
        return task

    def commit(self) -> None:
        self._raw.commit()

    def rollback(self) -> None:
        self._raw.rollback()

    def close(self) -> None:
        self._raw.close()


class Desks:
    """Gives connections to a database of its own. `empty` closes them, and removes their tables."""

    def __init__(self, server: PostgresServer | MariaServer) -> None:
        self._server = server
        self._database: Any = server.fresh()
        self._open: list[Desk] = []

    def desk(self) -> Desk:
        if isinstance(self._server, PostgresServer):
            raw: Any = psycopg.connect(**self._database.psycopg)
        else:
            raw = pymysql.connect(**self._database.pymysql, init_command=AS_BEFORE)
        self._open.append(Desk(raw, self._server.waiting))
        return self._open[-1]

    def empty(self) -> None:
        while self._open:
            self._open.pop().close()
        last = self.desk()
        tables = "SELECT table_name FROM information_schema.tables WHERE table_schema IN ('public', :name)"
        last.set_up([f"DROP TABLE {table}" for (table,) in last.run(tables, name=self._database.name)])
        self._open.pop().close()

    def drop(self) -> None:
        self._server.drop(self._database)
