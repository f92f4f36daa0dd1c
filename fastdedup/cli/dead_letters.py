"""The commands for dead letters: `fastdedup dead-letters list` and `replay`. `cli.main` registers `COMMANDS`.

aio-pika is imported in the functions that make the connection, and in those that run once there is one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..errors import ConfigError, UnavailableError
from .tables import print_rows
from .terminal import AnsweringCommand, Command, bar_console, json_option, print_json, with_options

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel
    from yarl import URL

    from ..integrations.rabbitmq.dead_letters import DeadLetter, DeadLetters, Replay

    Work = Callable[[AbstractChannel], Awaitable["T"]]


# Connects to a user's RabbitMQ, by its AMQP URL; each error is one line. Main path: `at_broker`

T = TypeVar("T")
_EXAMPLE: Final = "amqp://user@host:5672/"
_TIMEOUT: Final = 10.0
"""Seconds, the deadline of a connection."""


def at_broker(text: str, work: Work[T]) -> T:
    """Connect, and return the result of `work`, which gets an open channel.

    Raises:
        ConfigError: the URL cannot be used, a package is missing, or the broker refuses.
        UnavailableError: the broker does not answer.
    """
    _check_extra()
    url = _parsed(text)
    with _in_one_line(url), _quiet():
        return asyncio.run(_connected(url, work))


async def _connected(url: URL, work: Work[T]) -> T:
    import aio_pika

    from ..integrations.rabbitmq.replies import reply

    connection = await aio_pika.connect(url, timeout=_TIMEOUT)
    async with connection:
        return await work(await reply(connection.channel()))


def _check_extra() -> None:
    try:
        from ..integrations import rabbitmq as _rabbitmq  # noqa: F401
    except ImportError as error:
        cause = error.__cause__ if isinstance(error.__cause__, ImportError) else error
        raise ConfigError(f"this needs {cause.name}: pip install 'fastdedup[rabbitmq]'") from None


def _parsed(text: str) -> URL:
    """Return the URL. No error repeats the text, which may hold a password."""
    from yarl import URL

    try:
        url = URL(text)
        fits = url.scheme in {"amqp", "amqps"} and bool(url.host) and url.port != 0
    except ValueError:  # its text may have a part of the password
        fits = False
    if not fits:
        raise ConfigError(
            f"--url is not an AMQP URL, such as {_EXAMPLE}. In a password write @ as %40, / as %2F and : as %3A"
        )
    return url


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep aiormq's log from standard error: the error itself is shown."""
    log = logging.getLogger("aiormq")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)


@contextmanager
def _in_one_line(url: URL) -> Iterator[None]:
    """Show any error of the broker or of the network as one line, without the password."""
    from aiormq import exceptions as broker

    from ..integrations.rabbitmq.replies import LOST

    place = f"{url.scheme}://{url.host}:{url.port or 5672}{url.path}"
    try:
        yield
    except (broker.ProbableAuthenticationError, broker.AuthenticationError):
        raise ConfigError(
            f"{place} refuses the login of {url.user or 'guest'!r}: are its password and auth= right?"
        ) from None
    except (broker.InvalidFrameError, broker.ConnectionNotAllowed):  # it opens no virtual host, and hangs up
        raise ConfigError(
            f"{place} cannot be used: is there a virtual host {url.path[1:] or '/'!r}, and may "
            f"{url.user or 'guest'!r} use it?"
        ) from None
    except (*LOST, OSError) as error:
        words = str(error) or type(error).__name__
        if url.password:
            words = words.replace(url.password, "***")
        away = isinstance(error, OSError | broker.ChannelInvalidStateError)
        kind = UnavailableError if away else ConfigError  # such as for an unknown queue
        raise kind(f"{place} cannot be used: {words}") from error


_HEADINGS = ("key", "attempts", "reason", "consumer", "when", "bytes", "error")


def broker_options(json: str) -> Callable[[Command], Command]:
    """Add the arguments of both commands: the queue, and the connection's options. `json`: see `gate_options`."""
    return with_options(
        click.argument("queue"),
        click.option(
            "--url",
            envvar=["FASTDEDUP_AMQP_URL", "AMQP_URL"],
            show_envvar=True,
            required=True,
            help="The broker, such as amqp://user@host:5672/. With a password in it, use the variable: other users "
            "of this host can read the options of a command.",
        ),
        json_option(json),
    )


@click.group(name="dead-letters", short_help="Look at dead letters of RabbitMQ, and send them back.")
def dead_letters() -> None:
    """Look at the dead letters of a RabbitMQ queue, and send them back."""


@dead_letters.command(name="list", cls=AnsweringCommand)
@click.option(
    "--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Show so many, the oldest."
)
@broker_options(
    json="an object for each dead letter, one a line: key, attempts, reason, error, consumer, queue (that it came "
    "from), at (ISO 8601), size (bytes)"
)
def list_(queue: str, limit: int, url: str, as_json: bool) -> None:
    """Show the dead letters in QUEUE, and leave them there.

    RabbitMQ cannot show a message without handing it out: each is marked as redelivered afterwards, and another
    program that takes dead letters meanwhile does not get the ones that are being shown.
    """
    found = at_broker(url, partial(_listed, queue=queue, limit=limit))
    if as_json:
        for letter in found.letters:
            print_json(asdict(letter))
        return
    if found.letters:
        print_rows(
            map(_cells, found.letters),
            headings=_HEADINGS,
            numbers=("attempts", "bytes"),
            lines=_lines,
            title=f"Dead letters in {queue}",
        )
    if len(found.letters) < found.total:
        click.echo(f"{len(found.letters):,} of {found.total:,} are shown: see --limit.", err=True)
    if not found.letters:
        click.echo(f"No dead letter lies in {queue}.", err=True)


async def _listed(channel: AbstractChannel, queue: str, limit: int) -> DeadLetters:
    from ..integrations.rabbitmq.dead_letters import list_dead_letters

    return await list_dead_letters(channel, queue, limit)


def _cells(letter: DeadLetter) -> tuple[str, ...]:
    texts = letter.key, str(letter.attempts), letter.reason, letter.consumer, _when(letter.at)
    return *(text or "-" for text in texts), f"{letter.size:,}", letter.error or "-"


def _lines(cells: Sequence[str]) -> tuple[str, str, str]:
    key, attempts, reason, consumer, when, size, error = cells
    return key, f"attempts {attempts}, {reason}, {consumer}, {when}, {size} bytes", error


def _when(at: str | None) -> str | None:
    """Return a time in full seconds and this machine's zone; unchanged if it is not a time."""
    try:
        return None if at is None else f"{datetime.fromisoformat(at).astimezone():%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError):  # the latter: its year in this zone is 0 or 10000
        return at


@dead_letters.command(
    cls=AnsweringCommand, short_help="Send dead letters back to the queues that they came from."
)
@click.option(
    "--key", "keys", multiple=True, help="Send back the messages with this key; give it repeatedly."
)
@click.option("--all", "every", is_flag=True, help="Send back all that have all headers of their message.")
@click.option("--limit", type=click.IntRange(min=1), help="Send back so many at most, the oldest.")
@click.option("--to", help="The queue to send them to. [default: the one that each came from]")
@click.option("--dry-run", is_flag=True, help="Send nothing back, and say what would be.")
@broker_options(
    json="an object: seen, replayed, keys (of those), kept (how many stay, by the reason), missing (keys that were "
    "not sent back)"
)
def replay(
    queue: str, keys: tuple[str, ...], every: bool, limit: int | None, url: str, as_json: bool, **how: Any
) -> None:
    """Send the dead letters in QUEUE back to the queue that each came from.

    Its consumer works on them anew, with all attempts; one that fails again becomes a dead letter again. Stop the
    command at any time: no message is lost, and a message that was sent back twice is worked on once. Exits with 1 if
    a key was not found, or a message could not be sent back.
    """
    if bool(keys) == every:
        raise click.UsageError("say which: --key KEY, also repeatedly, or --all")
    console = bar_console()
    wanted = {"keys": keys or None, "limit": limit, **how}
    quiet = as_json or not console.is_terminal
    report = at_broker(
        url, partial(_replayed, queue=queue, console=None if quiet else console, wanted=wanted)
    )
    missing = [] if report.replayed == limit else sorted(set(keys) - report.keys)
    if as_json:
        facts = asdict(report) | {"keys": sorted(report.keys), "missing": missing}
        print_json(facts)
    else:
        _say(queue, report, dry_run=how["dry_run"])
    for key in missing:
        click.echo(f"No dead letter in {queue} with the key {key!r} was sent back.", err=True)
    if missing or report.kept:
        raise SystemExit(1)


async def _replayed(
    channel: AbstractChannel, queue: str, console: Console | None, wanted: dict[str, Any]
) -> Replay:
    from ..integrations.rabbitmq.dead_letters import replay

    columns = TextColumn("Looking through"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console or bar_console(quiet=True), disable=console is None) as progress:
        task = progress.add_task("", total=None)
        return await replay(
            channel, queue, on_letter=lambda total: progress.update(task, total=total, advance=1), **wanted
        )


def _say(queue: str, report: Replay, *, dry_run: bool) -> None:
    done = "Would send back" if dry_run else "Sent back"
    click.echo(f"{done} {report.replayed:,} of the {report.seen:,} dead letters that were seen in {queue}.")
    for reason, count in report.kept.items():
        click.echo(f"{count:,} stay: {reason}", err=True)


COMMANDS = (dead_letters,)
