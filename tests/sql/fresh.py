"""An empty database of each kind, and the inbox's table as the DDL makes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, pool

from fastdedup.flows import drive
from fastdedup.sql.dialects import TableName, dialect_of
from fastdedup.sql.drivers import driver_of
from fastdedup.sql.drivers.base import run
from fastdedup.sql.rules import TABLE

KINDS = ("sqlite", "postgresql", "mysql")
SERVERS = {"postgresql": "postgres", "mysql": "mariadb"}
INBOX = TableName(TABLE)


def fresh_urls(request: pytest.FixtureRequest, kind: str, folder: Path) -> dict[str, str]:
    """Make an empty database; give SQLAlchemy's URL for each driver, a synchronous one last."""
    if kind == "sqlite":
        file = folder / "inbox.db"
        file.touch()
        return {driver: f"sqlite+{driver}:///{file}" for driver in ("aiosqlite", "pysqlite")}
    urls: dict[str, str] = request.getfixturevalue(SERVERS[kind]).fresh().urls
    return dict(sorted(urls.items()))  # aiomysql before pymysql, asyncpg before psycopg


def engine_at(urls: dict[str, str]) -> Engine:
    """Give a synchronous engine that keeps no connection open."""
    return create_engine(list(urls.values())[-1], poolclass=pool.NullPool)


def create_by_ddl(engine: Engine, table: TableName = INBOX) -> None:
    """Create the table as `fastdedup inbox ddl` says."""
    run_script(engine, dialect_of(engine.dialect.name, table).ddl())


def run_script(engine: Engine, script: str) -> None:
    """Run the statements of a script, each ended by a semicolon."""
    with engine.begin() as connection:
        for statement in filter(str.strip, script.split(";\n")):
            connection.exec_driver_sql(statement)


def faults_of(engine: Engine, table: TableName = INBOX) -> list[str]:
    """Give what the inbox finds wrong with a table."""
    with engine.begin() as connection:
        driver: Any = driver_of(connection)
        return drive(run(driver, dialect_of(driver.dialect, table).faults_of_the_table(), table))
