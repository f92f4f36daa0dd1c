"""Sentinel: who is the primary just now. Asked anew for each connection, so a failover needs no more."""

from __future__ import annotations

import asyncio

import redis.exceptions as driver
from redis.asyncio.connection import AbstractConnection

from ...errors import UnavailableError
from .errors import LoginRefusedError, translate
from .first_good import NoneGoodError, first_good
from .url import Address, GroupURL, ServerURL, hang_up, is_database, question

FORM = "redis+sentinel://user:password@host1:26379,host2:26379/service-name/0"
PORT = 26_379


class UnknownServiceError(UnavailableError):
    """No Sentinel knows the service: at opening a mistake, later an outage."""


class NoPrimaryError(UnavailableError):
    """What the sentinels name cannot be used as a primary."""


class SeenError(UnavailableError):
    """Another Sentinel named this server before: it is being tried."""


_TELLING = (NoPrimaryError, UnknownServiceError, LoginRefusedError, UnavailableError, Exception)
"""Which error to show where there are several: the most telling first."""


class SentinelTarget:
    """The primary of a service, by the word of its sentinels and its own.

    All sentinels are asked at once: one that is down or frozen costs nothing. Where they name
    different servers, during a failover, each is tried: the one that says it is a primary is taken.

    Raises:
        ConfigError: the URL cannot be used.
    """

    def __init__(self, url: str) -> None:
        own = ("sentinel_username", "sentinel_password")
        group = GroupURL(url, form=FORM, port=PORT, own=own)
        if not 1 <= len(group.path) <= 2:
            raise group.refused("behind the hosts stands the name of the service, then perhaps a database")
        self._service, database = (*group.path, "")[:2]
        if database and not is_database(database):
            raise group.refused("the database is a number")
        self._server = group.server(database)
        sentinel = self._server.with_login(*(group.own.get(name) for name in own))
        self._sentinels = [sentinel.at(address) for address in group.addresses]
        places = ", ".join(f"{host}:{port}" for host, port in group.addresses)
        self.name = f"Redis {self._service!r} of the sentinels at {places}"

    async def connection(self, timeout: float) -> AbstractConnection:
        """Return a connection to the primary. The sentinels have `timeout` seconds, and so has the primary.

        Raises:
            UnknownServiceError: those that answer know no such service.
            UnavailableError: no Sentinel answers, or what they name is no primary.
        """
        tried: set[Address] = set()
        attempts = (self._follow(sentinel, tried, timeout) for sentinel in self._sentinels)
        try:
            return await first_good(attempts, discard=hang_up)
        except NoneGoodError as error:
            errors = error.errors
        raise next(error for kind in _TELLING for error in errors if isinstance(error, kind))

    async def _follow(self, sentinel: ServerURL, tried: set[Address], timeout: float) -> AbstractConnection:
        """Go where one Sentinel sends us, unless another one did before."""
        address = await self._ask(sentinel, timeout)
        if address in tried:
            raise SeenError(f"{self.name}: no primary")
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
                f"{self.name}: no Sentinel that answers knows this service: check its name in the URL"
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
    """Ask a server whether it is a primary: a Sentinel may be behind the times.

    Raises:
        NoPrimaryError: it is not.
    """
    try:
        role = await question(connection, "ROLE")
    except driver.NoPermissionError:
        return  # the login may not ask; a replica refuses writes with READONLY
    if role[0] != b"master":
        raise NoPrimaryError(f"{name}: is no primary (any more): failing over")


def _sentinel_fault(error: Exception, sentinel: ServerURL) -> Exception:
    where = sentinel.name.replace("Redis", "Sentinel", 1)
    fault = translate(error, where)
    if isinstance(fault, LoginRefusedError):
        return LoginRefusedError(
            f"{where}: refused the login: put sentinel_username= and sentinel_password= into the URL"
        )
    return fault
