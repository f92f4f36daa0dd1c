"""The inbox's commands: `fastdedup inbox ddl`, `purge` and `stats`. `cli.main` registers `COMMANDS`.

SQLAlchemy is imported in the functions that make the connection: `ddl` needs neither it nor a database.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..checks import MAX_SECONDS
from ..errors import ConfigError, DedupError
from ..flows import drive
from ..sql.any_inbox import DAY
from ..sql.bridge import BLOCKING
from ..sql.bridge import SyncBegin as Begin
from ..sql.dialects import DIALECTS, TableName, dialect_of
from ..sql.dialects.base import Figures
from ..sql.faults import words_of
from ..sql.purge import MOST_ROWS, figures_of
from ..sql.purge import purge as purge_table
from ..sql.rules import TABLE, TableRules
from .tables import facts_table
from .terminal import bar_console, json_option, print_json, with_options

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine


# Connects to a user's database, by SQLAlchemy's URL; each error is one line. Main path: `at_database`

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
        # SQLite would create the file.
        raise ConfigError(f"there is no file {file}: name the database of your service")


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


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LINES = 31
"""The most lines of the histogram: a month of days."""
_WIDTH = 40
"""Characters of the histogram's longest bar."""


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4, not before
    """A length of time, such as 7d: the unit is required, because rows that are purged too early do not come back.

    `least`: the shortest one, in seconds.
    """

    name = "time"

    def __init__(self, least: float = 0.001) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Return the time; a mistake ends the command."""
        if isinstance(value, timedelta):
            return value
        found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)([smhdw])", str(value).strip(), re.ASCII)
        if found is None:
            self.fail(f"{value!r} is not a time: write it as 7d, 12h, 30m or 90s", param, ctx)
        number, unit = found.groups()
        seconds = float(number) * _UNITS[unit]
        if seconds > MAX_SECONDS:
            self.fail(f"{value!r} is too long: a time has at most ten years", param, ctx)
        if seconds < self._least:
            self.fail(f"{value!r} is too short: a time has at least {self._least:g}s here", param, ctx)
        return timedelta(seconds=seconds)


table_options = with_options(
    click.option("--table", default=TABLE, show_default=True, help="The table's name."),
    click.option("--schema", help="The schema that the table is in. [default: the connection's own]"),
)
"""The options that name the table."""
database_options = with_options(
    click.option(
        "--url",
        envvar="FASTDEDUP_DATABASE_URL",
        show_envvar=True,
        required=True,
        help="The database in SQLAlchemy's form: postgresql+psycopg://user@host/shop. With a password in it, use "
        "the variable: other users of this host can read the options of a command.",
    ),
    table_options,
    json_option("an object"),
)
"""The options of the commands that connect to a database."""


@click.group()
def inbox() -> None:
    """Create, purge and look at an inbox's table in SQL."""


@inbox.command()
@click.option("--dialect", type=click.Choice(list(DIALECTS)), required=True, help="The database.")
@table_options
def ddl(dialect: str, table: str, schema: str | None) -> None:
    """Print the SQL that creates an inbox's table."""
    click.echo(dialect_of(dialect, TableName(table, schema)).ddl(), nl=False)


@inbox.command()
@click.option(
    "--keep",
    type=Duration(),
    required=True,
    help="How long rows are kept: 7d, 12h, 30m or 90s. Use what your inboxes have as keep=, and at least what "
    "the broker keeps messages.",
)
@click.option(
    "--batch",
    type=click.IntRange(1, MOST_ROWS),
    help="Rows of one transaction; by default what the database deletes in about ten milliseconds.",
)
@database_options
def purge(
    url: str, keep: timedelta, batch: int | None, table: str, schema: str | None, as_json: bool
) -> None:
    """Delete the rows that are older than --keep, in batches.

    Each batch is a transaction of its own: stop the command at any time, the next run goes on. One process at a time
    purges a table; another one ends at once, with 0 rows.
    """
    rules = TableRules(TableName(table, schema), keep.total_seconds())
    console = bar_console()
    quiet = as_json or not console.is_terminal
    deleted = at_database(url, lambda begin: purged(rules, begin, batch, None if quiet else console))
    if as_json:
        print_json({"table": str(rules.table_name), "keep": rules.keep, "deleted": deleted})
    else:
        click.echo(
            f"Deleted {deleted:,} rows of {rules.table_name} that were older than {shown(rules.keep)}."
        )


def purged(rules: TableRules, begin: Begin, batch: int | None, console: Console | None) -> int:
    """Purge; return how many rows were deleted. With a console, count them before, and show a bar."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console or bar_console(quiet=True), disable=console is None) as progress:
        task = progress.add_task("Counting", total=None)
        if console is not None:
            ages = drive(figures_of(rules, BLOCKING, begin, rules.keep)).ages
            progress.update(task, total=sum(rows for age, rows in ages if age))
        progress.update(task, description="Purging")
        total = drive(
            purge_table(
                rules, BLOCKING, begin, batch=batch, on_batch=lambda rows: progress.advance(task, rows)
            )
        )
        progress.update(task, total=total)  # others may have deleted some, or some have grown old
    return total


@inbox.command(short_help="Show a table's rows by age, and its bytes on disk.")
@click.option(
    "--stretch",
    type=Duration(),
    default=timedelta(seconds=DAY),
    show_default="1d",
    help="How long each stretch of ages is.",
)
@database_options
def stats(url: str, stretch: timedelta, table: str, schema: str | None, as_json: bool) -> None:
    """Show a table's rows, its bytes on disk, its oldest row, and its rows by age. Reads the whole index."""
    rules = TableRules(TableName(table, schema), keep=MAX_SECONDS)
    figures = at_database(url, lambda begin: drive(figures_of(rules, BLOCKING, begin, stretch)))
    if as_json:
        print_json(_facts(rules.table_name, figures))
        return
    console = Console()
    console.print(_figures_table(rules.table_name, figures))
    for line in histogram(figures, stretch.total_seconds()):
        console.print(line, markup=False, highlight=False)


def _facts(name: TableName, figures: Figures) -> dict[str, Any]:
    return {
        "table": str(name),
        "rows": figures.rows,
        "bytes": figures.size,
        "bytes_an_id": _bytes_an_id(figures),
        "oldest": figures.oldest,
        "ages": [{"from": age, "rows": rows} for age, rows in figures.ages],
    }


def _bytes_an_id(figures: Figures) -> float | None:
    return round(figures.size / figures.rows, 1) if figures.rows else None


def _figures_table(name: TableName, figures: Figures) -> Table:
    each = _bytes_an_id(figures)
    return facts_table(
        f"Inbox {name}",
        {
            "rows": f"{figures.rows:,}",
            "bytes on disk, indexes included": f"{figures.size:,}",
            "bytes an id": "-" if each is None else f"{each:,.1f}",
            "oldest row": "-" if figures.oldest is None else f"{shown(figures.oldest)} old",
        },
    )


def histogram(figures: Figures, stretch: float) -> Iterator[str]:
    """Yield a line for each range of ages, the youngest first; the last line has all older rows."""
    by_number = {round(age / stretch): rows for age, rows in figures.ages}
    last = min(max(by_number, default=-1), _LINES - 1)
    counts = [by_number.get(number, 0) for number in range(last)]
    counts += [figures.rows - sum(counts)] if by_number else []
    most = max(counts, default=0)
    for number, rows in enumerate(counts):
        older = number == last and max(by_number) > last
        label = f"from {shown(number * stretch)}" if older else f"to {shown((number + 1) * stretch)}"
        yield f"{label:>12} {rows:>14,} {'█' * -(-rows * _WIDTH // most) if rows else ''}".rstrip()


def shown(seconds: float) -> str:
    """Return a time in the largest unit that gives a whole number; if it is not whole seconds, to a tenth."""
    units = [(unit, length) for unit, length in reversed(_UNITS.items()) if unit != "w"]
    for unit, length in units:
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:.0f}{unit}"
    for unit, length in units:
        if seconds >= length:
            return f"{seconds / length:.1f}{unit}"
    return f"{seconds:.1g}s"


COMMANDS = (inbox,)
