"""A RESP connection of the sidecar. Main path: `RespConnection.data_received` → `commands.py`.

The commands of a connection run concurrently and are answered in order. While a client does not read its replies,
the connection does not read its commands, and closes after a while: nothing is buffered without end. Large replies
are built when they are written, see `large.py`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic, perf_counter
from typing import Any, cast

from ..counters import is_bad
from ..ephemeral import Holdings
from ..hangup import HangupWatch, ReadWatch, hung_up, is_unread, rest_of
from ..namespaces import Namespaces
from ..releases import Holding, take_back
from ..reply_memory import LARGE, UnreadReplies
from ..request_memory import PLACE, RequestShare
from .backlog import PIECE, Backlog
from .errors import SHUTTING_DOWN, TOO_MUCH, error_reply, unknown_command
from .frames import FrameError, Frames, error
from .large import Build, LargeReplies, LargeReply
from .reply_places import NO_PLACE, ReplyPlace, Slot, kept_by, outlives, take_answered, tasks_of, undo

_IN_ONE_TURN = 32
"""The commands of one client that run in one turn of the loop: 1,000 of 100 clients each would take 0.7 s."""

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
        self.at = 0.0  # when the latest bytes were read
        self._all_commands = commands
        self._connections = connections
        self._limits = limits
        self._in_flight = limits.in_flight  # read for each command
        self._room = limits.frame  # the bytes of unanswered commands, after which no further ones are read
        self._frames = Frames(max_bytes=limits.frame, max_arguments=limits.arguments)
        # Mutable: the commands that are answered now: all, or, inside a MULTI, those that end it.
        self._commands = commands
        # Mutable: what runs in a later turn of the loop; what is taken back there, because the client has gone; the
        # tasks; the claims to release when the client goes; the bytes of commands since all were answered, or since
        # `_has_room` counted them anew.
        self._backlog = Backlog(self._cut)
        self._untold: list[ReplyPlace] = []
        self.places: deque[ReplyPlace] = deque()
        """The commands that are not answered to the client yet, in their order."""
        self._pipelines = namespaces.turns.pipelines
        self.tasks = tasks_of(namespaces.turns)
        self.holdings = Holdings(namespaces.ephemeral)
        self.taken = 0  # with what the commands may be granted
        self._farewell = b""  # the last reply, behind the backlog, if the stream cannot be cut into commands
        # Mutable: the bytes that the client has not read; the large replies, and those that wait their turn.
        self.unread: UnreadReplies
        self._memory = namespaces.memory
        self._told: ReplyPlace = NO_PLACE  # whose reply was written last, unread perhaps
        self.large = LargeReplies(namespaces.memory, limits.replies)
        self._waiting = self.large.waiting
        # Mutable: the bytes of commands that have come in part, or wait for their replies.
        self._share = RequestShare(namespaces.memory.requests, self._shed)
        # Mutable: operations under way beyond one for each command (FD.RUN has many); does it hear of freed keys;
        # callbacks for the client's end.
        self.extra = 0
        self.listens = False
        self.on_gone: list[Callable[[], None]] = []
        # Mutable: this connection's part of the socket's pending operations, if the socket has that quota.
        self._access = namespaces.access
        self._counts_pending = self._access.counts_pending
        self._pending = 0
        # Mutable: has the client gone; is the connection lost; are further commands refused, and is that because the
        # sidecar closes; is a flush due; does the connection read; does the client read in time; the timer of the
        # deadline, is that the short one, and has a command come since.
        self.gone = False
        self._lost = False
        self._draining = False
        self._stopping = False
        self._flushing = False
        self._reading = True
        self._writing = True
        self._timer: asyncio.TimerHandle | None = None
        self._hurried = False
        self._used = False
        self.transport: asyncio.Transport
        """The connection to the client."""
        self.peer: Any = None
        """The client's process, if the system tells it. It is read at once: a closed connection does not tell it."""

    # The transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin (asyncio calls this)."""
        # uvloop's transports do not inherit from asyncio's.
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=0)  # so `unread.since` tells whether it keeps any bytes
        self.unread = UnreadReplies(self._memory, self.transport)
        self._hangup = HangupWatch(self.transport, self._has_gone)
        self._unread_grants = ReadWatch(self.transport, self._all_read)
        self._connections.add(self)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Run the commands that have arrived whole (asyncio calls this)."""
        self.at = perf_counter()
        small = len(data) <= PIECE and not self._backlog
        commands = self._cut(data) if small else []
        if not small or len(commands) > _IN_ONE_TURN:
            self._backlog.extend(commands if small else [memoryview(data)])
            commands = self._next_commands(_IN_ONE_TURN if self._pipelines.may_go_on() else 0)
        self.taken += len(data)
        self._run_all(commands)
        if self._counts_pending:
            self.count_pending()  # for the clients of other connections
        full = self.taken > self._room and not self._has_room()
        if full or len(self.places) + self.extra > self._in_flight:
            self._pause()  # until earlier ones are answered
        self._used = True
        unfinished = self._frames.unfinished
        if unfinished or self.taken > LARGE or self._share.size:
            self._weigh()
        if unfinished is not self._hurried:
            self._watch()

    def eof_received(self) -> bool:
        """Answer what the client has asked, if it still reads; it sends nothing more (asyncio calls this)."""
        while self._backlog:
            self._go_on()
        self._draining = True
        self._stopping = False
        if hung_up(self.transport):
            self.gone = True  # the client reads no replies: claims that are won from now on are released
            return False
        self._flush()
        return bool(self.places)

    def connection_lost(self, exc: Exception | None) -> None:
        """Take back what the client was not told of, and do what it has sent as an owner (asyncio calls this)."""
        self.gone = self._lost = True
        write_failed = bool(self._untold) and isinstance(exc, BrokenPipeError)  # all before it may be read
        if exc is not None and (not write_failed or is_unread(self.transport)):
            take_back(self._told.grants)
        self._told = NO_PLACE
        if self._timer is not None:
            self._timer.cancel()
        take_answered(self.places, self._untold)
        # The others may go on: they are counted until all have ended.
        self.tasks.client_gone()
        self.large.clear()
        self.unread.end()
        for forget in self.on_gone:
            forget()
        rest = b"" if self._frames.broken else rest_of(self.transport)
        if rest or self._untold:
            self.at = perf_counter()
            self._backlog.append(memoryview(rest))
            self._weigh()
            self._pipelines.add(self._go_on)
        elif not self._backlog:
            self.tasks.settling.finish(self._finished)

    def _finished(self) -> None:
        """End the client's EPHEMERAL claims, and keep nothing: all its commands have ended."""
        self._connections.discard(self)
        self.places.clear()
        self._frames.give_up()  # other objects know this one, so it stays until the garbage collector comes
        self._share.weigh(0)
        self._access.pending -= self._pending
        self._pending = 0
        if self._stopping:
            self.holdings.leave()
        else:
            self.holdings.release()

    def pause_writing(self) -> None:
        """Count the bytes that the transport keeps, until the client has read them all (asyncio calls this)."""
        self.unread.begin()

    def resume_writing(self) -> None:
        """Read commands again: the client has read all replies (asyncio calls this)."""
        was_slow = not self._writing
        self._writing = True
        self.unread.end()
        if was_slow:
            self._watch()  # before the next large reply is written, which has a deadline of its own
        if self._waiting:
            self._flush()
        self._resume()

    @property
    def _has_left(self) -> bool:
        """True once the client has said that it sends nothing more: no reply would be of any use."""
        return self._draining and not self._stopping

    # The server's calls

    def shutdown(self) -> None:
        """Refuse further commands, answer those under way, then close. EPHEMERAL claims are left to their leases."""
        if not self._draining:
            self._draining = self._stopping = True
        self._flush()

    # The memory's call

    def cut(self) -> None:
        """Close at once, and give back what the replies have reserved."""
        self._frames.give_up()
        self._backlog.clear()
        take_answered(self.places, self._untold)
        if self._stopping:  # no turns are waited for; else `connection_lost` undoes it in turns
            undo(len(self._untold), self._untold)
        self.tasks.settling.clear()
        self.large.clear()
        self.gone = True  # a claim that is won in this turn of the loop is released
        self._abort()

    def _abort(self) -> None:
        if is_unread(self.transport):
            take_back(self._told.grants)
        self.transport.abort()

    # The commands' calls

    def _has_gone(self) -> bool:
        """True if no client reads the replies. One that is not read, or sends nothing more, may go without a sign."""
        if not self.gone and (self._draining or not self._reading) and hung_up(self.transport):
            self.gone = True
            self._abort()
        return self.gone

    def answer(self, slot: ReplyPlace, reply: bytes) -> None:
        """Give a command its reply. The replies of one turn of the loop go out in one write."""
        if self.gone or (self._draining and self._has_gone()):
            take_back(slot.grants)
            return
        places = self.places
        if len(places) == 1 and not self._flushing and self._reading and places[0] is slot:
            # Not by `_flush`, which looks for more.
            self._send(reply, [places.popleft()])
            self._flushed()
            return
        slot.reply = reply
        if self._flushing or not places or places[0] is not slot:
            return
        self._flushing = True
        self.loop.call_soon(self._flush)

    def answer_at_length(
        self, place: ReplyPlace, payload: bytes, build: Build, again: Callable[[], object] | None
    ) -> None:
        """Give a command a large reply.

        Args:
            place: the command's.
            payload: what `build` keeps in memory until then.
            build: returns the reply; called when the client has read all replies before.
            again: runs the command again; None if it must not run twice.
        """
        if self.gone:
            return
        places = self.places
        first = bool(places) and places[0] is place
        if not self.large.put(place, LargeReply(build, payload, again), first=first):
            self.answer(place, error_reply(self._memory.full()))
        elif first and not self._flushing:
            self._flushing = True
            self.loop.call_soon(self._flush)
        if self.unread.since:
            self._bound_the_wait()

    def push(self, message: bytes) -> bool:
        """Send a message that is not a reply; return False if the client does not read, and may do so later."""
        if self._writing and not self.gone and not self.transport.is_closing():
            self._send(message, [NO_PLACE])
        return self._writing or self.gone

    def _next_commands(self, most: int) -> list[list[bytes]]:
        """Take the commands that run in this turn of the loop; the rest runs in later ones, and others' between."""
        commands = self._backlog.take(most)
        if self._backlog or self._untold:
            self._pause()
            self._pipelines.add(self._go_on)
        return commands

    def _cut(self, data: bytes) -> list[list[bytes]]:
        """Cut data into commands; the farewell follows those before a fault."""
        try:
            return self._frames.feed(data)
        except FrameError as fault:
            self.counters.bad_requests += 1
            self._farewell = error("ERR", f"Protocol error: {fault}")
            return fault.before

    def _go_on(self) -> None:
        undo(_IN_ONE_TURN if self._lost else 0, self._untold)
        self._run_all(self._next_commands(_IN_ONE_TURN))
        self._weigh()
        self._resume()
        if self._lost and not self._backlog and not self._untold:
            self.tasks.settling.finish(self._finished)

    def _run_all(self, commands: list[list[bytes]]) -> None:
        """Run these commands, and write the replies whose turn has come."""
        for command in commands:
            self._run(command)
        if self._farewell and not self._backlog:
            self._hang_up()
        elif not self.places or self.places[0].reply is not None or self._waiting:
            self._flush()

    def _run(self, command: list[bytes]) -> None:
        answer: bytes | ReplyPlace
        if self.gone and not outlives(command):
            return
        handler = self._commands.get(command[0]) or self._commands.get(command[0].upper())
        try:
            if self._draining:
                if self._has_left:
                    return
                answer = SHUTTING_DOWN
            elif handler is None:
                self.counters.bad_requests += 1
                answer = unknown_command(command[0])
            else:
                answer = handler(self, command)
        except Exception as fault:  # noqa: BLE001 -- the client gets every error as a reply
            self.counters.bad_requests += is_bad(fault)
            answer = error_reply(fault)
        if isinstance(answer, bytes):
            answer = Slot(answer)
        self.places.append(answer)

    def _flush(self) -> None:
        self._flushing = False
        if self._has_gone():
            return
        self._write()
        while self._waiting and not self.unread.since and self.places and self.large.build(self.places[0]):
            self._write()
        self._flushed()

    def _flushed(self) -> None:
        """Go on after replies were written."""
        places = self.places
        if self._pending:
            self.count_pending()
        if not places:
            self.taken = 0
            if self._share.size:
                self._weigh()
            if self._draining and not self.gone and not self._backlog:
                self.transport.close()
                return
        if not self._reading and len(places) + self.extra <= self._limits.in_flight // 2:
            self._resume()

    def _write(self) -> None:
        """Write the replies whose turn has come."""
        places = self.places
        told: list[ReplyPlace] = []
        while places and places[0].reply is not None:
            told.append(places.popleft())
        if told:
            self._send(b"".join([place.reply or b"" for place in told]), told)

    def _send(self, data: bytes, told: list[ReplyPlace]) -> None:
        """Write the replies of these places."""
        self.transport.write(data)
        if self.transport.is_closing():  # the client gets no byte of this; `connection_lost` comes next
            self._untold += told
            return
        last = told[-1]
        last.reply, self._told = None, last if last.grants else NO_PLACE
        if last.size > LARGE and last.grants:  # a long list's, which is kept only until it is read
            self._unread_grants.begin()
        if self.unread.since:
            self.unread.add(len(data))
            self._bound_the_wait()

    def _bound_the_wait(self) -> None:
        """Set a deadline if the client has too many bytes to read, or if a large reply waits for it.

        If both together are too many bytes, read no further commands.
        """
        unread, most = self.transport.get_write_buffer_size(), self._limits.unread
        if unread > most or self._waiting:
            if self._writing:
                self._writing = False
                self._watch()
            if unread + self.large.held > most:
                self._pause()

    def _all_read(self) -> None:
        self._told = NO_PLACE
        self._weigh()

    def _weigh(self) -> None:
        """Count what this client's commands take."""
        kept = self._backlog.size + kept_by(*self.places, *self._untold, self._told)
        self._share.weigh(self._frames.size + kept + PLACE * (len(self.places) + len(self._untold)))

    def _has_room(self) -> bool:
        """True if further commands may be read: some may be answered though there are always others that are not."""
        if self.taken > self._room:
            self.taken = kept_by(*self.places)
        return self.taken <= self._room

    def _shed(self) -> None:
        """Hang up. If replies are due, do so without an error: the client would take it for one of these replies."""
        self._frames.give_up()
        self._backlog.clear()
        if self.places or self._untold:
            self.cut()
        elif not self.gone:
            self._farewell = TOO_MUCH
            self._hang_up()

    def count_pending(self) -> None:
        """Count this connection's unanswered commands anew, if its socket has a quota of these."""
        if self._counts_pending and not self.gone:
            before, self._pending = self._pending, len(self.places) + self.extra
            self._access.pending += self._pending - before

    def answer_only(self, commands: dict[bytes, Command] | None) -> None:
        """Answer these commands from now on; None stands for all."""
        self._commands = self._all_commands if commands is None else commands

    def hang_up_after_replies(self) -> None:
        """Close once every command so far is answered (QUIT); as in Redis, what follows is dropped."""
        self._draining = True
        self._frames.give_up()
        self._backlog.clear()

    def _hang_up(self) -> None:
        """Reply with the farewell and close: the rest of the stream cannot be cut into commands."""
        if not self._has_left:
            self.places.append(Slot(self._farewell))
        self._farewell, self._draining = b"", True
        self._flush()

    def hold(self, holding: Holding, left_ms: int) -> None:
        """Release this claim when the client goes; its lease ends in `left_ms`."""
        if self.gone:
            self.namespaces.ephemeral.releases.add({holding: monotonic() + left_ms / 1000})
        else:
            self.holdings.add(holding, left_ms)

    # Flow and deadlines

    def _pause(self) -> None:
        if self._reading and not self.transport.is_closing():
            self._reading = False
            self.transport.pause_reading()
            self._hangup.begin()

    def _resume(self) -> None:
        stays = self._reading or self._backlog or not self._writing or self.transport.is_closing()
        few = len(self.places) + self.extra <= self._limits.in_flight
        if not stays and few and self._has_room():
            self._reading = True
            self.transport.resume_reading()

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
        waits = self._writing and not self._reading  # the rest of a command has not come: we read later
        if waits or (not self._hurried and (self._used or self.places or self.holdings.any_held)):
            self._watch()
        else:
            self._abort()
