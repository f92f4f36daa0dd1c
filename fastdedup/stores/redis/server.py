"""One server that takes writes: batches go there as script calls, several in one write, and come back read.

This is what a single Redis and a Cluster's node have in common.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import hiredis

from ...model import Outcome
from ...protocol.operations import Code, Moved, Op, Reply, Verb, Verdict, mark_unsure
from ..base import Done
from .reconnect import Reconnector
from .scripts import CallHead, pack
from .verbs import load_scripts

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

    `answer` is their replies, or the error of the server or the connection; `floor_us` what the call carried.
    """

    __slots__ = ("answer", "floor_us", "ops")

    def __init__(self, ops: Sequence[Op]) -> None:
        self.ops = ops
        self.floor_us = 0
        self.answer: Answer | None = None


class RedisServer:
    """Sends script calls to one server.

    Args:
        timeout: seconds, the deadline of an operation.
        replicas: that shall confirm each write; a reply that too few confirmed is marked.
        head: what every call of the store carries; one for all of its servers.
    """

    def __init__(self, reconnector: Reconnector, *, timeout: float, replicas: int, head: CallHead) -> None:
        self._reconnector = reconnector
        self._timeout = timeout
        self._scripts = load_scripts()
        self._replicas = replicas
        self.head = head
        # Mutable: whether replicas are missing, and when they are waited for again, in the loop's time.
        self._missing = False
        self._wait_at = 0.0
        self._wait = pack("WAIT", replicas, max(1, round(timeout * _CONFIRM * 1000))) if replicas else b""

    def begin(self, verb: Verb, ops: Sequence[Op], done: Done) -> bool:
        """Send a batch over the connection, if it stands: see `DirectStore`. The main path of every claim.

        Anything but a plain answer goes the long way.
        """
        connection = self._reconnector.connection
        if connection is None or verb is Verb.FORGET:
            return False
        if self._wait:
            return self._begin_confirmed(verb, ops, done)
        script, head = self._scripts[verb], self.head
        floor_us = head.latest_us
        head.latest_us = floor_us + 1  # as `next_floor`; a call less for every batch

        def on_reply(reply: Any) -> None:
            if type(reply) is not list:
                self._not_read(ops, reply)
                done(None)
                return
            try:
                answers = script.read(ops, reply, floor_us)
                head.saw(reply, answers)
            except Exception:  # noqa: BLE001 -- the long way meets it again, and tells those who wait
                done(None)
                return
            done(answers)

        connection.call(script.command(ops, floor_us, head.max_record), on_reply)
        return True

    def _begin_confirmed(self, verb: Verb, ops: Sequence[Op], done: Done) -> bool:
        call = ScriptCall(ops)

        def on_done() -> None:
            answer = call.answer
            done(None if isinstance(answer, Exception) else answer)

        return self.begin_calls(verb, [call], on_done)

    def begin_calls(self, verb: Verb, calls: Sequence[ScriptCall], done: Callable[[], None]) -> bool:
        """Send calls over the connection that stands; `done` is called, later, when each has its answer.

        False: nothing was sent, as there is no connection, or what to send may not be repeated.
        """
        connection = self._reconnector.connection
        if connection is None or verb is Verb.FORGET:
            return False

        def on_replies(replies: list[Any]) -> None:
            self._take(verb, calls, replies, False)
            done()

        commands = self._pack(verb, calls, False)
        connection.call_many(b"".join(commands), len(commands), on_replies)
        return True

    async def deliver(
        self, verb: Verb, calls: Sequence[ScriptCall], *, asking: bool = False, guest: bool = False
    ) -> None:
        """Send calls in one write; afterwards each has its answer.

        Sent again once when the connection breaks: every operation names its owner, so repeating
        one that took effect is answered as the first time. FORGET names none: repeated, it might
        remove the record of the next owner.

        Args:
            verb: of all of them.
            calls: each gets its answer set.
            asking: this server is only taking over their slot.
            guest: they are here on their way elsewhere: when they are late, the connection is left to
                those whose server this is.
        """
        try:
            await self._send(verb, calls, asking, guest)
            broken = [call for call in calls if isinstance(call.answer, ConnectionError)]
            if broken and verb is not Verb.FORGET:
                await self._send(verb, broken, asking, guest)
        except Exception as error:  # noqa: BLE001 -- handed to those whom it concerns
            for call in calls:
                if call.answer is None:
                    call.answer = error

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
        self._reconnector.abort(_LATE)

    async def try_write(self, key: bytes) -> Any:
        """Return the server's answer to a write that changes nothing, an error of its own included.

        Raises:
            Exception: it did not answer within the timeout, or cannot be reached; for `translate`.
        """
        async with asyncio.timeout(self._timeout):
            connection = await self._reconnector.connected()
            try:
                reply = await connection.send(pack("SETRANGE", key, 0, b""))
            except asyncio.CancelledError:
                connection.abort(_LATE)
                raise
        self._mind(reply)
        return reply

    async def _send(self, verb: Verb, calls: Sequence[ScriptCall], asking: bool, guest: bool) -> None:
        commands = self._pack(verb, calls, asking)
        self._take(verb, calls, await self._exchange(verb, calls, commands, guest), asking)
        unknown = [call for call in calls if starts(call.answer, "NOSCRIPT")]
        if unknown:
            commands = self._pack(verb, unknown, asking, with_text=True)
            self._take(verb, unknown, await self._exchange(verb, unknown, commands, guest), asking)

    async def _exchange(
        self, verb: Verb, calls: Sequence[ScriptCall], commands: Sequence[bytes], guest: bool
    ) -> list[Any]:
        connection = await self._reconnector.connected()
        try:
            return await connection.send_many(b"".join(commands), len(commands))
        except asyncio.CancelledError:
            # The deadline passed with a reply outstanding. The replies behind it are as late: drop all.
            for call in calls:
                mark_unsure(call.ops)
            if not guest:
                connection.abort(_LATE)
            raise

    def _pack(
        self, verb: Verb, calls: Sequence[ScriptCall], asking: bool, *, with_text: bool = False
    ) -> list[bytes]:
        script = self._scripts[verb]
        command = script.command_with_text if with_text else script.command
        commands = []
        for call in calls:
            if asking:
                commands.append(_ASKING)
            call.floor_us = self.head.next_floor()
            commands.append(command(call.ops, call.floor_us, self.head.max_record))
        if wait := self.confirmation(verb):
            commands.append(wait)
        return commands

    def _take(self, verb: Verb, calls: Sequence[ScriptCall], replies: list[Any], asking: bool) -> None:
        waited = self._wait and verb is not Verb.READ
        short = bool(waited) and not self.confirmed(replies.pop())
        for call, reply in zip(calls, replies[1::2] if asking else replies, strict=True):
            call.answer = answer = self._read(verb, call, reply)
            if short and not isinstance(answer, Exception):
                call.answer = marked_short(answer)

    def _read(self, verb: Verb, call: ScriptCall, reply: Any) -> Answer:
        if type(reply) is not list:
            return self._not_read(call.ops, reply)
        try:
            answers = self._scripts[verb].read(call.ops, reply, call.floor_us)
            self.head.saw(reply, answers)
        except Exception as error:  # noqa: BLE001 -- handed to those whom it concerns
            mark_unsure(call.ops)
            return error
        return answers

    def _not_read(self, ops: Sequence[Op], reply: Any) -> Exception:
        """Return the error that came in place of a script's reply."""
        if not (isinstance(reply, Exception) and is_untouched(reply)):
            mark_unsure(ops)
        self._mind(reply)
        return reply if isinstance(reply, Exception) else hiredis.ProtocolError(f"not a list: {reply!r}")

    def _mind(self, reply: Any) -> None:
        """Leave a server that has become a replica: whoever connects anew may find the next one."""
        connection = self._reconnector.connection
        if connection is not None and starts(reply, "READONLY"):
            # Later: the replies that came with this one belong to others.
            asyncio.get_running_loop().call_soon(connection.abort, "Redis has become a replica")


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
