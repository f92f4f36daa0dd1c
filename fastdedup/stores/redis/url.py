"""Redis URLs: parsed by redis-py, checked here, and shown without their password."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Protocol
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from ...errors import ConfigError
from ..base import Credentials
from .credentials import ask
from .errors import NO_TLS, ONLY_TLS, WrongPortError
from .tls import check_host_name, has_other_protocol, may_be_other_protocol, share_context

Address = tuple[str, int]
"""Host and port."""

_PROBES = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
_KEEP_ALIVE: Mapping[str, Any] = {
    "socket_keepalive": True,
    "socket_keepalive_options": {
        getattr(socket, name): value for name, value in _PROBES.items() if hasattr(socket, name)
    },
}
"""For TCP: a firewall forgets no idle connection, and a dead one is noticed in a minute. A system may lack some."""


class Target(Protocol):
    """The server that a store connects to: always the same one, or the present primary of a service."""

    name: str
    """The server's name in messages, without the password."""

    async def connection(self, timeout: float) -> AbstractConnection:
        """Return a new connection that is logged in and can take commands.

        Raises:
            UnavailableError, or one of redis-py's errors: no connection was made within about `timeout` seconds.
        """
        ...


class ServerURL:
    """One server, and how to log in."""

    def __init__(
        self,
        options: dict[str, Any],
        connection_class: type[AbstractConnection],
        credentials: Credentials | None = None,
    ) -> None:
        self._options = options
        self._connection_class = connection_class
        self._credentials = credentials
        self.name = name_of(options)
        self.protocol_settled = "path" in options
        """True once a connection was made, or once the port was asked for its protocol: it is not asked again."""

    @classmethod
    def of(cls, url: str) -> ServerURL:
        """Return the server that a redis://, rediss:// or unix:// URL names.

        Raises:
            ConfigError: the URL cannot be parsed.
        """
        return cls(*parse(url))

    @property
    def address(self) -> Address:
        """Its host and port; only for a server that has a host."""
        return self._options["host"], self._options.get("port", 6379)

    @property
    def database(self) -> int:
        """The number of its database."""
        return int(self._options.get("db", 0))

    def at(self, address: Address) -> ServerURL:
        """Return another server with the same login."""
        host, port = address
        return ServerURL(
            {**self._options, "host": host, "port": port}, self._connection_class, self._credentials
        )

    def with_credentials(self, credentials: Credentials | None) -> ServerURL:
        """Return the same server; `credentials` gives the login of each of its connections.

        Raises:
            ConfigError: the URL has a password as well.
        """
        if credentials is not None and self._options.get("password"):
            raise ConfigError(
                f"{self.name}: there are credentials and a password in the URL: leave that password out"
            )
        return ServerURL(self._options, self._connection_class, credentials)

    async def logged_in(self) -> ServerURL:
        """Return the same server with the present login. `credentials` may take longer than a connection.

        Raises:
            UnavailableError: `credentials` gave no login.
        """
        if self._credentials is None:
            return self
        server = ServerURL(self._options | await ask(self._credentials), self._connection_class)
        server.protocol_settled = self.protocol_settled
        return server

    def with_login(self, username: str | None, password: str | None) -> ServerURL:
        """Return the same server for another user, without a database or a client name: a sentinel takes neither."""
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
            **(_KEEP_ALIVE if issubclass(self._connection_class, Connection) else {}),
            **self._options,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            "retry_on_error": [],
        }
        return self._connection_class(**options)

    async def connection(self, timeout: float) -> AbstractConnection:
        """See `Target`."""
        if self._credentials is not None:
            server = await self.logged_in()
            try:
                return await server.connection(timeout)
            finally:
                self.protocol_settled = server.protocol_settled
        connection = self.unconnected(timeout)
        try:
            await connection.connect()  # type: ignore[no-untyped-call] # redis-py leaves it untyped
        except BaseException as error:
            # A connection that fails half-way, for example in a TLS handshake, would leave its socket open.
            await hang_up(connection)
            if not isinstance(error, Exception):
                raise
            fault = ConnectionResetError("cut off while connecting") if _was_closed(error) else error
        else:
            self.protocol_settled = True
            return connection
        # Outside of the except clause, so that the error does not hold redis-py's frames, which hold the password.
        raise await self._wrong_port(fault, timeout) or fault

    async def _wrong_port(self, fault: Exception, timeout: float) -> Exception | None:
        """Ask the port for its protocol, once, if no connection was made before."""
        tls = issubclass(self._connection_class, SSLConnection)
        if self.protocol_settled or not may_be_other_protocol(fault, tls=tls):
            return None
        self.protocol_settled = True
        if not await has_other_protocol(self.address, tls=tls, timeout=timeout):
            return None
        return WrongPortError(f"{self.name}: {NO_TLS if tls else ONLY_TLS}")


def _was_closed(error: Exception) -> bool:
    """True for uvloop's own error of a transport that the other side has closed before redis-py wrote to it."""
    return isinstance(error, RuntimeError) and "handler is closed" in str(error)


async def hang_up(connection: AbstractConnection) -> None:
    """Close a connection in any state."""
    with contextlib.suppress(Exception):
        await connection.disconnect(nowait=True)


async def question(connection: AbstractConnection, *command: str) -> Any:
    """Send one command over a connection that carries no other command yet. Raises redis-py's errors."""
    await connection.send_command(*command)
    return await connection.read_response(disable_decoding=True)


class UnusableError(ValueError):
    """A mistake in a URL, in words that show no part of the URL."""


def parse(url: str, scheme: str | None = None) -> tuple[dict[str, Any], type[AbstractConnection]]:
    """Return redis-py's connection options and class for a URL; `scheme`: the scheme to name in messages.

    Raises:
        ConfigError: the URL cannot be used. Neither the message nor its causes show a secret.
    """
    parts = split(url)
    try:
        return _options(url, parts)
    except UnusableError as error:
        why = str(error)
    except TypeError as error:
        why = _unknown_option(str(error), parts)
    except (ValueError, RedisError) as error:
        why = _why(str(error))
    raise ConfigError(f"cannot use the {scheme or parts.scheme}:// URL: {why}")


_BEFORE_QUERY = {"username": "username", "password": "password", "host": "hostname", "port": "port"}
"""The options that a URL has before its query, and their names in `SplitResult`. `check_path` checks the database."""


def _options(url: str, parts: SplitResult) -> tuple[dict[str, Any], type[AbstractConnection]]:
    check_query(parts.query, [name for name, part in _BEFORE_QUERY.items() if getattr(parts, part)])
    if parts.fragment:
        raise UnusableError("it has a # in it: percent-encode the special characters of a password")
    options: dict[str, Any] = dict(parse_url(url))
    connection_class = options.pop("connection_class", Connection)
    check_path(parts, options)
    check_files(options)
    if str(options.pop("protocol", 2)) not in ("2", "3"):
        raise UnusableError("protocol must be 2 or 3")
    check_host_name(options, connection_class)
    if "lib_name" not in options and "lib_version" not in options:
        options |= driver_info()
    connection_class(**options)
    return share_context(options, connection_class)


@cache
def driver_info() -> dict[str, Any]:
    """Return how a connection names redis-py to the server; else it would read the version from the disk, 1 ms."""
    try:
        from redis.driver_info import DriverInfo
    except ImportError:  # an older redis-py, which reads it once
        return {}
    return {"driver_info": DriverInfo()}


def _unknown_option(text: str, parts: SplitResult) -> str:
    """Name the option, unless the query holds a password: then the option may be a part of it, after an &."""
    name = text.partition("'")[2].partition("'")[0]
    if not name:
        return "redis-py refuses its options"
    named = f": {name}" if "password=" not in parts.query or name.endswith("password") else ""
    return f"unknown option{named}; redis-py's connections do not take it"


def _why(text: str) -> str:
    """Return the mistake that redis-py found in an option, without the option's value."""
    if "SSL Certificate Requirements" in text:
        return "ssl_cert_reqs must be none, optional or required"
    found = re.match(r"Invalid value for '(\w+)'", text)
    return f"the value of '{found[1]}' is not valid" if found else "redis-py refuses its options"


def split(url: str) -> SplitResult:
    """Split a URL. No message shows a part of it: a URL that cannot be read may hold its password anywhere."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 -- the property raises if the port is not a number
    except ValueError:
        scheme = url.partition("://")[0]
    else:
        return parts
    raise ConfigError(
        f"cannot read the Redis URL {scheme}://…: write {scheme}://user:password@host:6379/0, with "
        "the special characters of a password percent-encoded"
    )


def check_query(query: str, before: Sequence[str] = ()) -> None:
    """Refuse an option without a value: most often it is the rest of a password with a ? or & in it.

    Refuse an option that is given twice: redis-py would take one of the two values, and drop the other. `before`:
    the names of the options that the URL has before the query.
    """
    if any("=" not in piece for piece in query.split("&") if piece):
        raise UnusableError(
            "options after the ? must be name=value; percent-encode the special characters of a password"
        )
    names = [*before, *(name for name, _ in parse_qsl(query, keep_blank_values=True))]
    if len(set(names)) < len(names):
        raise UnusableError("an option is given twice: give it once")


_PORT = "a port must be a number from 1 to 65535"


def check_path(parts: SplitResult, options: dict[str, Any]) -> None:
    """Refuse what redis-py accepts: a socket without its whole path, a database that is no number, two databases."""
    if parts.scheme == "unix":
        # redis-py drops it, and connecting would report an outage of another socket.
        if parts.hostname is not None:
            raise UnusableError("it has two slashes before the path: write three, unix:///path/to/redis.sock")
        if not options.get("path"):
            raise UnusableError("it names no socket: write unix:///path/to/redis.sock?db=0")
        return
    if not options.get("host"):
        raise UnusableError("it names no host: write redis://host:6379/0")
    if not is_host(options["host"]):
        raise UnusableError(
            "its host is no name of a host: a part of it is empty, too long, or has a character that no host has"
        )
    # redis-py would take 6379 for a 0, and the system another port for a number that is too large.
    port = options.get("port", 6379) if parts.port is None else parts.port
    if not is_database(str(port)) or not 0 < int(port) < 65_536:
        raise UnusableError(_PORT)
    number = parts.path.strip("/")
    if number and not is_database(number):
        raise UnusableError("the database in the path must be a number: redis://host:6379/0")
    if number and options.get("db") != int(number):
        raise UnusableError("the path names one database, and db= another one: leave one of them out")


def is_host(text: str) -> bool:
    """False for a name that no connection can look up, such as `.redis.svc`, from a variable that is not set."""
    try:
        return b"\0" not in text.encode("idna")
    except UnicodeError:
        return False


def check_files(options: dict[str, Any]) -> None:
    """Refuse a TLS file that does not exist: connecting would only report it as an outage."""
    for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"):
        if (path := options.get(name)) and not os.path.isfile(path):
            raise UnusableError(f"{name}: there is no file {path}")


def is_database(text: str) -> bool:
    """True for a number in the form of a URL."""
    return text.isascii() and text.isdecimal()


def name_of(options: dict[str, Any]) -> str:
    """Return a short name for messages."""
    if "path" in options:
        return f"Redis at {options['path']}"
    return f"Redis at {options.get('host')}:{options.get('port', 6379)}"


# URLs of several servers: redis+sentinel://, redis+cluster://

_GROUP = re.compile(r"(?P<scheme>[^:/?#]+)://(?P<authority>[^/?#]*)(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?")
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\[\]@\s%]+)(?::(?P<port>\d{1,5}))?")


class GroupURL:
    """A URL with several hosts, taken apart.

    Args:
        form: the form of such a URL, for messages.
        port: the port of a host that names none.
        own: names of options that are fastdedup's and not redis-py's.

    Raises:
        ConfigError: the URL cannot be read; the message shows no part of it.
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
        try:
            check_query(found["query"] or "")
        except UnusableError as error:
            raise self.refused(str(error)) from None
        self.path = [unquote(part) for part in found["path"].split("/")[1:] if part]
        options = parse_qsl(found["query"] or "", keep_blank_values=True)
        self.own = {name: value for name, value in options if name in own}
        self._query = urlencode([(name, value) for name, value in options if name not in own])
        self.addresses = [self._address(part, port) for part in hosts.split(",")]

    def refused(self, why: str) -> ConfigError:
        """Return the error for this URL."""
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
        if found is None or not is_host(found["host"]):
            raise self.refused("its hosts cannot be read" if part else "it names no host, or an empty host")
        number = int(found["port"] or port)
        if not 0 < number < 65_536:
            raise self.refused(_PORT)
        return found["host"].strip("[]"), number
