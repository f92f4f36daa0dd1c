"""The Redis store: one primary, one connection, one EVALSHA for each batch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ...events import ClockSkew, PrimaryRestarted, PrimarySwitched
from ...kernel.operations import Op, Reply, mark_resent
from ...kernel.replies import RefusedAlone
from ...kernel.verbs import Verb
from ..base import Credentials
from .connection import RedisConnection
from .former_clock import FormerClock
from .listener import Listener
from .primary_watch import PrimaryWatch
from .reconnect import (
    Connect,
    OnPush,
    Reconnector,
    check_single,
    dial,
    no_single_server,
    only_mistakes,
    server_time,
)
from .scripts import CallHead
from .sentinel import SentinelTarget
from .served import OneServer, WholeStore
from .server import RedisServer, ScriptCall, refuses_keys, starts
from .url import Address, ServerURL, Target

_REDIRECTIONS = ("MOVED", "ASK", "CROSSSLOT")


def target_of(url: str, credentials: Credentials | None = None) -> Target:
    """Return the server that a redis://, rediss://, unix:// or redis+sentinel:// URL names.

    Raises:
        ConfigError: the URL cannot be used, or not together with `credentials`.
    """
    if "+sentinel" in url.partition("://")[0].lower():
        return SentinelTarget(url, credentials)
    return ServerURL.of(url).with_credentials(credentials)


class RedisStore(OneServer, WholeStore):
    """A single Redis (or Valkey) server, or the primary that Sentinel names. Guarantees: see `Store`.

    Args:
        timeout: seconds for connecting, and for one command of the handshake.
        replicas: how many replicas must confirm each write (WAIT) within 40 % of `timeout`; a write with fewer
            confirmations is marked as short.
        credentials: asked for the login of each new connection; see `Dedup`.
        connect: makes the connections instead of the URL; for tests.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float,
        replicas: int = 0,
        credentials: Credentials | None = None,
        connect: Connect | None = None,
    ) -> None:
        self._target = target_of(url, credentials)
        connect = connect or self._dial
        super().__init__(self._target.name, CallHead(), timeout, Listener(connect, timeout))
        self.reconnector = Reconnector(connect, lambda: self.report(PrimaryRestarted(self.name)))
        """Connects to the server, again and again."""
        self._clock = FormerClock(
            timeout, lambda offset: self.report(ClockSkew(self.name, offset)), lambda: self.max_clock_skew
        )
        self.server = RedisServer(self.reconnector, timeout=timeout, replicas=replicas, head=self.head)
        """Sends the batches."""
        self._watch: PrimaryWatch | None = None
        if isinstance(self._target, SentinelTarget):
            self._watch = PrimaryWatch(
                self._target, self._leave_others, lambda: self.report(PrimarySwitched(self.name))
            )
        self.begin = self.server.begin
        """Sends a batch: see `DirectStore`. It is the server's own method, which saves a call on the main path."""

    async def open(self) -> str:
        """Connect once, to find mistakes early. A server that is down is not a mistake: then the policy answers."""
        unreached = ""
        try:
            async with asyncio.timeout(self._timeout * 4):
                await self.reconnector.connected()
        except Exception as error:  # noqa: BLE001 -- translated, or raised again
            unreached = only_mistakes(self.fault_of(error))
        if self._watch is not None:
            self._watch.start()
        return unreached

    async def aclose(self) -> None:
        """Close the connections."""
        if self._watch is not None:
            await self._watch.aclose()
        await self.listener.aclose()
        await self.reconnector.aclose()

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        """Send one EVALSHA for the whole batch, and send it once more when the connection breaks.

        If the server refuses the batch for the keys in it, each operation goes in a call of its own.
        """
        call = ScriptCall(ops)
        await self.server.deliver(verb, [call])
        if refuses_keys(call.answer):
            return await self._one_by_one(verb, call)
        assert call.answer is not None
        if isinstance(call.answer, Exception):
            raise self.fault_of(call.answer) from None
        return call.answer

    async def _one_by_one(self, verb: Verb, refused: ScriptCall) -> Sequence[Reply]:
        """Send a call for each operation, all in one write: only the keys that the login may not use are refused."""
        ops, calls = refused.ops, [refused]
        if len(ops) > 1:
            calls = [ScriptCall([op]) for op in ops]
            await self.server.deliver(verb, calls)
        replies: list[Reply] = []
        for call in calls:
            answer = call.answer
            assert answer is not None
            if refuses_keys(answer):
                replies.append(RefusedAlone(*self.fault_of(answer).args))
            elif isinstance(answer, Exception):
                mark_resent(ops)  # also those that were answered
                raise self.fault_of(answer) from None
            else:
                replies += answer
        return replies

    def abandon(self) -> None:
        """Drop the connection: every reply after a late reply is late as well."""
        self.server.abandon()

    async def probe(self, wire: bytes) -> None:
        """Try to claim: see `ProbedStore`."""
        with self.translated():
            answer = await self.server.try_claim(wire)
        if isinstance(answer, Exception):
            raise self.fault_of(answer) from None

    def _leave_others(self, primary: Address) -> None:
        """Drop each connection to another server: the next call and the waiters' subscription go to the primary."""
        for connection in (self.reconnector.connection, self.listener.connection):
            if connection is not None and connection.usable and connection.address != primary:
                connection.abort("the sentinels name another primary")

    async def _dial(self, on_push: OnPush | None) -> RedisConnection:
        def check(info: Any) -> None:
            check_single(info)
            now_us = server_time(info)
            self.head.heard(now_us)
            self._clock.heard(now_us)

        return await dial(self._target, self._timeout, on_push, check)

    def fault_of(self, error: Any) -> Exception:
        """Return an error of this package that names the server; it says so if the server is one of a Cluster."""
        if any(starts(error, prefix) for prefix in _REDIRECTIONS):
            return no_single_server()
        return super().fault_of(error)
