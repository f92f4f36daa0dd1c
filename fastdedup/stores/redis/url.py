"""Redis URLs: parsed by redis-py, checked here, and shown without their password."""

from __future__ import annotations

from typing import Any
from urllib.parse import SplitResult, urlsplit

from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from ...errors import ConfigError

SCHEMES = ("redis", "rediss", "unix")


class Target:
    """Where a Redis is and how to log in.

    Raises:
        ConfigError: the URL cannot be parsed.
    """

    def __init__(self, url: str) -> None:
        self._options, self._connection_class = parse(url)
        self.name = name_of(self._options)

    def connection(self, timeout: float) -> AbstractConnection:
        """Return a new, unconnected connection that gives up after `timeout` seconds, once.

        redis-py's stock retry resends for seconds; a gate must say `unavailable` within its deadline.
        """
        options = {
            "socket_connect_timeout": timeout,
            "socket_timeout": timeout,
            "client_name": "fastdedup",
            **self._options,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            "retry_on_error": [],
        }
        return self._connection_class(**options)


def parse(url: str) -> tuple[dict[str, Any], type[AbstractConnection]]:
    """Return redis-py's connection options and class for a URL."""
    parts = split(url)
    try:
        options: dict[str, Any] = dict(parse_url(url))
        connection_class = options.pop("connection_class", Connection)
        check_path(parts.scheme, parts.path, options)
        if options.pop("protocol", 2) not in (2, 3):
            raise ValueError("protocol is 2 or 3")
        connection_class(**options)
    except TypeError as error:
        raise ConfigError(f"cannot use the {parts.scheme}:// URL: unknown option: {error}") from None
    except (ValueError, RedisError) as error:
        raise ConfigError(f"cannot use the {parts.scheme}:// URL: {error}") from None
    return options, connection_class


def split(url: str) -> SplitResult:
    """Take a URL apart. No message shows any of it: a URL that cannot be read may hold its password anywhere."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 -- the property raises where the port is no number
    except ValueError:
        scheme = url.partition(":")[0]
        raise ConfigError(
            f"cannot read the Redis URL {scheme}://…: write {scheme}://user:password@host:6379/0, with "
            "the special characters of a password percent-encoded"
        ) from None
    return parts


def check_path(scheme: str, path: str, options: dict[str, Any]) -> None:
    """Refuse what redis-py lets pass: a socket without a path, a database that is no number."""
    if scheme == "unix":
        if not options.get("path"):
            raise ValueError("it names no socket: write unix:///path/to/redis.sock?db=0")
        return
    if not options.get("host"):
        raise ValueError("it names no host: write redis://host:6379/0")
    number = path.strip("/")
    if number and not (number.isascii() and number.isdecimal()):
        raise ValueError("the database in the path must be a number: redis://host:6379/0")


def name_of(options: dict[str, Any]) -> str:
    """Return a short name for messages."""
    if "path" in options:
        return f"Redis at {options['path']}"
    return f"Redis at {options.get('host')}:{options.get('port', 6379)}"
