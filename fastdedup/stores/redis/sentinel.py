"""Sentinel: finds the present primary of a service, anew for each connection. So a failover needs nothing else."""

from __future__ import annotations

import asyncio

import redis.exceptions as driver
from redis.asyncio.connection import AbstractConnection

from ...errors import UnavailableError
from .errors import LoginRefusedError, MistakeError, translate
from .first_good import NoneGoodError, first_good
from .url import Address, GroupURL, ServerURL, hang_up, is_database, question

FORM = "redis+sentinel://user:password@host1:26379,host2:26379/service-name/0"
PORT = 26_379


class UnknownServiceError(MistakeError):
    """No sentinel knows the service: at opening a mistake, later an outage."""


class NoPrimaryError(UnavailableError):
    """The server that the sentinels name cannot be used as a primary."""


class SeenError(UnavailableError):
    """Another sentinel has named this server already, and it is being tried."""


_TELLING = (NoPrimaryError, UnknownServiceError, MistakeError, UnavailableError, Exception)
"""The kinds of errors, the most telling first: of several errors the first kind is shown."""


class SentinelTarget:
    """The primary of a service: a server that the sentinels name, and that confirms its role itself.

    All sentinels are asked at once, so a sentinel that is down or frozen costs no time. During a failover
    they may name different servers: each is tried, and the first that confirms to be a primary is taken.

    Raises:
        ConfigError: the URL cannot be used.
    """

    def __init__(self, url: str) -> None:
        own = ("sentinel_username", "sentinel_password")
        group = GroupURL(url, form=FORM, port=PORT, own=own)
        if not 1 <= len(group.path) <= 2:
            raise group.refused(
                "behind the hosts must stand the name of the service, and may stand a database"
            )
        self._service, database = (*group.path, "")[:2]
        if database and not is_database(database):
            raise group.refused("the database must be a number")
        self._server = group.server(database)
        sentinel = self._server.with_login(*(group.own.get(name) for name in own))
        self._sentinels = [sentinel.at(address) for address in group.addresses]
        places = ", ".join(f"{host}:{port}" for host, port in group.addresses)
        self.name = f"Redis {self._service!r} of the sentinels at {places}"

    async def connection(self, timeout: float) -> AbstractConnection:
        """Return a connection to the primary. The sentinels have `timeout` seconds, and so has the primary.

        Raises:
            UnknownServiceError: the sentinels that answer do not know the service.
            UnavailableError: no sentinel answers, or the server that they name is not a primary.
        """
        tried: set[Address] = set()
        attempts = (self._follow(sentinel, tried, timeout) for sentinel in self._sentinels)
        try:
            return await first_good(attempts, discard=hang_up)
        except NoneGoodError as error:
            errors = error.errors
        raise next(error for kind in _TELLING for error in errors if isinstance(error, kind))

    async def _follow(self, sentinel: ServerURL, tried: set[Address], timeout: float) -> AbstractConnection:
        """Connect to the server that one sentinel names, unless another sentinel has named it already."""
        address = await self._ask(sentinel, timeout)
        if address in tried:
            raise SeenError(f"{self.name}: this server is being tried already")
        tried.add(address)
        return await self._primary_at(address, timeout)

    async def _ask(self, sentinel: ServerURL, timeout: float) -> Address:
        connection: AbstractConnection | None = None
        try:
            async with asyncio.timeout(timeout):
                connection = await sentinel.connection(timeout)
                answer = await question(connection, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
        except Exception as error:  # noqa: BLE001 -- translated, or raised again
            raise _sentinel_fault(error, sentinel) from None
        finally:
            if connection is not None:
                await hang_up(connection)
        if answer is None:
            raise UnknownServiceError(
                f"{self.name}: the sentinels that answer do not know this service: check its name in the URL"
            )
        return answer[0].decode(), int(answer[1])

    async def _primary_at(self, address: Address, timeout: float) -> AbstractConnection:
        server = self._server.at(address)
        connection: AbstractConnection | None = None
        try:
            async with asyncio.timeout(timeout):
                connection = await server.connection(timeout)
                await check_role(connection, server.name)
        except BaseException as error:
            if connection is not None:
                await hang_up(connection)
            if not isinstance(error, Exception) or isinstance(error, UnavailableError):
                raise
            fault = translate(error, server.name)
            raise NoPrimaryError(str(fault)) if type(fault) is UnavailableError else fault from None
        return connection


async def check_role(connection: AbstractConnection, name: str) -> None:
    """Ask a server whether it is a primary: a sentinel may not know the latest failover yet.

    Raises:
        NoPrimaryError: it is not a primary.
    """
    try:
        role = await question(connection, "ROLE")
    except driver.NoPermissionError:
        return  # the login may not use ROLE; a replica refuses writes with READONLY anyway
    if role[0] != b"master":
        raise NoPrimaryError(f"{name}: this server is not a primary (any more): a failover is under way")


def _sentinel_fault(error: Exception, sentinel: ServerURL) -> Exception:
    where = sentinel.name.replace("Redis", "Sentinel", 1)
    fault = translate(error, where)
    if isinstance(fault, LoginRefusedError):
        return LoginRefusedError(
            f"{where}: the sentinel refused the login: put sentinel_username= and sentinel_password= into the URL"
        )
    return fault
