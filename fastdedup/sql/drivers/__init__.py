"""Drivers: ways to run a statement in a caller's transaction, a file each. To add one: its file, and a line here."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

from ...errors import UsageError
from .base import Driver

# For the package of a transaction's class: the module here that imports the package. The caller has made such an
# object, so the package is installed.
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
    """Return the driver for the caller's transaction.

    Raises:
        UsageError: it is not a session or a connection of a known driver, or it is not in a transaction.
    """
    kind: Any = type(transaction)
    return _maker(kind)(transaction)


@lru_cache(maxsize=64)
def _maker(kind: Any) -> Callable[[Any], Driver]:
    for base in kind.__mro__:
        module = _MODULES.get(base.__module__.partition(".")[0])
        if module is not None:
            return import_module(f".{module}", __name__).driver  # type: ignore[no-any-return]
    raise UsageError(
        f"an inbox needs the caller's own transaction, got {kind.__name__}: give it a session or connection of "
        "SQLAlchemy, or a connection of asyncpg, psycopg, sqlite3, aiosqlite, PyMySQL, aiomysql or Django"
    )


__all__ = ["Driver", "driver_of"]
