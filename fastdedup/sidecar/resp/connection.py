"""A RESP connection of the sidecar. Main path: `RespConnection.data_received` → `commands.py`.

The commands of a connection run concurrently and are answered in order. While a client does not read its replies,
the connection does not read its commands, and closes after a while: nothing is buffered without end.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from time import perf_counter
from typing import Any, Protocol, cast

from ...errors import ClaimLostError, DedupError, UnavailableError
from ...events import log
from ...gateway import Dedup
from ..counters import is_bad
from ..namespaces import Namespaces
from ..verbs import without_addresses
from .frames import FrameError, Frames, error

Key = tuple[Dedup, bytes, bytes]
"""A claim that a client holds: its `Dedup`, its store key, its owner field."""

_SHUTTING_DOWN = error("UNAVAILABLE", "1000 the sidecar is shutting down; connect again")


class ReplyPlace(Protocol):
    """A command's place in the order of replies."""

    reply: bytes | None
    """None until the command is answered."""


class Slot:
    """A command's place in the order of replies, without anything else."""

    __slots__ = ("reply",)

    def __init__(self, reply: bytes | None = None) -> None:
        self.reply = reply


Command = Callable[["RespConnection", list[bytes]], bytes | ReplyPlace]
"""Takes the connection and the command's parts; returns the reply, or the place that gets it later."""


class RespConnection(asyncio.Protocol):
    """Answers the commands of one client.

    Args:
        namespaces: the sidecar's namespaces.
        connections: every connection of the server; this one adds and removes itself.
        commands: the functions that answer commands, by the command's name (`commands.COMMANDS`).
    """

    def __init__(self, namespaces: Namespaces, connections: set[Any], commands: dict[bytes, Command]) -> None:
        limits = namespaces.limits
        self.namespaces = namespaces
        self.loop = asyncio.get_running_loop()
        self.resp3 = False
        self.counters = namespaces.counters
        self.judged = namespaces.counters.judged
        self.at = 0.0  # when the latest bytes were read
        self._all_commands = commands
        self._connections = connections
        self._limits = limits
        self._frames = Frames(max_bytes=limits.frame, max_arguments=limits.arguments)
        # Mutable: the commands that are answered now: all, or, inside a MULTI, which is refused, those that end it.
        self._commands = commands
        # Mutable: the unanswered commands, in order; the tasks under way, and the coroutines whose task has not
        # begun; the claims to release when the client goes.
        self._slots: deque[ReplyPlace] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._unbegun: set[Coroutine[Any, Any, bytes]] = set()
        self.ephemeral: set[Key] = set()
        # Mutable: operations under way beyond one for each command (FD.RUN has many); callbacks for the client's end.
        self.extra = 0
        self.on_gone: list[Callable[[], None]] = []
        # Mutable: has the client gone; are further commands refused; is a flush due; does the connection read; does
        # the client; the timer of the deadline, whether that is the short one, and whether a command came since.
        self.gone = False
        self._draining = False
        self._flushing = False
        self._reading = True
        self._writing = True
        self._timer: asyncio.TimerHandle | None = None
        self._hurried = False
        self._used = False
        self._transport: asyncio.Transport

    # The transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin (asyncio calls this)."""
        self._transport = cast(
            asyncio.Transport, transport
        )  # uvloop's transports do not inherit from asyncio's
        self._transport.set_write_buffer_limits(high=self._limits.unread)
        self._connections.add(self)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Run the commands that have arrived whole (asyncio calls this)."""
        self.at = perf_counter()
        try:
            commands = self._frames.feed(data)
        except FrameError as fault:
            self.counters.bad_requests += 1
            for command in fault.before:
                self._run(command)
            self._hang_up(error("ERR", f"Protocol error: {fault}"))
            return
        for command in commands:
            self._run(command)
        if not self._slots or self._slots[0].reply is not None:
            self._flush()
        if len(self._slots) + self.extra > self._limits.in_flight:
            self._pause()
        self._used = True
        if self._frames.unfinished is not self._hurried:
            self._watch()

    def eof_received(self) -> bool:
        """Answer what the client has asked, where it still reads; it sends nothing more (asyncio calls this)."""
        self._draining = True
        if hung_up(self._transport):
            self.gone = True  # nobody reads the replies: claims that are won from now on are released
            return False
        self._flush()
        return bool(self._slots)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the ephemeral claims of this connection (asyncio calls this)."""
        self.gone = True
        self._connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        for dedup, wire, owner in self.ephemeral:
            dedup._namespace.ask.release_later(wire, owner)
        self.ephemeral.clear()
        for forget in self.on_gone:
            forget()

    def pause_writing(self) -> None:
        """Stop reading commands, as the client does not read replies (asyncio calls this)."""
        self._writing = False
        self._pause()
        self._watch()

    def resume_writing(self) -> None:
        """Read commands again, as the client reads replies (asyncio calls this)."""
        self._writing = True
        self._resume()
        self._watch()

    @property
    def transport(self) -> asyncio.Transport:
        """The connection to the client."""
        return self._transport

    # The server's calls

    def shutdown(self) -> None:
        """Refuse further commands, answer those under way, then close."""
        self._draining = True
        self._flush()

    # The commands' calls

    def answer(self, slot: ReplyPlace, reply: bytes) -> None:
        """Give a command its reply. The replies of one turn of the loop go out in one write."""
        slot.reply = reply
        slots = self._slots
        if self._flushing or not slots or slots[0] is not slot:
            return
        if len(slots) == 1:
            self._flush()
        else:
            self._flushing = True
            self.loop.call_soon(self._flush)

    def push(self, message: bytes) -> bool:
        """Send a message that is no reply; return False where the client does not read."""
        if self._writing and not self.gone:
            self._transport.write(message)
        return self._writing

    def spawn(self, work: Coroutine[Any, Any, bytes], dedup: Dedup, verb: str) -> Slot:
        """Run a command that has to wait; the reply is what `work` returns or raises. `verb` is for the metrics."""
        slot = Slot()
        self._unbegun.add(work)
        task = self.loop.create_task(self._answer_with(slot, work, dedup, verb), name="fastdedup-command")
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, work))
        return slot

    def _ended(self, work: Coroutine[Any, Any, bytes], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if (
            work in self._unbegun
        ):  # cancelled before its first step: Python would warn that it was never awaited
            self._unbegun.discard(work)
            work.close()

    async def _answer_with(
        self, slot: ReplyPlace, work: Coroutine[Any, Any, bytes], dedup: Dedup, verb: str
    ) -> None:
        since = self.at
        self._unbegun.discard(work)
        try:
            reply = await work
        except Exception as fault:  # noqa: BLE001 -- whatever it is, the client is told
            self.counters.bad_requests += is_bad(fault)
            reply = error_reply(fault)
        self.counters.answered(dedup, verb, reply, since)
        self.answer(slot, reply)

    def _run(self, command: list[bytes]) -> None:
        answer: bytes | ReplyPlace
        handler = self._commands.get(command[0]) or self._commands.get(command[0].upper())
        try:
            if self._draining:
                answer = _SHUTTING_DOWN
            elif handler is None:
                self.counters.bad_requests += 1
                answer = error("ERR", f"unknown command '{command[0][:64].decode(errors='replace')}'")
            else:
                answer = handler(self, command)
        except Exception as fault:  # noqa: BLE001 -- whatever it is, the client is told
            self.counters.bad_requests += is_bad(fault)
            answer = error_reply(fault)
        self._slots.append(Slot(answer) if isinstance(answer, bytes) else answer)

    def _flush(self) -> None:
        self._flushing = False
        slots = self._slots
        out: list[bytes] = []
        while slots and (reply := slots[0].reply) is not None:
            out.append(reply)
            slots.popleft()
        if out and not self.gone:
            self._transport.write(b"".join(out))
        if self._draining and not slots and not self.gone:
            self._transport.close()
        elif not self._reading and len(slots) + self.extra <= self._limits.in_flight // 2:
            self._resume()

    def answer_only(self, commands: dict[bytes, Command] | None) -> None:
        """Answer these commands from now on; None stands for all."""
        self._commands = self._all_commands if commands is None else commands

    def hang_up_after_replies(self) -> None:
        """Close once every command so far is answered (QUIT)."""
        self._draining = True

    def _hang_up(self, farewell: bytes) -> None:
        """Reply with the reason and close: the rest of the stream cannot be cut into commands."""
        self._slots.append(Slot(farewell))
        self._draining = True
        self._flush()

    def hold(self, key: Key) -> None:
        """Release this claim when the client goes."""
        if self.gone:
            key[0]._namespace.ask.release_later(key[1], key[2])
        else:
            self.ephemeral.add(key)

    def let_go(self, dedup: Dedup, wire: bytes, owner: bytes) -> None:
        """Forget a claim that is settled."""
        self.ephemeral.discard((dedup, wire, owner))

    # Flow and deadlines

    def _pause(self) -> None:
        if self._reading and not self.gone:
            self._reading = False
            self._transport.pause_reading()

    def _resume(self) -> None:
        if (
            not self._reading
            and self._writing
            and not self.gone
            and len(self._slots) + self.extra <= self._limits.in_flight
        ):
            self._reading = True
            self._transport.resume_reading()

    def _watch(self) -> None:
        """Set the timer for what must happen next: the rest of a command, a read by the client, or a command."""
        hurried = self._frames.unfinished or not self._writing
        if self._timer is not None:
            if hurried and self._hurried:
                return  # the deadline runs since it was first due
            self._timer.cancel()
        self._hurried = hurried
        self._used = False
        pause = self._limits.request_timeout if hurried else self._limits.idle_timeout
        self._timer = self.loop.call_later(pause, self._overdue)

    def _overdue(self) -> None:
        self._timer = None
        if self.gone:
            return
        if not self._hurried and (self._used or self._slots or self.ephemeral):
            self._watch()
        else:
            self._transport.abort()


def hung_up(transport: asyncio.Transport) -> bool:
    """Return True where the other side does not read any more either (poll's POLLHUP, on Unix sockets)."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return False
    look = select.poll()
    look.register(sock.fileno(), 0)
    return any(events & select.POLLHUP for _, events in look.poll(0))


def error_reply(fault: Exception) -> bytes:
    """Return an exception as a RESP error."""
    if isinstance(fault, UnavailableError):
        return error("UNAVAILABLE", f"{round(fault.retry_after * 1000)} {without_addresses(fault)}")
    if isinstance(fault, ClaimLostError):
        return error("CLAIMLOST", str(fault))
    if isinstance(fault, DedupError):
        return error("ERR", str(fault))
    log.exception("a command failed", exc_info=fault)
    return error("ERR", "internal error; see the sidecar's log")
