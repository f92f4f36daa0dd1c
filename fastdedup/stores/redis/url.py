"""Redis URLs: parsed by redis-py, checked here, and shown without their password."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

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
            "protocol": 2,
            "socket_connect_timeout": timeout,
            "socket_timeout": timeout,
            "client_name": "fastdedup",
            **self._options,
            "retry": Retry(NoBackoff(), 0),
            "retry_on_error": [],
        }
        return self._connection_class(**options)


def parse(url: str) -> tuple[dict[str, Any], type[AbstractConnection]]:
    """Return redis-py's connection options and class for a URL."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 -- the property raises where the port is no number
        options: dict[str, Any] = dict(parse_url(url))
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"cannot read the Redis URL {redact(url)!r}: {error}") from None
    connection_class = options.pop("connection_class", Connection)
    check_path(parts.scheme, parts.path, options, url)
    try:
        connection_class(**options)
    except TypeError as error:
        raise ConfigError(f"cannot use the Redis URL {redact(url)!r}: unknown option: {error}") from None
    return options, connection_class


def check_path(scheme: str, path: str, options: dict[str, Any], url: str) -> None:
    """Refuse what redis-py lets pass: a socket without a path, a database that is no number."""
    if scheme == "unix":
        if not options.get("path"):
            raise ConfigError(
                f"the URL {redact(url)!r} names no socket: write unix:///path/to/redis.sock?db=0"
            )
        return
    if not options.get("host"):
        raise ConfigError(f"the URL {redact(url)!r} names no host: write redis://host:6379/0")
    if path.strip("/") and not path.strip("/").isdigit():
        raise ConfigError(f"the database in {redact(url)!r} must be a number: redis://host:6379/0")


def name_of(options: dict[str, Any]) -> str:
    """Return a short name for messages."""
    if "path" in options:
        return f"Redis at {options['path']}"
    return f"Redis at {options.get('host')}:{options.get('port', 6379)}"


def redact(url: object) -> str:
    """Return the URL without its password."""
    text = str(url)
    scheme, separator, rest = text.partition("://")
    credentials, at, host = rest.rpartition("@")
    return f"{scheme}{separator}***{at}{host}" if credentials else text
