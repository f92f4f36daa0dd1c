"""The ways to run a statement in a caller's transaction: one file a driver. To add one: its file, and a line here."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from ...errors import UsageError
from .base import Driver

# By the package of a transaction's class: the module here, which imports that package. The caller has made such an
# object, so the package is there.
_MODULES = {
    "sqlalchemy": "sqlalchemy",
    "asyncpg": "asyncpg",
    "psycopg": "psycopg",
    "psycopg_pool": "psycopg",
    "sqlite3": "sqlite3",
    "aiosqlite": "aiosqlite",
    "django": "django",
    "pymysql": "pymysql",
    "aiomysql": "aiomysql",
}


def driver_of(transaction: Any) -> Driver:
    """Return the driver for what a caller gives as the transaction.

    Raises:
        UsageError: it is no session, no connection of a driver that is known here, or it is in no transaction.
    """
    for kind in type(transaction).__mro__:
        module = _MODULES.get(kind.__module__.partition(".")[0])
        if module is not None:
            make: Callable[[Any], Driver] = import_module(f".{module}", __name__).driver
            return make(transaction)
    raise UsageError(
        f"an inbox needs the caller's own transaction, got {type(transaction).__name__}: give it a session or "
        "connection of SQLAlchemy, or a connection of asyncpg, psycopg, sqlite3, aiosqlite, PyMySQL, aiomysql, Django"
    )


__all__ = ["Driver", "driver_of"]
