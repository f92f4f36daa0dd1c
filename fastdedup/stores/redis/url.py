"""Redis URLs: parsed by redis-py, checked here, and shown without their password."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from typing import Any, Protocol
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from ...errors import ConfigError

Address = tuple[str, int]
"""Host and port."""


class Target(Protocol):
    """What a store connects to: one server, or whichever is the primary just now."""

    name: str
    """For messages: without the password."""

    async def connection(self, timeout: float) -> AbstractConnection:
        """Return a new connection that is logged in and can take commands.

        Raises:
            UnavailableError, or one of redis-py's errors: there is none within about `timeout` seconds.
        """
        ...


class ServerURL:
    """One server, and how to log in."""

    def __init__(self, options: dict[str, Any], connection_class: type[AbstractConnection]) -> None:
        self._options = options
        self._connection_class = connection_class
        self.name = name_of(options)

    @classmethod
    def of(cls, url: str) -> ServerURL:
        """Return the server that a redis://, rediss:// or unix:// URL names.

        Raises:
            ConfigError: the URL cannot be parsed.
        """
        return cls(*parse(url))

    @property
    def address(self) -> Address:
        """Where it is; for those with a host."""
        return self._options["host"], self._options.get("port", 6379)

    @property
    def database(self) -> int:
        """Its number."""
        return int(self._options.get("db", 0))

    def at(self, address: Address) -> ServerURL:
        """Return another server with the same login."""
        host, port = address
        return ServerURL({**self._options, "host": host, "port": port}, self._connection_class)

    def with_login(self, username: str | None, password: str | None) -> ServerURL:
        """Return the same server for another user, without a database or a name: a Sentinel has neither."""
        left_out = ("username", "password", "db")
        options = {name: value for name, value in self._options.items() if name not in left_out}
        login = {"username": username, "password": password, "client_name": None}
        return ServerURL(options | login, self._connection_class)

    def unconnected(self, timeout: float) -> AbstractConnection:
        """Return a new connection that gives up after `timeout` seconds, once.

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

    async def connection(self, timeout: float) -> AbstractConnection:
        """See `Target`."""
        connection = self.unconnected(timeout)
        try:
            await connection.connect()  # type: ignore[no-untyped-call] # redis-py leaves it untyped
        except BaseException:
            # What fails half-way, in a TLS handshake say, leaves a socket open otherwise.
            await hang_up(connection)
            raise
        return connection


async def hang_up(connection: AbstractConnection) -> None:
    """Close a connection, whatever state it is in."""
    with contextlib.suppress(Exception):
        await connection.disconnect(nowait=True)


async def question(connection: AbstractConnection, *command: str) -> Any:
    """Ask one thing over a connection that carries nothing else yet. Raises redis-py's errors."""
    await connection.send_command(*command)
    return await connection.read_response(disable_decoding=True)


def parse(url: str, scheme: str | None = None) -> tuple[dict[str, Any], type[AbstractConnection]]:
    """Return redis-py's connection options and class for a URL; `scheme` is the one to name in messages."""
    parts = split(url)
    shown = scheme or parts.scheme
    try:
        options: dict[str, Any] = dict(parse_url(url))
        connection_class = options.pop("connection_class", Connection)
        check_path(parts.scheme, parts.path, options)
        check_files(options)
        if options.pop("protocol", 2) not in (2, 3):
            raise ValueError("protocol is 2 or 3")
        connection_class(**options)
    except TypeError as error:
        raise ConfigError(f"cannot use the {shown}:// URL: unknown option: {error}") from None
    except (ValueError, RedisError) as error:
        raise ConfigError(f"cannot use the {shown}:// URL: {error}") from None
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
    if number and not is_database(number):
        raise ValueError("the database in the path must be a number: redis://host:6379/0")


def check_files(options: dict[str, Any]) -> None:
    """Refuse a TLS file that is not there: connecting would only report it as an outage."""
    for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"):
        if (path := options.get(name)) and not os.path.isfile(path):
            raise ValueError(f"{name}: there is no file {path}")


def is_database(text: str) -> bool:
    """True for a number as it stands in a URL."""
    return text.isascii() and text.isdecimal()


def name_of(options: dict[str, Any]) -> str:
    """Return a short name for messages."""
    if "path" in options:
        return f"Redis at {options['path']}"
    return f"Redis at {options.get('host')}:{options.get('port', 6379)}"


# URLs that name several servers: redis+sentinel://, redis+cluster://

_GROUP = re.compile(r"(?P<scheme>[^:/?#]+)://(?P<authority>[^/?#]*)(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?")
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\[\]@\s%]+)(?::(?P<port>\d{1,5}))?")


class GroupURL:
    """A URL with several hosts, taken apart.

    Args:
        form: how such a URL looks, for messages.
        port: where none is given.
        own: options that are not redis-py's.

    Raises:
        ConfigError: it cannot be read; no part of it is shown.
    """

    def __init__(self, url: str, *, form: str, port: int, own: Sequence[str] = ()) -> None:
        found = _GROUP.fullmatch(url)
        self.scheme = url.partition(":")[0].lower()
        self._form = form
        if found is None:
            raise self.refused("it cannot be read")
        login, at, hosts = found["authority"].rpartition("@")
        self._login = login + at
        self._tls = self.scheme.startswith("rediss")
        self.path = [unquote(part) for part in found["path"].split("/")[1:] if part]
        options = parse_qsl(found["query"] or "", keep_blank_values=True)
        self.own = {name: value for name, value in options if name in own}
        self._query = urlencode([(name, value) for name, value in options if name not in own])
        self.addresses = [self._address(part, port) for part in hosts.split(",")]

    def refused(self, why: str) -> ConfigError:
        """The error for this URL."""
        return ConfigError(
            f"cannot use the {self.scheme}:// URL: {why}; write {self._form}, with the special characters "
            "of a password percent-encoded"
        )

    def server(self, database: str = "") -> ServerURL:
        """Return the first of the hosts, with the login and options of the URL."""
        host, port = self.addresses[0]
        shown = f"[{host}]" if ":" in host else host
        plain = f"{'rediss' if self._tls else 'redis'}://{self._login}{shown}:{port}/{database}?{self._query}"
        return ServerURL(*parse(plain, self.scheme)).at(self.addresses[0])

    def _address(self, part: str, port: int) -> Address:
        found = _HOST.fullmatch(part)
        if found is None:
            raise self.refused("its hosts cannot be read" if part else "it names no host, or an empty one")
        number = int(found["port"] or port)
        if not 0 < number < 65_536:
            raise self.refused("a port is a number from 1 to 65535")
        return found["host"].strip("[]"), number
