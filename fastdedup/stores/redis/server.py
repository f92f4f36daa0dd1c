"""One primary server: batches go there as script calls, several in one write, and come back judged.

This is what a single Redis and a Cluster's node have in common.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import hiredis

from ...model import Outcome
from ...protocol.operations import Code, Moved, Op, Reply, Verb, Verdict, mark_unsure
from .packing import pack, pack_parts
from .reconnect import Reconnector
from .scripts import load_scripts

Answer = Sequence[Reply] | Exception

_LATE = "Redis did not answer in time"
_ASKING = pack("ASKING")
_CONFIRM = 0.4
"""Share of the deadline that the replicas have to confirm. Redis ends a WAIT up to 0.1 s late."""
_UNTOUCHED = (
    *("NOSCRIPT", "MOVED", "ASK", "TRYAGAIN", "CROSSSLOT", "CLUSTERDOWN", "MASTERDOWN", "LOADING", "BUSY"),
    *("READONLY", "NOREPLICAS", "MISCONF", "OOM", "NOAUTH"),
)
"""Refusals that hold for a script as a whole: no operation of it has taken effect."""
_COUNT = pack("WAIT", 0, 0)
"""Waits for nobody, and says how many have confirmed so far."""
_PATIENCE = 1.0
"""Seconds between attempts to wait for replicas that are missing."""


class ScriptCall:
    """Operations of one verb that one script call takes, and what came of them.

    `answer` is their replies, or the error of the server or the connection.
    """

    __slots__ = ("answer", "ops")

    def __init__(self, ops: Sequence[Op]) -> None:
        self.ops = ops
        self.answer: Answer | None = None


class RedisServer:
    """Sends parcels to one server.

    Args:
        timeout: seconds, the deadline of an operation.
        replicas: that shall confirm each write; a reply that too few confirmed is marked.
    """

    def __init__(self, line: Reconnector, *, timeout: float, replicas: int) -> None:
        self._line = line
        self._timeout = timeout
        self._scripts = load_scripts()
        self._replicas = replicas
        # Mutable: whether replicas are missing, and when they are waited for again, in the loop's time.
        self._missing = False
        self._wait_at = 0.0
        self._wait = pack("WAIT", replicas, max(1, round(timeout * _CONFIRM * 1000))) if replicas else b""

    async def deliver(
        self, verb: Verb, parcels: Sequence[ScriptCall], *, asking: bool = False, guest: bool = False
    ) -> None:
        """Send parcels in one write; afterwards each has its answer.

        Sent again once when the connection breaks: every operation names its owner, so repeating
        one that took effect is answered as the first time. FORGET names none: repeated, it might
        remove the record of the next owner.

        Args:
            verb: of all of them.
            parcels: each gets its answer set.
            asking: this server is only taking over their slot.
            guest: they are here on their way elsewhere: when they are late, the connection is left to
                those whose server this is.
        """
        try:
            await self._send(verb, parcels, asking, guest)
            broken = [parcel for parcel in parcels if isinstance(parcel.answer, ConnectionError)]
            if broken and verb is not Verb.FORGET:
                await self._send(verb, broken, asking, guest)
        except Exception as error:  # noqa: BLE001 -- handed to those whom it concerns
            for parcel in parcels:
                if parcel.answer is None:
                    parcel.answer = error

    def begin(self, verb: Verb, parcels: Sequence[ScriptCall], done: Callable[[], None]) -> bool:
        """Send parcels over the connection that stands; `done` is called, later, when each has its answer.

        False: nothing was sent, as there is no connection, or what to send may not be repeated.
        """
        link = self._line.link
        if link is None or verb is Verb.FORGET:
            return False

        def on_replies(replies: list[Any]) -> None:
            self._take(verb, parcels, replies, False)
            done()

        commands = self._pack(verb, ("EVALSHA", self._scripts[verb].sha), parcels, False)
        link.call_many(b"".join(commands), len(commands), on_replies)
        return True

    def confirmation(self, verb: Verb) -> bytes:
        """Return the WAIT to send behind a batch, or nothing.

        It holds up its connection. So where replicas are missing not every batch waits for them in turn,
        which would take them all past the deadline: one does, now and then.
        """
        if not self._wait or verb is Verb.READ:
            return b""
        if self._missing:
            now = asyncio.get_running_loop().time()
            if now < self._wait_at:
                return _COUNT
            self._wait_at = now + _PATIENCE
        return self._wait

    def confirmed(self, reply: Any) -> bool:
        """True where a WAIT's reply says that enough replicas have what was written before it."""
        enough = type(reply) is int and reply >= self._replicas
        if not isinstance(reply, ConnectionError):
            self._missing = not enough
        return enough

    def abandon(self) -> None:
        """Drop the connection: the replies behind one that is late are as late."""
        self._line.abort(_LATE)

    async def try_write(self, key: bytes) -> Any:
        """Return the server's answer to a write that changes nothing, an error of its own included.

        Raises:
            Exception: it did not answer within the timeout, or cannot be reached; for `translate`.
        """
        async with asyncio.timeout(self._timeout):
            link = self._line.link or await self._line.connected()
            try:
                reply = await link.send(pack("SETRANGE", key, 0, b""))
            except asyncio.CancelledError:
                link.abort(_LATE)
                raise
        self._mind(reply)
        return reply

    async def _send(self, verb: Verb, parcels: Sequence[ScriptCall], asking: bool, guest: bool) -> None:
        script = self._scripts[verb]
        commands = self._pack(verb, ("EVALSHA", script.sha), parcels, asking)
        self._take(verb, parcels, await self._exchange(commands, parcels, guest), asking)
        unknown = [parcel for parcel in parcels if starts(parcel.answer, "NOSCRIPT")]
        if unknown:
            commands = self._pack(verb, ("EVAL", script.text), unknown, asking)
            self._take(verb, unknown, await self._exchange(commands, unknown, guest), asking)

    async def _exchange(
        self, commands: Sequence[bytes], parcels: Sequence[ScriptCall], guest: bool
    ) -> list[Any]:
        link = self._line.link or await self._line.connected()
        try:
            return await link.send_many(b"".join(commands), len(commands))
        except asyncio.CancelledError:
            # The deadline passed with a reply outstanding. The replies behind it are as late: drop all.
            if not guest:
                link.abort(_LATE)
            for parcel in parcels:
                mark_unsure(parcel.ops)
            raise

    def _pack(
        self, verb: Verb, head: tuple[str, str], parcels: Sequence[ScriptCall], asking: bool
    ) -> list[bytes]:
        script = self._scripts[verb]
        commands = []
        for parcel in parcels:
            if asking:
                commands.append(_ASKING)
            ops = parcel.ops
            commands.append(pack_parts([*head, len(ops), *[op.wire for op in ops], *script.pack(ops)]))
        if wait := self.confirmation(verb):
            commands.append(wait)
        return commands

    def _take(self, verb: Verb, parcels: Sequence[ScriptCall], replies: list[Any], asking: bool) -> None:
        waited = self._wait and verb is not Verb.READ
        short = bool(waited) and not self.confirmed(replies.pop())
        script = self._scripts[verb]
        for parcel, reply in zip(parcels, replies[1::2] if asking else replies, strict=True):
            parcel.answer = answer = judge(script.read, parcel.ops, reply)
            if isinstance(answer, Exception) and not is_untouched(answer):
                mark_unsure(parcel.ops)
            if short and not isinstance(answer, Exception):
                parcel.answer = marked_short(answer)
            elif answer is reply:
                self._mind(reply)

    def _mind(self, reply: Any) -> None:
        """Leave a primary that has become a replica: whoever connects anew may find the next one."""
        if starts(reply, "READONLY") and (link := self._line.link) is not None:
            # Later: the replies that came with this one belong to others.
            asyncio.get_running_loop().call_soon(link.abort, "Redis has become a replica")


def judge(
    read: Callable[[Sequence[Op], list[Any]], Sequence[Reply]], ops: Sequence[Op], reply: Any
) -> Answer:
    """Return what a script's reply means. An error stays one."""
    if type(reply) is list:
        try:
            return read(ops, reply)
        except Exception as error:  # noqa: BLE001 -- handed to those whom it concerns
            return error
    return reply if isinstance(reply, Exception) else hiredis.ProtocolError(f"no list: {reply!r}")


def starts(answer: Any, prefix: str) -> bool:
    """True for an error of the server with this prefix, also from within a script (Redis 6.2 wraps it)."""
    return type(answer) is hiredis.ReplyError and (
        str(answer).startswith(prefix) or f": -{prefix} " in str(answer)
    )


def is_untouched(answer: Exception) -> bool:
    """True for an error of a server that has not begun with the script."""
    return any(starts(answer, prefix) for prefix in _UNTOUCHED)


def marked_short(replies: Sequence[Reply | None]) -> list[Any]:
    """Mark all that took effect, and return it: fewer replicas than wanted have confirmed it."""
    for reply in replies:
        if type(reply) is Verdict:
            reply.short = reply.outcome is Outcome.ACQUIRED
        elif type(reply) is Moved:
            reply.short = reply.code is Code.OK
    return [Code.UNCONFIRMED if reply is Code.OK else reply for reply in replies]
