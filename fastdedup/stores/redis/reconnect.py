"""A connection that is opened when it is first needed, and opened again after it has ended."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import hiredis

from ...errors import ConfigError, UnavailableError
from ...tasks import outcome_of, patience, stop
from .connection import RedisConnection
from .errors import MistakeError
from .scripts import pack
from .url import Target, name_of
from .verbs import all_scripts

OLDEST = (6, 2)
_NO_INFO = ("NOPERM", "ERR unknown command")
"""The beginnings of refusals of INFO that are not a fault: the login may not ask, or the server does not know it."""

OnPush = Callable[[Any], None]
Connect = Callable[[OnPush | None], Coroutine[Any, Any, RedisConnection]]
Check = Callable[[Any], None]


class Reconnector:
    """Keeps one `RedisConnection`; concurrent callers share one attempt to connect.

    Args:
        connect: opens a connection.
        on_restart: called if the server at an address is another process than at the previous connection.
    """

    def __init__(self, connect: Connect, on_restart: Callable[[], None] | None = None) -> None:
        self._connect = connect
        self._on_restart = on_restart
        # Mutable: the connection, the last connection, the process that it led to, and the attempt to connect.
        self.connection: RedisConnection | None = None
        """The connection while it is usable, otherwise None. An attribute, because every batch reads it."""
        self._last: RedisConnection | None = None
        self._process: tuple[str, str] | None = None
        self._connecting: asyncio.Task[RedisConnection] | None = None
        self._closed = False

    @property
    def is_idle(self) -> bool:
        """True if there is no connection to close, and none is being opened."""
        return self._connecting is None and (self._last is None or self._last.closed.done())

    async def connected(self) -> RedisConnection:
        """Return the connection; connect first if it has ended."""
        if self._closed:
            raise ConnectionError("the store is closed")
        if self.connection is not None and self.connection.usable:
            return self.connection
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect(None), name="fastdedup-connect")
            self._connecting.add_done_callback(self._connect_done)
        return await outcome_of(self._connecting)

    def abort(self, reason: str) -> None:
        """Drop the connection: the next caller connects anew."""
        if self._last is not None:
            self._last.abort(reason)

    def finish(self) -> None:
        """Close the connection once every sent command is answered."""
        if self._last is not None:
            self._last.finish()

    async def aclose(self) -> None:
        """Close the connection, and refuse to connect again."""
        self._closed = True
        if self._connecting is not None:
            await stop(self._connecting)
        if self._last is not None:
            await self._last.aclose()
            self._last = None

    def _connect_done(self, task: asyncio.Task[RedisConnection]) -> None:
        self._connecting = None
        if not task.cancelled() and task.exception() is None:
            connection = self._last = task.result()
            if self._closed:
                connection.abort("the store is closed")
                return
            if connection.usable:
                self.connection = connection
                connection.on_unusable = self._ended
            self._meet(connection.process)

    def _meet(self, process: tuple[str, str] | None) -> None:
        """Notice a restart. Only the last address is compared: a server that restarted as a replica has caught up."""
        if process is None:
            return
        former, self._process = self._process, process
        if (
            self._on_restart is not None
            and former is not None
            and former != process
            and former[0] == process[0]
        ):
            self._on_restart()

    def _ended(self, connection: RedisConnection) -> None:
        if self.connection is connection:
            self.connection = None


async def dial(target: Target, timeout: float, on_push: OnPush | None, check: Check) -> RedisConnection:
    """Connect, check the server, load the scripts. `timeout`: seconds for each of these steps.

    Raises:
        ConfigError: fastdedup cannot use this server.
        Exception: an error of redis-py, hiredis or the system, for `translate`.
    """
    timeout = await patience(timeout)
    link = await target.connection(timeout)
    connection = RedisConnection(link, on_push)
    try:
        async with asyncio.timeout(timeout):
            info = await connection.send(pack("INFO", "server"))
            check(info)
            connection.process = process_of(info, name_of(vars(link)))
            if on_push is None:
                # So that the first batches need not be sent twice. If the login may not SCRIPT LOAD, EVAL loads them.
                texts = [script.text for script in all_scripts()]
                await asyncio.gather(*[connection.send(pack("SCRIPT", "LOAD", text)) for text in texts])
    except BaseException:
        connection.abort("not usable")
        raise
    return connection


@asynccontextmanager
async def lent(
    server: Target, timeout: float, connection: RedisConnection | None = None
) -> AsyncIterator[RedisConnection]:
    """Lend a server's open connection for some questions; if it has none, a new one, which is dropped afterwards."""
    if connection is not None:
        yield connection
        return
    own = RedisConnection(await server.connection(timeout))
    try:
        yield own
    finally:
        own.abort("its question is answered, or given up")


def check_version(info: Any) -> None:
    """Refuse a server that is too old for the scripts.

    Raises:
        ConfigError: the server is older than Redis 6.2.
    """
    if isinstance(info, hiredis.ReplyError):
        # The login or the server has no INFO: a server that is too old then fails at the scripts.
        if str(info).startswith(_NO_INFO):
            return
        raise info
    found = re.search(rb"redis_version:(\d+)\.(\d+)", info)
    if found and (version := (int(found[1]), int(found[2]))) < OLDEST:
        raise ConfigError(
            f"this Redis is version {version[0]}.{version[1]}; fastdedup needs "
            f"{OLDEST[0]}.{OLDEST[1]} or later (or Valkey)"
        )


def server_time(info: Any) -> int:
    """Return the server's time from INFO, in microseconds since 1970; 0 if INFO has no time."""
    found = re.search(rb"server_time_usec:(\d{1,16})\b", info) if isinstance(info, bytes) else None
    return int(found[1]) if found else 0


def process_of(info: Any, address: str) -> tuple[str, str] | None:
    """Return the address, and the id of the server's process from INFO; None if INFO has no id."""
    found = re.search(rb"run_id:(\w+)", info) if isinstance(info, bytes) else None
    return (address, found[1].decode()) if found else None


def policy_of(info: Any) -> str | None:
    """Return the maxmemory-policy from INFO; None if INFO has none.

    Raises:
        ReplyError: the server refused INFO for another reason than the login's rights.
    """
    if isinstance(info, hiredis.ReplyError):
        if str(info).startswith(_NO_INFO):
            return None
        raise info
    found = re.search(rb"maxmemory_policy:([a-z-]+)", info)
    return found[1].decode() if found else None


def check_single(info: Any) -> None:
    """Refuse a Cluster's node and a Sentinel, as well as every server that `check_version` refuses.

    Raises:
        ConfigError: the server is not a single server, or older than Redis 6.2.
    """
    check_version(info)
    # Valkey names the field `server_mode`.
    mode = re.search(rb"(?:redis|server)_mode:(\w+)", info) if isinstance(info, bytes) else None
    if mode and mode[1] == b"cluster":
        raise no_single_server()
    if mode and mode[1] == b"sentinel":
        raise ConfigError("this is a Sentinel: use redis+sentinel://host:26379/service-name")


def only_mistakes(fault: BaseException) -> str:
    """Raise the fault if it is a mistake of the configuration; if it is an outage, return the reason.

    Raises:
        ConfigError: the login, the service or the port's protocol is wrong.
    """
    if isinstance(fault, MistakeError):
        raise ConfigError(str(fault)) from None
    if not isinstance(fault, UnavailableError):
        raise fault from None
    return str(fault)


def no_single_server() -> ConfigError:
    """Return the error for a redis:// URL that leads to a Cluster's node."""
    return ConfigError("this is a node of a Redis Cluster: use redis+cluster://")
