"""uvicorn's HTTP connection, with the bounds that it lacks: of headers, of time, of pipelined requests.

Its parser (llhttp) holds what belongs to an unfinished line without end, its flow control lets a
pipelining client queue without end, and it waits for ever for the rest of a request, or for a client
that does not read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import httptools
import orjson
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from . import problems
from .http import CLOSE, CONNECTION

if TYPE_CHECKING:
    from .http_verbs import Held
    from .limits import Limits
    from .problems import Problem

HEAD_BYTES = 32 * 1024
"""Of a request's line and headers, and of what a chunked body carries beside the body."""


class _TooLarge(Exception):
    """The headers are: what a parser's callback raises comes out as a parser's error."""


class Flow(FlowControl):
    """Reads no further while requests wait for their turn; uvicorn's would, for each that reads its body."""

    def __init__(self, transport: asyncio.Transport, waiting: deque[Any]) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        """Read again, if nothing waits."""
        if not self._waiting:
            super().resume_reading()


class HttpProtocol(HttpToolsProtocol):
    """One HTTP connection. Main path: `data_received`, and uvicorn's from there."""

    def __init__(self, limits: Limits, quick: Callable[..., bool], **options: Any) -> None:
        super().__init__(**options)
        self._limits = limits
        self._quick = quick
        # Mutable, of the connection: the client hung up; claims that the answer on its way gives it.
        self.gone = False
        self.handing_over: Sequence[Held] = ()
        # Mutable, of the request that arrives: is it whole, bytes of it that the parser may be holding.
        self._whole = True
        self._kept = 0
        self._too_large = False
        # Mutable: the request being answered; a farewell that waits for it; the timer of what is due.
        self._running: RequestResponseCycle | None = None
        self._feeding = self._starting = False
        self._farewell: Problem | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._slow: asyncio.TimerHandle | None = None

    # The transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        super().connection_made(cast(asyncio.Transport, transport))
        self.transport.set_write_buffer_limits(high=self._limits.unread)
        self.flow = Flow(self.transport, self.pipeline)

    def data_received(self, data: bytes) -> None:
        """Parse, within bounds."""
        if self._farewell is not None:
            return
        self._kept += len(data)
        self._feeding = True
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._unsupported_upgrade_warning()
        except httptools.HttpParserError:
            self.send_400_response("")
        self._feeding = False
        if self._starting:
            self._starting = False
            self._begin(cast(RequestResponseCycle, self._running))
        if self._kept > HEAD_BYTES and not self._whole:
            self._too_large = True
            self.send_400_response("")
        elif not self._whole or self._idle:
            self._hurry()
        elif self._timer is not None:
            self._relax()

    def connection_lost(self, exc: Exception | None) -> None:
        """Take back what the client surely did not get."""
        self.gone = True
        self._relax()
        self._read_again()
        running = self._running
        super().connection_lost(exc)
        if running is not None and not running.response_complete:
            running.disconnected = True  # uvicorn tells the newest alone, which may wait behind it
            running.message_event.set()
        if exc is not None:  # closed before our bytes were read, or before we wrote
            self._take_back()

    def pause_writing(self) -> None:
        """The client does not read; not for ever."""
        super().pause_writing()
        self._slow = self.loop.call_later(self._limits.request_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        """It does again."""
        self._read_again()
        super().resume_writing()

    # The parser's calls

    def on_message_begin(self) -> None:
        """A request begins."""
        self._whole = False
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        scope: Any = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": "",
            "headers": self.headers,
            CONNECTION: self,
        }
        self.scope = scope

    def on_headers_complete(self) -> None:
        """Its headers are there."""
        if self._kept > HEAD_BYTES and _size(self.url, self.headers) > HEAD_BYTES:
            self._too_large = True
            raise _TooLarge
        self._kept = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of its body is there."""
        self._kept = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """It is whole."""
        self._whole = True
        self._kept = 0
        super().on_message_complete()

    # uvicorn's calls

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        if cycle.more_body and self._feeding:
            self._starting = True  # what came with its headers is looked at first
        else:
            self.loop.call_soon(self._begin, cycle)  # from the pipeline: its body is here

    def _begin(self, cycle: RequestResponseCycle) -> None:
        quick = not cycle.more_body and not self.flow.write_paused and not cycle.waiting_for_100_continue
        if not quick or not self._quick(self, cycle.scope, bytes(cycle.body)):
            super()._start_asgi_task(cycle, self.app)

    def on_response_complete(self) -> None:
        """A request is answered."""
        if self.transport.is_closing():
            self.server_state.total_requests += 1
            self._end_soon()
            return
        super().on_response_complete()
        if self._farewell is not None and not self.pipeline:
            self._say(self._farewell)

    def _unset_keepalive_if_required(self) -> None:
        """Not for each request: the timer looks for itself whether there was one."""
        if self.timeout_keep_alive_task is not None and self.gone:
            super()._unset_keepalive_if_required()

    def send_400_response(self, msg: str) -> None:
        """Say why this cannot go on, after the answers that come before, and close."""
        self._end(problems.HEADERS if self._too_large else problems.BAD_REQUEST)

    def timeout_keep_alive_handler(self) -> None:
        """Nothing more came; what the client has not read by now it does not want."""
        self.transport.abort()

    def shutdown(self) -> None:
        """Take no more requests; answer those that came."""
        super().shutdown()
        if self._running is not None:
            self._running.keep_alive = not self.pipeline and self._running.keep_alive
        if self.transport.is_closing():
            self._end_soon()

    # The application's call

    async def drain(self) -> None:
        """Wait until the client has read enough of what it was sent before, or is gone."""
        if self.flow.write_paused and not self.gone:
            await self.flow.drain()

    def respond(
        self, status: int, headers: list[tuple[bytes, bytes]], body: bytes, held: Sequence[Held]
    ) -> None:
        """Answer the running request, in one write: what ASGI's two messages do, at a third of their cost.

        `held` are claims to take back where the client surely does not get this.
        """
        self.handing_over = held
        if self.gone:
            self._take_back()
            return
        cycle = cast(RequestResponseCycle, self._running)
        if CLOSE in headers:
            cycle.keep_alive = False
        elif not cycle.keep_alive:
            headers.append(CLOSE)
        cycle.response_started = cycle.response_complete = True
        text = b"".join([b"%b: %b\r\n" % header for header in headers])
        head = STATUS_LINE[status] + text + _date(cycle.default_headers)
        self.transport.write(b"%b\r\n%b" % (head, body))
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def _take_back(self) -> None:
        for gate, wire, owner in self.handing_over:
            gate.release_later(wire, owner)
        self.handing_over = ()

    # Bounds

    @property
    def _idle(self) -> bool:
        """Nothing is asked, and nothing watches over it: before the first request, or in empty lines after one."""
        answered = self.cycle is None or self.cycle.response_complete
        return answered and self.timeout_keep_alive_task is None

    def _hurry(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self._limits.request_timeout, self._overdue)

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

    def _end(self, farewell: Problem) -> None:
        """Answer what came whole, then this, and close. What came in part is dropped."""
        self._farewell = farewell
        self._relax()
        partial = not self._whole and self.cycle is not None and self.cycle.more_body
        if partial and self.pipeline and self.pipeline[0][0] is self.cycle:
            self.pipeline.popleft()
        running = self._running
        if running is None or running.response_complete or (partial and running is self.cycle):
            self._say(farewell)

    def _say(self, farewell: Problem) -> None:
        if self.transport.is_closing():
            return
        if self._running is None or self._running.response_complete or not self._running.response_started:
            self.transport.write(_response(farewell))
        self.transport.close()
        self._end_soon()

    def _end_soon(self) -> None:
        """Closing waits for the client to read what is left: not for ever."""
        self._relax()
        self._timer = self.loop.call_later(self._limits.request_timeout, self.transport.abort)


_dated: tuple[Any, bytes] = (None, b"")


def _date(headers: list[tuple[bytes, bytes]]) -> bytes:
    """Return uvicorn's own headers as text; it makes them anew each second."""
    global _dated
    if _dated[0] is not headers:
        _dated = headers, b"".join(b"%b: %b\r\n" % header for header in headers)
    return _dated[1]


def _size(url: bytes, headers: list[tuple[bytes, bytes]]) -> int:
    return len(url) + sum(len(name) + len(value) + 4 for name, value in headers)


def _response(problem: Problem) -> bytes:
    body = orjson.dumps(problem.facts(problem.about))
    head = b"content-type: application/problem+json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    return STATUS_LINE[problem.status] + head % len(body) + body
