"""A database for the rows of a test's inboxes: SQLite, in memory or in a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..sql.any_inbox import AnyInbox
from ..sql.dialects import dialect_of

if TYPE_CHECKING:
    import sqlite3


@contextmanager
def inbox_database(*inboxes: AnyInbox[Any], path: str | Path = ":memory:") -> Iterator[sqlite3.Connection]:
    """Make the tables of inboxes in SQLite, and yield a connection; closed when the `with` ends.

    In a file other connections find the tables too: those of aiosqlite, of SQLAlchemy
    (`sqlite+aiosqlite:///…`), or of other threads. A table that exists already is kept.

    Args:
        inboxes: inboxes of `fastdedup.sql` or `fastdedup.sync.sql`. Several inboxes of one table share it.
        path: the file; in memory by default, for this connection alone.
    """
    import sqlite3  # some builds of Python have none

    with closing(sqlite3.connect(path)) as connection:
        for table in {inbox.table: None for inbox in inboxes}:
            ddl = dialect_of("sqlite", table).ddl()
            connection.executescript(
                ddl.replace("CREATE TABLE ", "CREATE TABLE IF NOT EXISTS ").replace(
                    "CREATE INDEX ", "CREATE INDEX IF NOT EXISTS "
                )
            )
        yield connection
