"""Connects to a user's RabbitMQ, by its AMQP URL; each error is one line. Main path: `at_broker`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import click

from ..errors import DedupError

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel
    from yarl import URL

    Work = Callable[[AbstractChannel], Awaitable["T"]]

T = TypeVar("T")
_EXAMPLE: Final = "amqp://user@host:5672/"
_TIMEOUT: Final = 10.0
"""Seconds, the deadline of a connection."""


def at_broker(text: str, work: Work[T]) -> T:
    """Connect, and return the result of `work`, which gets an open channel.

    Raises:
        ClickException: the URL cannot be used, a package is missing, or the broker refuses.
    """
    _check_extra()
    url = _parsed(text)
    with _in_one_line(url), _quiet():
        return asyncio.run(_connected(url, work))


async def _connected(url: URL, work: Work[T]) -> T:
    import aio_pika

    connection = await aio_pika.connect(url, timeout=_TIMEOUT)
    async with connection:
        return await work(await connection.channel())


def _check_extra() -> None:
    try:
        from ..integrations import rabbitmq as _rabbitmq  # noqa: F401
    except ImportError as error:
        cause = error.__cause__ if isinstance(error.__cause__, ImportError) else error
        raise click.ClickException(f"this needs {cause.name}: pip install 'fastdedup[rabbitmq]'") from None


def _parsed(text: str) -> URL:
    """Return the URL. No error repeats the text, which may hold a password."""
    from yarl import URL

    try:
        url = URL(text)
        fits = url.scheme in {"amqp", "amqps"} and bool(url.host) and url.port != 0
    except ValueError:  # its text may have a part of the password
        fits = False
    if not fits:
        raise click.ClickException(
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
    from aiormq.exceptions import AMQPError, InvalidFrameError, ProbableAuthenticationError

    place = f"{url.scheme}://{url.host}:{url.port or 5672}{url.path}"
    try:
        yield
    except (DedupError, click.ClickException):
        raise
    except ProbableAuthenticationError:
        raise click.ClickException(
            f"{place} refuses the login of {url.user or 'guest'!r}: is its password right?"
        ) from None
    except InvalidFrameError:  # aiormq's errors if a broker hangs up instead of opening the virtual host
        raise click.ClickException(
            f"{place} cannot be used: is there a virtual host {url.path[1:] or '/'!r}, and may "
            f"{url.user or 'guest'!r} use it?"
        ) from None
    except (AMQPError, OSError, TimeoutError) as error:
        words = str(error) or type(error).__name__
        if url.password:
            words = words.replace(url.password, "***")
        raise click.ClickException(f"{place} cannot be used: {words}") from error
