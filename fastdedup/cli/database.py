"""Connects to a user's database, by SQLAlchemy's URL; each error is one line. Main path: `at_database`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from ..errors import ConfigError, DedupError
from ..sql.dialects import DIALECTS
from ..sql.faults import words_of

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine

    Begin = Callable[[], AbstractContextManager[Connection]]

T = TypeVar("T")
_EXAMPLES = "postgresql+psycopg://user@host/shop, mysql+pymysql://user@host/shop, sqlite:///shop.db"


def at_database(text: str, work: Callable[[Begin], T]) -> T:
    """Connect, and return the result of `work`, which gets a function that begins a transaction.

    `work` is synchronous code. Over an async driver SQLAlchemy runs it in a greenlet.

    Raises:
        ClickException: the URL cannot be used, a package is missing, or the database refuses.
    """
    url = _parsed(text)
    with _in_one_line(url):
        engine = _engine(url)
        if engine.dialect.is_async:
            return asyncio.run(_asynchronously(engine, work))
        with engine.connect() as connection:
            return work(partial(_begin, connection))


async def _asynchronously(engine: Engine, work: Callable[[Begin], T]) -> T:
    from sqlalchemy.ext.asyncio import AsyncEngine

    outer = AsyncEngine(engine)
    try:
        async with outer.connect() as connection:
            return await connection.run_sync(lambda inner: work(partial(_begin, inner)))
    finally:
        await outer.dispose()


@contextmanager
def _begin(connection: Connection) -> Iterator[Connection]:
    with connection.begin():
        yield connection


def _parsed(text: str) -> URL:
    """Return the URL of a database that inboxes support. No error repeats the text, which may hold a password."""
    try:
        from sqlalchemy import make_url
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"this needs {error.name}: pip install 'fastdedup[sql]', and your database's driver"
        ) from None
    url = None
    with suppress(Exception):  # also a ValueError, whose text has a part of the URL
        url = make_url(text)
    if url is None or _is_cut(url):
        raise click.ClickException(
            f"--url is not a database URL of SQLAlchemy, such as {_EXAMPLES}. "
            "In a password write @ as %40, / as %2F and : as %3A"
        )
    _check(url)
    return url


def _is_cut(url: URL) -> bool:
    """True if an @ or / in the password ended it, so that the host's name has a part of it."""
    return "@" in (url.host or "") or ("@" in (url.database or "") and url.get_backend_name() != "sqlite")


def _check(url: URL) -> None:
    backend = url.get_backend_name()
    if backend not in DIALECTS:
        raise ConfigError(
            f"an inbox needs PostgreSQL, MySQL, MariaDB or SQLite, got a URL of {backend}: such as {_EXAMPLES}"
        )
    file = url.database
    if (
        backend == "sqlite"
        and file
        and not file.startswith((":memory:", "file:"))
        and not Path(file).exists()
    ):
        raise ConfigError(
            f"there is no file {file}: name the database of your service"
        )  # SQLite would create the file


def _engine(url: URL) -> Engine:
    from sqlalchemy import create_engine, pool

    try:
        return create_engine(url, poolclass=pool.NullPool)
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"the driver {error.name} is not installed: install it, or name one that you have: {_EXAMPLES}"
        ) from None


@contextmanager
def _in_one_line(url: URL) -> Iterator[None]:
    """Show any error of a database, of its driver or of the network as one line, without the password."""
    try:
        yield
    except (DedupError, click.ClickException):
        raise
    except Exception as error:  # each driver has its own, and TypeError for an option it does not know
        raise click.ClickException(f"{_place(url)} cannot be used: {_words(error, url)}") from error


def _words(error: Exception, url: URL) -> str:
    words = words_of(error) or type(error).__name__
    secrets = [str(url.password or ""), *(str(value) for name, value in url.query.items() if "pass" in name)]
    for secret in filter(None, secrets):
        words = words.replace(secret, "***")
    return words


def _place(url: URL) -> str:
    """Return a URL without user, password and options."""
    return f"{url.drivername}://{url.host or ''}/{url.database or ''}"
