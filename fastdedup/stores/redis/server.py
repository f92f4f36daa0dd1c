"""One Redis server that takes writes: sends batches as script calls, several in one write, and reads their replies.

The store of a single Redis and each node of a Cluster use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import hiredis

from ...errors import ConfigError
from ...kernel.codes import Code
from ...kernel.keyspace import found_in, pattern_of
from ...kernel.operations import ClaimOp, Op, Reply, Verdict, mark_resent
from ...kernel.owners import owner_field
from ...kernel.records import LONGEST_HEAD, Stored, read_record
from ...kernel.replies import TransitionReply
from ...kernel.terms import Mode, terms
from ...kernel.verbs import UNREPEATED, Verb
from ...model import Outcome
from ...tasks import patience
from ..base import Done, Page, Query, without_result
from .connection import RedisConnection
from .reconnect import Reconnector, policy_of
from .scripts import CallHead, pack
from .verbs import load_scripts

T = TypeVar("T")
Answer = Sequence[Reply] | Exception

_ELSEWHERE = Code.ELSEWHERE.value
_LATE = "Redis did not answer in time"
_ASKING = pack("ASKING")
_CONFIRM = 0.4
"""Share of the deadline in which the replicas must confirm. Redis ends a WAIT up to 0.1 s late."""
_UNTOUCHED = (
    *("NOSCRIPT", "MOVED", "ASK", "TRYAGAIN", "CROSSSLOT", "CLUSTERDOWN", "MASTERDOWN", "LOADING", "BUSY"),
    *("READONLY", "NOREPLICAS", "MISCONF", "OOM", "NOAUTH"),
)
"""Refusals of a whole script: no operation of it has taken effect."""
_INFO_MEMORY = pack("INFO", "memory")
_COUNT = pack("WAIT", 0, 0)
"""Returns at once how many replicas have confirmed so far."""
_PROBER = owner_field("probe")
"""The owner of a probe's claim, in every process: so a probe that meets the claim of another probe still writes."""
_PROBES = (terms(Mode.CLAIM, 10, 10, False), terms(Mode.CLAIM, 20, 20, False))
"""A fresh claim, and the same owner's again with a longer lease: all the commands that a claim, its renewal, its
completion and its release need. Milliseconds; no caller waits for their end."""
_RETRY_WAIT = 1.0
"""Seconds between two attempts to wait for missing replicas."""


_UNCONFIRMED = tuple(verb for verb in Verb if not verb.row.confirmed)


@dataclass(eq=False, repr=False, slots=True)
class ScriptCall:
    """The operations of one script call, and their answer.

    `places`: the positions of the operations in their batch, if it becomes several calls.
    `declared`: the call names its keys as keys; False for keys of many slots of a Cluster's node.
    `answer`: the replies, or the error of the server or the connection. `floor_us`: the floor that the call sent.
    """

    ops: Sequence[Op]
    places: Sequence[int] = ()
    declared: bool = field(default=True, kw_only=True)
    answer: Answer | None = field(default=None, kw_only=True)
    floor_us: int = field(default=0, init=False)


class RedisServer:
    """Sends script calls to one server.

    Args:
        timeout: seconds, the deadline of an operation.
        replicas: how many replicas must confirm each write; a write with fewer confirmations is marked as short.
        head: the numbers that every call sends; one object for all servers of a store.
    """

    redirect: Callable[[Sequence[Op], Sequence[Reply]], Sequence[Reply]] | None = None
    """Set if `begin` sends keys of many slots of a Cluster's node in one call: returns the replies, even if some are
    ELSEWHERE."""

    def __init__(self, reconnector: Reconnector, *, timeout: float, replicas: int, head: CallHead) -> None:
        self._reconnector = reconnector
        self._timeout = timeout
        self._scripts = load_scripts()
        self._replicas = replicas
        self.head = head
        # Mutable: whether replicas are missing, and when to wait for them again, in the loop's time.
        self._missing = False
        self._wait_at = 0.0
        self._wait = pack("WAIT", replicas, max(1, round(timeout * _CONFIRM * 1000))) if replicas else b""

    def begin(self, verb: Verb, ops: Sequence[Op], done: Done) -> bool:
        """Send a batch over the open connection (see `DirectStore`); the main path of every claim.

        Any answer but a script's replies makes the engine use `execute`.
        """
        connection = self._reconnector.connection
        if connection is None or verb in UNREPEATED:
            return False
        if self._wait:
            return self._begin_confirmed(verb, ops, done)
        script, head, redirect = self._scripts[verb], self.head, self.redirect
        floor_us = head.latest_us
        head.latest_us = floor_us + 1  # like `next_floor`; saves a call for every batch

        def on_reply(reply: Any) -> None:
            if type(reply) is not list:
                self._not_read(ops, reply)
                done(None)
                return
            try:
                answers = script.read(ops, reply, floor_us)
                head.saw(reply, answers)
                if redirect is not None and _ELSEWHERE in reply:  # also a position may have this value
                    answers = redirect(ops, answers)
            except Exception:  # noqa: BLE001 -- `execute` gets the same error and gives it to the callers
                done(None)
                return
            done(answers)

        command = script.command(ops, floor_us, head.max_record, declared=redirect is None)
        connection.call(command, on_reply)
        return True

    def _begin_confirmed(self, verb: Verb, ops: Sequence[Op], done: Done) -> bool:
        redirect = self.redirect
        call = ScriptCall(ops, declared=redirect is None)

        def on_done() -> None:
            answer = call.answer
            if answer is None or isinstance(answer, Exception):
                done(None)
            else:
                done(answer if redirect is None else redirect(ops, answer))

        return self.begin_calls(verb, [call], on_done)

    def begin_calls(self, verb: Verb, calls: Sequence[ScriptCall], done: Callable[[], None]) -> bool:
        """Send calls over the open connection; `done` is called, later, when each call has its answer.

        Returns False if nothing was sent, because no connection is open or because the verb must not be repeated.
        """
        connection = self._reconnector.connection
        if connection is None or verb in UNREPEATED:
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
        """Send calls in one write, and set the answer of each call.

        When the connection breaks, the calls are sent once more: every operation names its owner, so a repeated
        operation gets the same answer as the first time. Those of `UNREPEATED` name no owner and are not repeated.

        Args:
            verb: the verb of all calls.
            calls: each gets its answer set.
            asking: the slot of the calls is still moving to this server (ASK).
            guest: the calls are not of this server's own engine: when they are late, the connection is not dropped,
                because that engine uses it.
        """
        try:
            await self._send(verb, calls, asking, guest)
            broken = [call for call in calls if isinstance(call.answer, ConnectionError)]
            if broken and verb not in UNREPEATED:
                await self._send(verb, broken, asking, guest)
        except Exception as error:  # noqa: BLE001 -- given to the callers of these operations
            for call in calls:
                if call.answer is None:
                    call.answer = error

    def confirmation(self, verb: Verb) -> bytes:
        """Return the WAIT command to send after a batch, or b"".

        WAIT blocks its connection. While replicas are missing, only one batch in a second waits for them: if every
        batch waited, all batches would miss their deadline.
        """
        if not self._wait or verb in _UNCONFIRMED:
            return b""
        if self._missing:
            now = asyncio.get_running_loop().time()
            if now < self._wait_at:
                return _COUNT
            self._wait_at = now + _RETRY_WAIT
        return self._wait

    def confirmed(self, reply: Any) -> bool:
        """True if the reply of a WAIT says that enough replicas have the writes before it."""
        enough = type(reply) is int and reply >= self._replicas
        if not isinstance(reply, ConnectionError):
            self._missing = not enough
        return enough

    def abandon(self) -> None:
        """Drop the connection: every reply after a late reply is late as well."""
        self._reconnector.abort(_LATE)

    async def try_claim(self, key: bytes) -> Answer:
        """Return the server's answer to the commands of a claim, for a key that is free again at once.

        A simpler write is not enough: a server that refuses scripts, or a command in them, would accept it.

        Raises:
            Exception: the server did not answer within the timeout; for `translate`. An error of the server is
                returned.
        """
        call = ScriptCall([ClaimOp(key, each, _PROBER, None) for each in _PROBES])
        async with asyncio.timeout(await patience(self._timeout)):
            await self.deliver(Verb.CLAIM, [call])
        assert call.answer is not None
        return call.answer

    async def eviction_policy(self) -> str | None:
        """Return the server's maxmemory-policy; None if the server does not say.

        Raises:
            Exception: the server cannot be reached, or did not answer within the timeout; for `translate`.
        """
        return policy_of(await self._asked(lambda connection: connection.send(_INFO_MEMORY)))

    async def page(self, query: Query, cursor: str, count: int) -> Page:
        """Return a page of the records that this server holds. Errors: see `eviction_policy` and `read_page`."""
        return await self._asked(lambda connection: read_page(connection, query, cursor, count))

    async def _asked(self, ask: Callable[[RedisConnection], Awaitable[T]]) -> T:
        async with asyncio.timeout(self._timeout) as deadline:
            connection = await self._reconnector.connected()
            try:
                return await ask(connection)
            except asyncio.CancelledError:
                if deadline.expired():  # not if its caller gives up: all callers share the connection
                    connection.abort(_LATE)
                raise

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
            # The deadline passed before the reply came. The replies after it are late too, so all are dropped.
            for call in calls:
                mark_resent(call.ops)
            if not guest:
                connection.abort(_LATE)
            raise

    def _pack(
        self, verb: Verb, calls: Sequence[ScriptCall], asking: bool, *, with_text: bool = False
    ) -> list[bytes]:
        script, max_record = self._scripts[verb], self.head.max_record
        commands = []
        for call in calls:
            if asking:
                commands.append(_ASKING)
            call.floor_us = floor_us = self.head.next_floor()
            ops, declared = call.ops, call.declared
            commands.append(script.command(ops, floor_us, max_record, declared=declared, with_text=with_text))
        if wait := self.confirmation(verb):
            commands.append(wait)
        return commands

    def _take(self, verb: Verb, calls: Sequence[ScriptCall], replies: list[Any], asking: bool) -> None:
        waited = self._wait and verb not in _UNCONFIRMED
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
        except Exception as error:  # noqa: BLE001 -- given to the callers of these operations
            mark_resent(call.ops)
            return error
        return answers

    def _not_read(self, ops: Sequence[Op], reply: Any) -> Exception:
        """Return the error that the server sent instead of a script's reply."""
        if not (isinstance(reply, Exception) and is_untouched(reply)):
            mark_resent(ops)
        self._mind(reply)
        return reply if isinstance(reply, Exception) else hiredis.ProtocolError(f"not a list: {reply!r}")

    def _mind(self, reply: Any) -> None:
        """Leave the server if it has become a replica: a new connection may find the new primary."""
        connection = self._reconnector.connection
        if connection is not None and (starts(reply, "READONLY") or starts(reply, "MASTERDOWN")):
            # Later, because further replies that came together with this one are still to be read.
            asyncio.get_running_loop().call_soon(connection.abort, "Redis has become a replica")


def starts(answer: Any, prefix: str) -> bool:
    """True for an error of the server with this prefix, also if a script raised it (Redis 6.2 wraps it)."""
    return type(answer) is hiredis.ReplyError and (
        str(answer).startswith(prefix) or f": -{prefix} " in str(answer)
    )


def is_untouched(answer: Exception) -> bool:
    """True for an error of a server that has not begun to run the script."""
    return any(starts(answer, prefix) for prefix in _UNTOUCHED) or _forbids_call(answer)


def _forbids_call(answer: Any) -> bool:
    """True if the ACL refused the call itself; the refusal of a command inside a script has other words."""
    text = str(answer) if type(answer) is hiredis.ReplyError else ""
    return text.startswith("NOPERM ") and "script" not in text


def refuses_keys(answer: Any) -> bool:
    """True if the ACL refused a whole call for one of the keys that it declares; other keys may be allowed."""
    return _forbids_call(answer) and "permissions to access" in str(answer) and "key" in str(answer)


def marked_short(replies: Sequence[Reply | None]) -> list[Any]:
    """Return the replies. Each that took effect is marked as short: too few replicas have confirmed it.

    A transition that took effect before (ALREADY) is marked too.
    """
    for reply in replies:
        if type(reply) is Verdict:
            reply.underreplicated = reply.outcome is Outcome.ACQUIRED
        elif type(reply) is TransitionReply:
            reply.underreplicated = reply.code in (Code.OK, Code.ALREADY)
    return [Code.UNCONFIRMED if reply is Code.OK else reply for reply in replies]


# A page of a server's records: SCAN, then the head of each record that fits, in two round trips

_MOST = 2**64 - 1
_DIGITS = len(str(_MOST))


async def read_page(connection: RedisConnection, query: Query, cursor: str, count: int) -> Page:
    """Return a page of the records that this server holds; see `AdminStore`.

    Raises:
        Exception: an error of the connection or of the server, for `translate`.
        ConfigError: the cursor is not a number.
    """
    if cursor and not (
        len(cursor) <= _DIGITS and cursor.isascii() and cursor.isdigit() and int(cursor) <= _MOST
    ):
        raise ConfigError("the cursor is not one of this store: begin without one")
    pattern = pattern_of(query.namespace, query.kinds, query.prefix)
    reply = answered(await connection.send(pack("SCAN", cursor or "0", "MATCH", pattern, "COUNT", count)))
    following, wires = reply
    fitting = [wire for wire in wires if found_in(wire, query.namespace, query.kinds, query.prefix)]
    commands = [pack("TIME")]
    for wire in fitting:
        commands += [pack("GETRANGE", wire, 0, LONGEST_HEAD - 1), pack("PTTL", wire)]
    replies = await connection.send_many(b"".join(commands), len(commands))
    seconds, micros = answered(replies[0])
    now_us = int(seconds) * 1_000_000 + int(micros)
    found = []
    for wire, head, ttl_ms in zip(fitting, replies[1::2], replies[2::2], strict=True):
        # An error means a list, a hash, or a key that has moved to another node: it is not a record here.
        if type(head) is bytes and type(ttl_ms) is int:
            record = read_record(head, -(-now_us // 1000), ttl_ms)
            if isinstance(record, Stored):
                found.append((wire, without_result(record)))
    return Page(found, "" if following == b"0" else following.decode(), count, now_us)


def answered(reply: Any) -> Any:
    """Return the reply; if it is an error, raise it."""
    if isinstance(reply, hiredis.ReplyError):
        raise reply
    return reply
