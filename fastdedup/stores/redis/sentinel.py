"""Sentinel: finds the present primary of a service, anew for each connection.

So a failover that ends the connections needs nothing more. `primary_watch.py` ends those that a failover leaves open.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import redis.exceptions as driver
from redis.asyncio.connection import AbstractConnection

from ...errors import UnavailableError
from ..base import Credentials
from .errors import LoginRefusedError, MistakeError, translate
from .first_good import NoneGoodError, first_good
from .latest_primary import NO_EPOCH, LatestPrimary, NamedPrimary
from .reconnect import lent
from .scripts import pack
from .url import Address, GroupURL, ServerURL, hang_up, is_database, question

FORM = "redis+sentinel://user:password@host1:26379,host2:26379/service-name/0"
PORT = 26_379
_MORE = 0.1
"""The most seconds to wait for the answers of further sentinels; fewer if the deadline is shorter."""


class UnknownServiceError(MistakeError):
    """No sentinel knows the service: a mistake while a gate opens, an outage later."""


class NoPrimaryError(UnavailableError):
    """The server that the sentinels name cannot be used as a primary."""


class FormerPrimaryError(UnavailableError):
    """A sentinel names the primary from before a failover: it was cut off from the other sentinels."""


class SeenError(UnavailableError):
    """Another sentinel has named this server already, and an attempt to connect to it is under way."""


_TELLING = (
    *(NoPrimaryError, UnknownServiceError, MistakeError, FormerPrimaryError),
    *(UnavailableError, Exception),
)
"""The kinds of errors, the most telling first: of several errors the first kind is shown."""


class SentinelTarget:
    """The primary of a service: a server that the sentinels name, and that confirms its role itself.

    All sentinels are asked at once, so a sentinel that is down or frozen costs no time. During a failover
    they may name different servers: then `LatestPrimary` says which of them counts. The URL names every
    sentinel, because it gives the number that a majority is counted from.

    Args:
        credentials: asked for the login of each connection to the primary; the sentinels' login is in the URL.

    Raises:
        ConfigError: the URL cannot be used, or not together with `credentials`.
    """

    def __init__(self, url: str, credentials: Credentials | None = None) -> None:
        own = ("sentinel_username", "sentinel_password")
        group = GroupURL(url, form=FORM, port=PORT, own=own)
        if not 1 <= len(group.path) <= 2:
            raise group.refused(
                "behind the hosts must stand the name of the service, and may stand a database"
            )
        self.service, database = (*group.path, "")[:2]
        if database and not is_database(database):
            raise group.refused("the database must be a number")
        self.server = group.server(database).with_credentials(credentials)
        """The primary's login; the sentinels give its address."""
        sentinel = self.server.with_login(*(group.own.get(name) for name in own))
        self.sentinels = [sentinel.at(address) for address in group.addresses]
        # The epoch first: if a failover comes between the two, the new address has the old epoch: harmless.
        self.question = pack("SENTINEL", "MASTER", self.service) + pack(
            "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service
        )
        """Two commands, whose replies are for `read_answer`."""
        self.latest = LatestPrimary(len(self.sentinels))
        """The primary that the sentinels name, as far as this process knows."""
        places = ", ".join(f"{host}:{port}" for host, port in group.addresses)
        self.name = f"Redis {self.service!r} of the sentinels at {places}"

    async def connection(self, timeout: float) -> AbstractConnection:
        """Return a connection to the primary. The sentinels have `timeout` seconds, and so has the primary.

        Raises:
            UnknownServiceError: the sentinels that answer do not know the service.
            UnavailableError: no sentinel answers, or the server that they name is not a primary.
        """
        asked = Answers(self.latest, len(self.sentinels))
        attempts = (self._follow(sentinel, asked, timeout) for sentinel in self.sentinels)
        try:
            return await first_good(attempts, discard=hang_up)
        except NoneGoodError as error:
            errors = error.errors
        raise next(error for kind in _TELLING for error in errors if isinstance(error, kind))

    async def _follow(self, sentinel: ServerURL, asked: Answers, timeout: float) -> AbstractConnection:
        """Connect to the server that one sentinel names, unless another sentinel knows better or named it already."""
        named: NamedPrimary | None = None
        try:
            named = await self._ask(sentinel, timeout)
        finally:
            asked.take(named)
        await asked.compared(min(_MORE, timeout / 4))
        if not self.latest.accepts(named):
            raise self._former()
        if named.address in asked.tried:
            raise SeenError(f"{self.name}: this server is being tried already")
        asked.tried.add(named.address)
        connection = await self._primary_at(named.address, timeout)
        if not self.latest.accepts(named):  # another sentinel reported a failover meanwhile
            await hang_up(connection)
            raise self._former()
        self.latest.confirmed(named)
        return connection

    async def still_answers(self, address: Address, timeout: float) -> bool:
        """True if a server answers within `timeout` seconds, with any answer."""
        try:
            async with asyncio.timeout(timeout):
                server = await self.server.at(address).logged_in()
                async with lent(server, timeout) as link:
                    await link.send(pack("PING"))
        except driver.ResponseError:
            return True
        except Exception:  # noqa: BLE001 -- any error means that it does not answer
            return False
        return True

    def _former(self) -> FormerPrimaryError:
        return FormerPrimaryError(
            f"{self.name}: the sentinels that answer name the primary from before the latest failover: "
            "are the other sentinels down, or cut off?"
        )

    async def _ask(self, sentinel: ServerURL, timeout: float) -> NamedPrimary:
        try:
            async with asyncio.timeout(timeout), lent(sentinel, timeout) as link:
                # The first reply is an error if the login may not ask for the epoch; the second one tells why.
                about, address = await link.send_many(self.question, 2)
            if isinstance(address, Exception):
                raise address
            named = read_answer(about, address)
        except Exception as error:  # noqa: BLE001 -- translated, or raised again
            raise _sentinel_fault(error, sentinel) from None
        if named is None:
            raise UnknownServiceError(
                f"{self.name}: the sentinels that answer do not know this service: check its name in the URL"
            )
        return named

    async def _primary_at(self, address: Address, timeout: float) -> AbstractConnection:
        server = await self.server.at(address).logged_in()
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


class Answers:
    """The answers of the sentinels to one question, and the servers that are being tried."""

    def __init__(self, latest: LatestPrimary, sentinels: int) -> None:
        self._latest = latest
        # Mutable: how many have not answered; the answers; the servers being tried; an event: a majority answered.
        self._left = sentinels
        self._answers: list[NamedPrimary] = []
        self.tried: set[Address] = set()
        self._enough = asyncio.Event()

    def take(self, named: NamedPrimary | None) -> None:
        """Count a sentinel's answer; None if it gave no answer."""
        self._left -= 1
        if named is not None:
            self._answers.append(named)
            self._latest.hear(named)
            self._latest.conclude(self._answers)
        if len(self._answers) >= self._latest.majority or not self._left:
            self._enough.set()

    async def compared(self, seconds: float) -> None:
        """Wait until a majority has answered, but not for long: the other sentinels may be down."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._enough.wait()


def read_answer(about: Any, address: Any) -> NamedPrimary | None:
    """Return the primary that a sentinel names, from its replies to `SentinelTarget.question`.

    The address is not taken from SENTINEL MASTER, which shows the former primary with the new epoch while the leader
    of a failover reconfigures the replicas. None: the sentinel does not know the service.
    """
    if not isinstance(address, list):
        return None
    fields = dict(zip(about[::2], about[1::2], strict=False)) if isinstance(about, list) else {}
    epoch = int(fields.get(b"config-epoch", NO_EPOCH))
    return NamedPrimary(epoch, (address[0].decode(), int(address[1])))


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
