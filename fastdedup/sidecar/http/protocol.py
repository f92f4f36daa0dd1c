"""An HTTP connection, parsed by httptools within bounds: of headers, of time, of pipelined requests.

Without them the parser (llhttp) buffers an unfinished line without end, a client may pipeline requests without end,
and the connection waits for ever for the rest of a request, or for a client that does not read.

It takes nothing of uvicorn's own protocol, whose insides change between releases.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

import httptools

from ...failures import log
from ...web.problems import ProblemType
from ..hangup import hung_up, is_unread
from ..limits import Limits
from ..releases import Grant
from ..reply_memory import ReplyMemory, UnreadReplies
from ..request_memory import RequestShare
from ..turns import Turns
from . import problems
from .interfaces import Application, ServerState
from .request import HIGH_WATER, MOST_HEADERS, Flow, Gone, HttpRequest, expects_leave, is_chunked, last_answer

QUICK_PATH = "/v1/claims"
"""The address of claims, which are offered to `quick`."""
HEAD_BYTES = 32 * 1024
"""The bytes that a request's line and headers may take, and a chunked body's framing."""

_QUICK_URL = QUICK_PATH.encode()
_PIECE = 2 * 1024
"""Bytes that are parsed at once: 256 KiB of short requests would take 80 ms, and 40 MB."""
_END = b"\r\n"
_CLOSE = b"connection: close\r\n\r\n"


class _Refused(Exception):
    """A request is refused by its first lines. Raised in a parser's callback, it comes out as the parser's error."""

    def __init__(self, problem: ProblemType = problems.BAD_REQUEST) -> None:
        self.problem = problem


class HttpProtocol(asyncio.Protocol):
    """An HTTP connection. Main path: `data_received` → the parser's calls → `_begin`."""

    def __init__(
        self, limits: Limits, memory: ReplyMemory, turns: Turns, app: Application, state: ServerState
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._limits = limits
        self._memory = memory
        self._pipelines = turns.requests
        self._untold = turns.untold
        self._app = app
        self._state = state
        self.parser: Any = httptools.HttpRequestParser(self)
        # Requests behind one that asks to close are parsed, and never answered: they are no fault of the first one.
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        # Mutable, of the connection: its transport; its client's process, if the system tells it; its flow; the bytes
        # that the client has not read; has the client hung up; callbacks for its end; what the answer on its way
        # grants; has a later one failed.
        self.transport: asyncio.Transport
        self.peer: Any = None
        self.flow: Flow
        self.unread: UnreadReplies
        self.gone = False
        self.on_gone: list[Callable[[], None]] = []
        self.handing_over: Sequence[Grant] = ()
        self._write_failed = False
        # Mutable: the bytes of the running request's body that the application has taken; the bytes of all requests
        # that have come in part, or wait.
        self.body_taken = 0
        self._share = RequestShare(memory.requests, self._shed)
        # Mutable, of the request that arrives: itself; is it whole; the bytes that the parser may hold; is data being
        # parsed, and shall a request begin after that.
        self._arriving: HttpRequest
        self._whole = True
        self._kept = 0
        self._feeding = self._starting = False
        # Mutable: data that later turns of the loop parse; is one due; the latest request that waited for news.
        self._rest = b""
        self._due = False
        self._waiting: HttpRequest | None = None
        # Mutable: the latest request whose headers have come; the request being answered, and those behind it.
        self._latest: HttpRequest | None = None
        self._running: HttpRequest | None = None
        self.pipeline: deque[HttpRequest] = deque()
        # Mutable: the last answer, which waits for the present one; the timers for the client to send, and to read.
        self._farewell: ProblemType | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._slow: asyncio.TimerHandle | None = None
        self.used_at = 0.0
        """When the latest answer went out, or the connection was made: by the loop's time."""
        # Mutable: the timer that checks whether that was long ago.
        self._idle: asyncio.TimerHandle

    # The transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin (asyncio calls this)."""
        # uvloop's transports do not inherit from asyncio's.
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=0)  # so `unread.since` tells whether it keeps any bytes
        self.unread = UnreadReplies(self._memory, self.transport)
        self._state.connections.add(self)
        self.flow = Flow(self.transport, self.cut)
        self.used_at = self.loop.time()
        self._look()

    def data_received(self, data: bytes) -> None:
        """Parse within the bounds (asyncio calls this)."""
        if self._farewell is not None:
            return
        self._feeding = True
        try:
            self._parse(data)
        except httptools.HttpParserCallbackError as error:
            self._refuse(error.__context__)
        except httptools.HttpParserError:
            self._end(problems.BAD_REQUEST)
        self._feeding = False
        if self._starting:
            self._starting = False
            self._begin(cast(HttpRequest, self._running))
        self._bound_the_rest()
        if self._kept or self._rest or self.pipeline or self.body_taken or self._share.size:
            self._weigh()

    def _parse(self, data: bytes) -> None:
        """Parse short data at once. Of long data, keep what is pipelined, or what this turn has no time for."""
        if len(data) <= _PIECE:
            self._rest = b""
            self._parse_piece(data)
            return
        at, view = 0, memoryview(data)
        while at < len(data) and not (at and self.pipeline) and self._pipelines.has_time():
            self._parse_piece(view[at : at + _PIECE])
            at += _PIECE
        self._rest = data[at:]
        if self._rest:
            self.flow.read_while(False)
            self._parse_soon()

    def _parse_piece(self, rest: Any) -> None:
        self._kept += len(rest)
        while rest and self._farewell is None:
            try:
                self.parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:  # refused: what follows is HTTP as before
                rest = memoryview(rest)[upgrade.args[0] :]

    def _parse_soon(self) -> None:
        """Parse the rest when no request waits before it, or when one waits for news: the end is seen behind it."""
        most = self._limits.in_flight if self._waiting is self._running else 1
        if self._rest and not self._due and len(self.pipeline) < most:
            self._due = True
            self._pipelines.add(self._parse_rest)

    def _parse_rest(self) -> None:
        self._due = False
        if not self.transport.is_closing():
            self.data_received(self._rest)
            self.flow.read_while(not self.full)

    def _weigh(self) -> None:
        """Count what this client's requests take."""
        requests = {self._running, self._latest, *self.pipeline}
        waiting = sum([each.weigh() for each in requests if each is not None])
        self._share.weigh(waiting + self._kept + len(self._rest) + self.body_taken)

    def _shed(self) -> None:
        """Let go of the requests, and close; without an answer if the running one keeps its body, maybe for long."""
        self.pipeline.clear()
        if self.body_taken and cast(HttpRequest, self._running).whole:
            self.cut()
        elif self._farewell is None:
            self._end(problems.REQUESTS)

    def _bound_the_rest(self) -> None:
        """Limit the size of what the parser holds, and the time that the rest of the request has."""
        if self._farewell is not None:
            return
        if self._kept > HEAD_BYTES and not self._whole:
            self._end(problems.HEADERS)
        elif self._whole or self._rest:
            self._relax()
        elif self._timer is None:
            self._timer = self.loop.call_later(self._limits.request_timeout, self._overdue)

    def _refuse(self, fault: BaseException | None) -> None:
        """End after an exception in one of the parser's calls: a refusal, or a fault of our own."""
        if isinstance(fault, _Refused):
            self._end(fault.problem)
        else:
            log.error("a request failed while it was read", exc_info=fault)
            self._end(problems.INTERNAL)

    def eof_received(self) -> bool:
        """Answer what the client has asked, if it still reads; it sends nothing more (asyncio calls this)."""
        latest, running = self._latest, self._running
        if hung_up(self.transport) or latest is None or running is None or running.answered:
            return False
        if self._farewell is not None:
            pass  # it follows the answers
        elif self._whole:
            latest.keep_alive = False
        elif running.whole:  # the rest of the latest one never comes
            self._end(problems.BAD_REQUEST)
        return running.whole

    def connection_lost(self, exc: Exception | None) -> None:
        """Take back the grants of an answer that the client surely did not get (asyncio calls this)."""
        self.gone = True
        self._state.connections.discard(self)
        for forget in self.on_gone:
            forget()
        self.pipeline.clear()
        self._share.weigh(0)
        self._idle.cancel()
        self._relax()
        self._read_again()
        self.flow.resume_writing()
        for request in (self._running, self._latest):
            if request is not None and not request.answered:
                request.hang_up()
        self.parser = None  # it refers to this object: no cycle is left behind
        write_failed = self._write_failed and isinstance(exc, BrokenPipeError)  # all before it may be read
        if exc is not None and (not write_failed or is_unread(self.transport)):
            self._untold.add(self.handing_over)

    def pause_writing(self) -> None:
        """Give a client that does not read `request_timeout` to read on, then cut it (asyncio calls this)."""
        self.flow.pause_writing()
        self.unread.begin()
        self._slow = self.loop.call_later(self._limits.request_timeout, self.cut)

    def resume_writing(self) -> None:
        """Go on: the client has read all answers (asyncio calls this)."""
        self._read_again()
        self.unread.end()
        self.flow.resume_writing()

    # The memory's call

    def cut(self) -> None:
        """Close at once; take back the grants of an answer that is surely not read."""
        if is_unread(self.transport):
            self._untold.add(self.handing_over)
        self.transport.abort()

    # The parser's calls

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._whole = False
        self._arriving = HttpRequest()

    def on_url(self, url: bytes) -> None:
        """Take a piece of a request's address."""
        self._arriving.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. A trailer is none: a proxy does not look at it, and an answer may have begun before it."""
        name = name.lower()
        if self._arriving is self._latest:
            if name == b"connection":
                raise _Refused  # the parser would drop the requests that follow, and their client wait
            return
        if name == b"expect":
            self._arriving.expects_continue |= expects_leave(value, self.parser.get_http_version())
        elif name == b"transfer-encoding" and not is_chunked(value, self.parser.get_http_version()):
            raise _Refused
        elif name == b"host" and any(each == name for each, _ in self._arriving.headers):
            raise _Refused  # a proxy may have gone by the other one: RFC 9112, section 3.2
        self._arriving.headers.append((name, value))
        if len(self._arriving.headers) > MOST_HEADERS:
            raise _Refused(problems.HEADERS)

    def on_headers_complete(self) -> None:
        """Check a request's headers, and begin to answer it."""
        request, parser = self._arriving, self.parser
        if self._kept > HEAD_BYTES and request.head_bytes > HEAD_BYTES:
            raise _Refused(problems.HEADERS)
        self._kept = 0
        method = parser.get_method()
        if parser.should_upgrade() and (method == b"POST" or request.has_body):
            raise _Refused  # the parser would take its body for the next request
        if request.url == _QUICK_URL:  # not parsing this URL saves 8 % of a claim's instructions
            request.path = QUICK_PATH
        else:
            try:
                request.parse_url()
            except ValueError:
                raise _Refused from None
        request.method = method.decode()
        request.keep_alive = parser.get_http_version() != "1.0" and parser.should_keep_alive()
        self._queue(request)

    def _queue(self, request: HttpRequest) -> None:
        """Answer a request, after those before it."""
        before, self._latest = self._latest, request
        if before is None or before.answered:
            self._start(request)
        else:
            self.pipeline.append(request)
            self.flow.read_while(not self.full)

    def on_body(self, body: bytes) -> None:
        """Take a piece of a request's body."""
        self._kept = 0
        request = cast(HttpRequest, self._latest)
        if request.answered:
            return
        request.body += body
        if len(request.body) > HIGH_WATER:
            self.flow.read_while(not self.full)
        request.tell()

    def on_message_complete(self) -> None:
        """Take the end of a request."""
        self._whole = True
        self._kept = 0
        request = cast(HttpRequest, self._latest)
        if not request.answered:
            request.whole = True
            request.tell()

    # Answering

    def _start(self, request: HttpRequest) -> None:
        self._running = request
        if not request.whole and self._feeding:
            self._starting = True  # the body may be in the same data: it is parsed first
        else:
            self._pipelines.add(self._begin_next)

    def _begin_next(self) -> None:
        if not self.transport.is_closing():
            self._begin(cast(HttpRequest, self._running))

    def _begin(self, request: HttpRequest) -> None:
        quick = request.whole and not self.unread.since and not request.expects_continue
        if not quick or not self._app.quick(self, request):
            task = self.loop.create_task(self._app(self, request), name="fastdedup-answer")
            self._state.tasks.add(task)
            task.add_done_callback(partial(self._ended, request))

    def _ended(self, request: HttpRequest, task: asyncio.Task[None]) -> None:
        """Answer a request whose task failed, or was cancelled because the server stops."""
        self._state.tasks.discard(task)
        fault = None if task.cancelled() else task.exception()
        if fault is not None:
            log.error("a request failed", exc_info=fault)
        if not request.answered and not self.gone and (fault is not None or task.cancelled()):
            request.answered = True
            self._end(problems.INTERNAL if fault is not None else problems.UNAVAILABLE)

    def _next(self) -> None:
        """Go on with the next request."""
        if self.transport.is_closing():
            return
        self.flow.read_while(not self.full)
        if self.pipeline:
            self._start(self.pipeline.popleft())
        elif self._farewell is not None:
            self._say(self._farewell)
        elif self._share.size:
            self._weigh()
        if self._rest and not self.pipeline:
            self._parse_soon()

    # The server's call

    def shutdown(self) -> None:
        """Answer the running request, with `connection: close`: its client sees that those behind it have not run."""
        latest = self._latest
        if latest is None or latest.answered:
            self.transport.close()
            return
        latest.keep_alive = False
        if self._running is not None:
            self._running.keep_alive = not self.pipeline and self._running.keep_alive

    # The application's calls

    async def wait_for(self, request: HttpRequest) -> None:
        """Wait for news of a request; first tell a client that waits for leave to send. Raises what `wait` raises."""
        leave = request.leave_to_send()
        if not self.transport.is_closing():
            if leave:
                self._send(leave)
            self._waiting = request
            self._parse_soon()
            self.flow.read_while(not self.full)
        await request.wait()

    async def until_gone(self, request: HttpRequest) -> None:
        """Return when the client of a request hangs up."""
        with suppress(Gone):
            while True:
                await self.wait_for(request)

    def respond(self, head: bytes, body: bytes, grants: Sequence[Grant], *, close: bool = False) -> None:
        """Answer the running request in one write.

        Args:
            head: the status line and the headers except date and connection, each with its line end.
            body: the whole body.
            grants: what to take back if the client surely does not get this answer.
            close: refuse further requests.
        """
        if self.gone or self.transport.is_closing():  # it closes in this turn of the loop, and writes no more
            self._untold.add(grants)
            return
        request = cast(HttpRequest, self._running)
        end = _END if request.keep_alive and not close else _CLOSE
        request.answered = True
        self.body_taken = 0
        own = [b"%b: %b\r\n" % header for header in self._state.default_headers]
        self._send(b"".join((head, *own, end, body)), grants)
        request.tell()
        if end is _CLOSE:
            self.transport.close()
        self._next()

    def _send(self, data: bytes, grants: Sequence[Grant] = ()) -> None:
        """Send this; what was sent before may be read by now, so its grants are the client's."""
        self.transport.write(data)
        if self.transport.is_closing():  # the client gets no byte of this; `connection_lost` comes next
            self._untold.add(grants)
            self._write_failed = True
            return
        self.handing_over, self.used_at = grants, self.loop.time()
        if self.unread.since:
            self.unread.add(len(data))

    # Bounds

    @property
    def full(self) -> bool:
        """True if enough waits: data for its turn, requests for theirs, or a body for the application."""
        if self._rest or len(self.pipeline) >= self._limits.in_flight:
            return True
        latest = self._latest
        return latest is not None and len(latest.body) > HIGH_WATER and not latest.answered

    def _look(self) -> None:
        """Close a connection without requests. One timer serves all, instead of one for each request."""
        patience, unused = self._limits.request_timeout, self.loop.time() - self.used_at
        if unused >= patience:  # the client has read it; what forgets 10,000 ids takes 3 MB
            self.handing_over = [each for each in self.handing_over if isinstance(each, tuple)]
        running = self._running
        busy = not self._whole or self._rest or (running is not None and not running.answered)
        left = self._limits.idle_timeout - (0.0 if busy else unused)
        if left <= 0:
            self.transport.abort()
        else:
            self._idle = self.loop.call_later(min(left, patience), self._look)

    def _relax(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _read_again(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None

    def _overdue(self) -> None:
        self._timer = None
        self._end(problems.TIMEOUT)

    def _end(self, farewell: ProblemType) -> None:
        """Answer the whole requests, then with this problem, and close. A request in part is dropped."""
        self._farewell, self._rest = farewell, b""
        self._relax()
        latest, running = self._latest, self._running
        partial = not self._whole and latest is not None and not latest.whole
        if partial and self.pipeline and self.pipeline[-1] is latest:
            self.pipeline.pop()
        if running is None or running.answered or (partial and running is latest):
            self._starting = False
            self._say(farewell)

    def _say(self, farewell: ProblemType) -> None:
        if self.transport.is_closing():
            return
        self._app.turned_down(farewell)
        self._send(last_answer(farewell.facts(farewell.about)))
        self.transport.close()
