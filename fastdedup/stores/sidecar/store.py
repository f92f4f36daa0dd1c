"""The store of `sidecar://` URLs. It sends batches to the sidecar as `FD.RUN`, over `stores/redis`'s connections."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from time import monotonic_ns
from types import SimpleNamespace
from typing import Any, Final, Literal, NamedTuple, cast
from urllib.parse import unquote, urlsplit

import hiredis

from ...errors import ConfigError, DedupError, ResultTooLargeError, UnavailableError
from ...kernel.codes import Code
from ...kernel.operations import Op, ReleaseOp, Reply, SettleOp, Verdict, mark_resent
from ...kernel.replies import RefusedAlone
from ...kernel.verbs import UNREPEATED, Verb
from ...tasks import patience
from ..base import Done, Page, Query
from ..redis.connection import RedisConnection
from ..redis.listener import Connect, Listener, OnFreed
from ..redis.reconnect import OnPush, Reconnector
from ..redis.scripts import pack
from .answers import UNSURE, Fill, Present, read
from .wire import LONGEST_TURN, PROTOCOL, RunKind, outage_of, pack_run, runs_of, terms_of

_FORM = "sidecar:///run/fastdedup/fastdedup.sock"
LONGEST_PATH: Final = 107
"""Bytes of a Unix socket's path: Linux' sun_path has 108, with a zero at its end."""
_DEFAULT_FRAME = 1024 * 1024
_LATE = "it did not answer in time"


class SidecarStore:
    """A sidecar on this host. Guarantees: see `Store`.

    The answers are those of the sidecar's store. While that is unavailable, the sidecar's policy for the namespace
    answers (`degraded`) or raises. The policy of this process is asked only while the sidecar itself is unavailable.

    Args:
        timeout: seconds for connecting and for the handshake.
    """

    degrades: Literal[True] = True

    def __init__(self, url: str, *, timeout: float) -> None:
        self._path = path_of(url)
        self.name = f"the sidecar at {self._path}"
        self._timeout = timeout
        self._reconnector = Reconnector(self._dial)
        self._listener = SidecarListener(self._dial, timeout)
        # Mutable: how many bytes a command may have; the sidecar's last word.
        self._frame = _DEFAULT_FRAME
        # Mutable: whether the sidecar logs why a record is forgotten, or records are listed.
        self._takes_reasons = False
        # Mutable: whether the sidecar tells that an id may still be given back.
        self._tells_pending = False
        # Mutable: how far the clock of the sidecar's store is ahead of this process's monotonic one; 0 is unknown.
        self._ahead_us = 0

    @property
    def time_us(self) -> int:
        """The time of the sidecar's store: see `ClockedStore`."""
        return monotonic_ns() // 1000 + self._ahead_us if self._ahead_us else 0

    async def open(self) -> str:
        """Connect once, to find mistakes early. A sidecar that does not answer is an outage, not a mistake."""
        try:
            async with self._translated(self._timeout * 4):
                try:
                    await self._reconnector.connected()
                except PermissionError:
                    text = f"this user may not connect to {self.name}: add it to the socket's group"
                    raise ConfigError(text) from None
        except UnavailableError as error:
            return str(error)
        return ""

    async def aclose(self) -> None:
        """Close the connections."""
        await self._listener.aclose()
        await self._reconnector.aclose()

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        """Send the batch; each operation by itself if the sidecar refuses it, because of the namespace of one."""
        try:
            try:
                return await self._sent(verb, ops)
            except hiredis.ReplyError:
                if verb in UNREPEATED or len(ops) == 1:
                    raise
                return await self._one_by_one(verb, ops)
        except Exception as error:  # noqa: BLE001 -- translated, or raised again
            raise self._fault(error) from None

    def begin(self, verb: Verb, ops: Sequence[Op], done: Done) -> bool:
        """Send a batch over the open connection. Without one, or after any fault, the engine uses `execute`."""
        connection = self._reconnector.connection
        if connection is None or verb in UNREPEATED:
            return False
        calls = self._cut(verb, ops)
        if any(call.packed == b"" for call in calls):
            return False

        def on_replies(replies: list[Any]) -> None:
            try:
                done(self._answers(calls, replies))
            except Exception:  # noqa: BLE001 -- `execute` gets the same error and gives it to the callers
                done(None)

        connection.call_many(b"".join([call.packed for call in calls]), len(calls), on_replies)
        return True

    def abandon(self) -> None:
        """Drop the connection: all replies behind a late one are late as well."""
        self._reconnector.abort(_LATE)

    async def probe(self, wire: bytes) -> None:
        """Ask whether the sidecar answers. The sidecar's own breaker knows whether its store answers."""
        async with self._translated(self._timeout):
            await self._ask("PING")

    async def eviction_policy(self) -> str | None:
        """Return what the sidecar's store does when its memory is full; None if that is not known."""
        async with self._translated(self._timeout):
            reply = await self._ask("FD.EVICTION")
        return None if reply is None else str(reply.decode())

    async def page(self, query: Query, cursor: str, count: int) -> Page:
        """List some records of the sidecar's store: see `AdminStore`."""
        kinds = ",".join(kind.name.lower() for kind in query.kinds)
        async with self._translated(LONGEST_TURN + self._timeout * 4):
            # Over a connection of its own: until its turn comes, no reply could pass it.
            connection = await self._dial(None)  # it tells whether it takes reasons
            try:
                why = [query.reason] if query.reason and self._takes_reasons else []
                command = pack("FD.PAGE", query.namespace, kinds, query.prefix, cursor, count, *why)
                reply = await reply_to(connection, command)
            finally:
                connection.abort("the list has ended")
            following, seen, now_us, wires, records = reply[:5]  # a newer sidecar may say more
            return Page(
                list(zip(wires, read(records, len(wires)), strict=True)), following.decode(), seen, now_us
            )

    async def listen(self, on_freed: Callable[[bytes | None], None]) -> None:
        """Let the sidecar report freed keys, over a separate connection."""
        async with self._translated(self._timeout):
            await self._listener.start(on_freed)

    @asynccontextmanager
    async def _translated(self, seconds: float) -> AsyncIterator[None]:
        """Turn what goes wrong, or takes longer than `seconds`, into an error of this package."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except Exception as error:  # noqa: BLE001 -- translated, or raised again
            raise self._fault(error) from None

    async def _ask(self, *command: str | bytes | int) -> Any:
        """Return the reply to one command; raise it if it is an error."""
        return await reply_to(await self._reconnector.connected(), pack(*command))

    # Batches

    async def _sent(self, verb: Verb, ops: Sequence[Op]) -> list[Reply]:
        """Send a batch, and send it once more if the connection breaks.

        An operation names its owner, so a repeated operation gets the same answer as the first time. Those of
        `UNREPEATED` name no owner: they are repeated only if the sidecar says that it has executed nothing.
        """
        try:
            return await self._exchange(verb, ops)
        except ConnectionError as error:
            if verb in UNREPEATED and not isinstance(error, Leaving):
                raise
        return await self._exchange(verb, ops)

    async def _exchange(self, verb: Verb, ops: Sequence[Op]) -> list[Reply]:
        connection = await self._reconnector.connected()
        calls = self._cut(verb, ops)
        sent = [call for call in calls if call.packed]
        try:
            replies = (
                await connection.send_many(b"".join([call.packed for call in sent]), len(sent))
                if sent
                else []
            )
        except asyncio.CancelledError:
            connection.abort(_LATE)  # the replies behind this one are late as well
            mark_resent(ops)
            raise
        farewells = [farewell_in(reply) for reply in replies]
        if farewell := next(filter(None, farewells), None):
            connection.abort(str(farewell))
            if all(farewells):
                raise farewell
        return self._answers(calls, replies)

    async def _one_by_one(self, verb: Verb, ops: Sequence[Op]) -> list[Reply]:
        """Send a command for each operation: only those that the sidecar may not execute are refused."""
        replies: list[Reply] = []
        for answer in await asyncio.gather(*[self._sent(verb, [op]) for op in ops], return_exceptions=True):
            if isinstance(answer, hiredis.ReplyError):
                replies.append(cast(Reply, self._fault(answer)))
            elif isinstance(answer, BaseException):
                raise answer
            else:
                replies += answer
        return replies

    def _cut(self, verb: Verb, ops: Sequence[Op]) -> list[RunCall]:
        """Return the commands for a batch: nearly always one, more if it would be too large or has several runs."""
        calls: list[RunCall] = []
        for run, some in runs_of(verb, ops):
            calls += self._cut_run(run, some)
        return calls

    def _cut_run(self, run: RunKind, ops: Sequence[Op]) -> list[RunCall]:
        packed = pack_run(run, ops, reasons=self._takes_reasons, patience=self._tells_pending)
        if len(packed) <= self._frame:
            return [RunCall(ops, packed)]
        if len(ops) == 1:
            return [RunCall(ops, b"")]
        half = len(ops) // 2
        return self._cut_run(run, ops[:half]) + self._cut_run(run, ops[half:])

    def _answers(self, calls: Sequence[RunCall], replies: Sequence[Any]) -> list[Reply]:
        answers: list[Reply] = []
        came = iter(replies)
        try:
            for call in calls:
                if call.packed:
                    answers += answers_of(call, next(came))
                else:
                    answers.append(self._too_large(call.ops[0]))
        except Exception:
            mark_sent([call for call in calls if call.packed], replies)
            raise
        return answers

    def _too_large(self, op: Op) -> Reply:
        text = f"the operation takes more than the {self._frame} bytes that {self.name} accepts"
        return ResultTooLargeError(text) if isinstance(op, SettleOp) else RefusedAlone(text)

    # The connection

    async def _dial(self, on_push: OnPush | None) -> RedisConnection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(await patience(self._timeout)):
            transport, _ = await loop.create_unix_connection(asyncio.Protocol, self._path)
        # `RedisConnection` takes over the socket of a connected connection.
        connection = RedisConnection(
            cast(Any, SimpleNamespace(_reader=None, _writer=SimpleNamespace(transport=transport))), on_push
        )
        try:
            async with asyncio.timeout(await patience(self._timeout)):
                hello = await reply_to(connection, pack("FD.STORE", PROTOCOL))
            self._frame = int(hello[1])
            self._takes_reasons = len(hello) > 2  # version 0.1.0 tells no time, and takes none
            self._tells_pending = len(hello) > 3
            if len(hello) > 2 and hello[2]:
                self._ahead_us = int(hello[2]) - monotonic_ns() // 1000
        except BaseException as error:
            connection.abort("not usable")
            if isinstance(error, hiredis.ReplyError):  # it refuses the connection, and not a batch
                raise self._fault(error) from None
            raise
        return connection

    def _fault(self, error: Exception) -> Exception:
        if isinstance(error, DedupError):
            return error
        text = str(error)
        if isinstance(error, hiredis.ReplyError):
            if outage := outage_of(text):
                return UnavailableError(f"{self.name}: {outage}", retry_after=outage.retry_after)
            if text.startswith(("ERR unknown command", "ERR FD.RUN takes a verb")):
                return ConfigError(
                    f"{self._path} is no fastdedup sidecar, or an older one than its client: update it ({text})"
                )
            return ConfigError(f"{self.name} refuses: {text.removeprefix('ERR ')}")
        if isinstance(error, hiredis.ProtocolError | LookupError | TypeError | ValueError):
            return ConfigError(f"{self._path} is no fastdedup sidecar, its answer cannot be read: {error!r}")
        if isinstance(error, FileNotFoundError | ConnectionRefusedError):
            return UnavailableError(f"{self.name} is not running")
        if isinstance(error, OSError):
            return UnavailableError(f"{self.name}: {in_words(error)}")
        return error


async def reply_to(connection: RedisConnection, command: bytes) -> Any:
    """Return the reply to one packed command; raise it if it is an error."""
    reply = await connection.send(command)
    if isinstance(reply, Exception):
        raise reply
    return reply


_MOST_ANSWERS: Final = 3
"""For each operation at most: its answer, and what `take_extras` takes away."""


class RunCall(NamedTuple):
    """Operations of one run for one command; `packed` is empty if the command would be too large."""

    ops: Sequence[Op]
    packed: bytes


class Leaving(ConnectionError):
    """The sidecar closes the connection and has executed nothing of the batch; the text says why it closes."""


class SidecarListener(Listener):
    """Hears of freed keys from a sidecar, instead of from Redis.

    The sidecar says that it missed news, also when it loses its own subscription. Then it is asked if it listens.
    """

    def __init__(self, connect: Connect, timeout: float) -> None:
        super().__init__(connect, timeout)
        self._subscription = pack("FD.LISTEN")

    def _take(self, connection: RedisConnection, message: Any, on_freed: OnFreed) -> None:
        """Take a message that came without being asked for."""
        if isinstance(message, Exception):
            connection.abort(f"the sidecar does not listen: {message}")
        elif isinstance(message, list) and message[:1] == [b"freed"]:
            on_freed(message[1])
            if message[1] is None:
                connection.post(self._subscription)


def answers_of(call: RunCall, reply: Any) -> list[Reply]:
    """Return the answers in a reply to FD.RUN.

    Raises:
        ConnectionError: the batch was not executed, or may have been executed: it may be sent again.
        hiredis.ReplyError: the sidecar has refused the batch.
        hiredis.ProtocolError: the reply is not a sidecar's.
    """
    if farewell := farewell_in(reply):
        raise ConnectionError(str(farewell))
    if isinstance(reply, Exception):
        raise reply
    try:
        answers = read(reply, _MOST_ANSWERS * len(call.ops))
        if len(answers) > len(call.ops):
            take_extras(call.ops, answers)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise hiredis.ProtocolError(f"{error!r}") from None
    if len(answers) != len(call.ops):
        raise hiredis.ProtocolError(f"{len(answers)} answers to {len(call.ops)} operations")
    for place, op in enumerate(call.ops):
        if answers[place] is UNSURE:
            cast("ReleaseOp | SettleOp", op).resent, answers[place] = True, Code.LOST
    return answers


def take_extras(ops: Sequence[Op], answers: list[Any]) -> None:
    """Take away what stands behind the answers.

    That is how full a ledger is, whose caller is warned by it, and whose record a claim has met.
    """
    while len(answers) > len(ops):
        extra = answers.pop()
        if isinstance(extra, Fill):
            terms_of(ops[extra.place]).seen_fill = extra.entries
        elif isinstance(extra, Present) and type(answers[extra.place]) is Verdict:
            answers[extra.place].present = extra.owner
        else:
            raise ValueError(f"an answer too many, a {type(extra).__name__}")


def mark_sent(calls: Sequence[RunCall], replies: Sequence[Any]) -> None:
    """Mark the operations of commands that the sidecar may have executed: the whole batch may be sent again."""
    for call, reply in zip(calls, replies, strict=True):
        if farewell_in(reply) is None:
            mark_resent(call.ops)


def farewell_in(reply: Any) -> Leaving | None:
    """Return the sidecar's reason if it refuses further commands over this connection, otherwise None.

    It never replies UNAVAILABLE to an FD.RUN that it has begun: an outage is the answer to single operations.
    """
    if isinstance(reply, hiredis.ReplyError) and str(reply).startswith("UNAVAILABLE"):
        return Leaving(str(outage_of(str(reply))))
    return None


def path_of(url: str) -> str:
    """Return the socket's path in a sidecar:// URL.

    Raises:
        ConfigError: the URL cannot be used; the message shows its form.
    """
    parts = urlsplit(url)
    path = unquote(parts.path)
    if (
        parts.netloc
        or parts.query
        or parts.fragment
        or not path.startswith("/")
        or path == "/"
        or "\0" in path
    ):
        raise ConfigError(
            f"cannot use the sidecar:// URL: write {_FORM}: three slashes, the socket's absolute path, no options"
        )
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise ConfigError(f"the path of a socket must have at most {LONGEST_PATH} bytes, got {path}")
    return path


def in_words(error: OSError) -> str:
    """Return a connection's error in words."""
    text = str(error).replace("Redis", "it")
    return text or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)
