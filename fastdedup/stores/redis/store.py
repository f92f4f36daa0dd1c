"""The Redis store: one connection, a batch is one EVALSHA."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import hiredis

from ...errors import ConfigError, DedupError, UnavailableError
from ..base import Done, Op, Reply, Verb
from .errors import LoginRefusedError, translate
from .link import Link, pack, stop
from .listener import Listener
from .scripts import LoadedScript, load_scripts
from .url import Target

OLDEST = (6, 2)

OnPush = Callable[[Any], None]
Connect = Callable[[OnPush | None], Coroutine[Any, Any, Link]]


class RedisStore:
    """A single Redis (or Valkey) server. Guarantees: see `Store`.

    Args:
        timeout: seconds for connecting, and for one command of the handshake.
        connect: makes the connections in place of the URL; for tests, and topologies to come.
    """

    def __init__(self, url: str, *, timeout: float, connect: Connect | None = None) -> None:
        self._target = Target(url)
        self._timeout = timeout
        self._scripts = load_scripts()
        self._connect = self._connect_by_url if connect is None else connect
        self._listener = Listener(self._connect, timeout)
        # Mutable: the one connection, and the attempt to make it that concurrent batches share.
        self._link: Link | None = None
        self._connecting: asyncio.Task[Link] | None = None
        self._closed = False

    async def open(self) -> None:
        """Connect once, to find mistakes early. A server that is down now is the policy's matter."""
        try:
            async with asyncio.timeout(self._timeout * 4):
                await self._connected()
        except Exception as error:  # noqa: BLE001 -- translated, or raised again
            fault = self._fault(error)
            if isinstance(fault, LoginRefusedError):
                raise ConfigError(str(fault)) from None
            if not isinstance(fault, UnavailableError):
                raise fault from None

    async def aclose(self) -> None:
        """Close the connections."""
        self._closed = True
        if self._connecting is not None:
            await stop(self._connecting)
        await self._listener.aclose()
        if self._link is not None:
            await self._link.aclose()
            self._link = None

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        """Send one EVALSHA for the whole batch.

        Sent again once when the connection breaks: every operation names its owner, so repeating
        one that took effect is answered as the first time.
        """
        script = self._scripts[verb]
        keys_and_args = [len(ops), *[op.wire for op in ops], *script.pack(ops)]
        try:
            try:
                reply = await self._evaluate(script, keys_and_args)
            except ConnectionError:
                if verb is Verb.FORGET:
                    raise  # names no owner: sent again it might remove the record of the next one
                reply = await self._evaluate(script, keys_and_args)
        except Exception as error:  # noqa: BLE001 -- translated, or raised again
            raise self._fault(error) from None
        return script.read(ops, reply)

    def begin(self, verb: Verb, ops: Sequence[Op], done: Done) -> bool:
        """Send a batch over the connection, if it stands. Anything but a plain answer goes the long way."""
        link = self._link
        if link is None or not link.usable or verb is Verb.FORGET:
            return False
        script = self._scripts[verb]

        def on_reply(reply: Any) -> None:
            try:
                replies = script.read(ops, reply) if type(reply) is list else None
            except Exception:  # noqa: BLE001 -- the long way meets it again, and tells those who wait
                replies = None
            done(replies)

        wires = [op.wire for op in ops]
        link.call(pack("EVALSHA", script.sha, len(ops), *wires, *script.pack(ops)), on_reply)
        return True

    def abandon(self) -> None:
        """Drop the connection: the replies behind one that is late are as late."""
        if self._link is not None:
            self._link.abort("Redis did not answer in time")

    async def listen(self, on_freed: Callable[[bytes | None], None]) -> None:
        """Subscribe, once, over a connection of its own."""
        try:
            async with asyncio.timeout(self._timeout):
                await self._listener.start(on_freed)
        except Exception as error:  # noqa: BLE001 -- translated, or raised again
            raise self._fault(error) from None

    async def _evaluate(self, script: LoadedScript, keys_and_args: list[Any]) -> list[Any]:
        link = self._link
        if link is None or not link.usable:
            link = await self._connected()
        try:
            reply = await link.send(pack("EVALSHA", script.sha, *keys_and_args))
            if type(reply) is hiredis.ReplyError and str(reply).startswith("NOSCRIPT"):
                reply = await link.send(pack("EVAL", script.text, *keys_and_args))
        except asyncio.CancelledError:
            # The deadline passed with a reply outstanding. The replies behind it are as late: drop all.
            link.abort("Redis did not answer in time")
            raise
        if type(reply) is not list:
            raise reply if isinstance(reply, Exception) else hiredis.ProtocolError(f"no list: {reply!r}")
        return reply

    async def _connected(self) -> Link:
        """Return the connection, making it if need be; concurrent callers share one attempt."""
        if self._closed:
            raise ConnectionError("the store is closed")
        if self._link is not None and self._link.usable:
            return self._link
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect(None), name="fastdedup-connect")
            self._connecting.add_done_callback(self._connect_done)
        return await asyncio.shield(self._connecting)

    def _connect_done(self, task: asyncio.Task[Link]) -> None:
        self._connecting = None
        if not task.cancelled() and task.exception() is None:
            self._link = task.result()
            if self._closed:
                self._link.abort("the store is closed")

    async def _connect_by_url(self, on_push: OnPush | None) -> Link:
        connection = self._target.connection(self._timeout)
        try:
            await connection.connect()  # type: ignore[no-untyped-call] # redis-py leaves it untyped
        except BaseException:
            # What fails half-way, in a TLS handshake say, leaves a socket open otherwise.
            with contextlib.suppress(Exception):
                await connection.disconnect(nowait=True)
            raise
        link = Link(connection, on_push)
        try:
            async with asyncio.timeout(self._timeout):
                check_version(await link.send(pack("INFO", "server")))
                # So that the first batches need not be sent twice. A login that may not: EVAL does it.
                loading = [
                    link.send(pack("SCRIPT", "LOAD", script.text)) for script in self._scripts.values()
                ]
                await asyncio.gather(*loading)
        except BaseException:
            link.abort("not usable")
            raise
        return link

    def _fault(self, error: Exception) -> Exception:
        return error if isinstance(error, DedupError) else translate(error, self._target.name)


def check_version(info: Any) -> None:
    """Refuse a server that lacks what the scripts use.

    Raises:
        ConfigError: older than Redis 6.2.
    """
    if isinstance(info, hiredis.ReplyError):
        # A login or a server without INFO: the scripts themselves will tell.
        if str(info).startswith(("NOPERM", "ERR unknown command")):
            return
        raise info
    found = re.search(rb"redis_version:(\d+)\.(\d+)", info)
    if found and (version := (int(found[1]), int(found[2]))) < OLDEST:
        raise ConfigError(
            f"this Redis is version {version[0]}.{version[1]}; fastdedup needs "
            f"{OLDEST[0]}.{OLDEST[1]} or later (or Valkey)"
        )
