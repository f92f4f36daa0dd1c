"""An HTTP request, from its first byte to its answer, and the flow of the connection that it came on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import httptools
import orjson

from ..hangup import HangupWatch
from ..request_memory import PLACE

STATUS_LINE = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
"""The first line of an answer, by its status."""
HIGH_WATER = 65536
"""Bytes of a body that may wait for the application; further ones are not read."""
MOST_HEADERS = 100
"""The headers that a request may have: a short one takes far more memory than it has bytes."""

_HEADER = 192
"""The bytes, about, that a header takes beside its own."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Gone(Exception):
    """The client hung up: it does not wait for an answer any more."""


class Flow:
    """Whether a connection reads, and whether its client does.

    A connection reads whenever it has room, because it is slow to notice that its client goes while it does not read.

    Args:
        transport: the connection's.
        gone: called when the client hangs up meanwhile.
    """

    __slots__ = ("_hangup", "_reading", "_transport", "_writable")

    def __init__(self, transport: asyncio.Transport, gone: Callable[[], object]) -> None:
        self._transport = transport
        self._hangup = HangupWatch(transport, gone)
        # Mutable: do we read; does the client.
        self._reading = True
        self._writable = asyncio.Event()
        self._writable.set()

    def read_while(self, room: bool) -> None:
        """Read while there is room, and stop reading while there is not."""
        if room is self._reading:
            return
        self._reading = room
        if room:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
            self._hangup.begin()

    def pause_writing(self) -> None:
        """Note that the client does not read."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Note that the client reads again, or has gone."""
        self._writable.set()

    async def drain(self) -> None:
        """Wait until the client has read the earlier answers, or has gone."""
        await self._writable.wait()


class HttpRequest:
    """A request: what has arrived of it, and whether it is answered."""

    __slots__ = (
        "_head_weight",
        "_news",
        "answered",
        "body",
        "expects_continue",
        "gone",
        "headers",
        "keep_alive",
        "method",
        "path",
        "query",
        "url",
        "whole",
    )

    def __init__(self) -> None:
        self.url = b""
        self.method = ""
        self.path = ""
        self.query = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.keep_alive = True
        # Mutable: the bytes, about, that it takes beside its body, once that was asked.
        self._head_weight = 0
        # Mutable: does the client wait for leave to send the body; the piece of the body that the application has not
        # taken yet; has the end of the request arrived; is it answered; has its client hung up; is there news of any
        # of these.
        self.expects_continue = False
        self.body = bytearray()
        self.whole = False
        self.answered = False
        self.gone = False
        self._news = asyncio.Event()

    def parse_url(self) -> None:
        """Set the path and the query.

        Raises:
            ValueError: the URL has no path that can be read.
        """
        try:
            parsed = httptools.parse_url(self.url)
        except httptools.HttpParserInvalidURLError as fault:
            raise ValueError(str(fault)) from None
        if parsed.path is None:
            raise ValueError("the URL has no path")
        path = parsed.path.decode("ascii")
        self.path = unquote(path) if "%" in path else path
        self.query = parsed.query or b""

    @property
    def sent_path(self) -> str:
        """The path with its escapes, unchanged."""
        return httptools.parse_url(self.url).path.decode("ascii")

    @property
    def head_bytes(self) -> int:
        """The bytes that its address and its headers take."""
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def weigh(self) -> int:
        """Return the bytes, about, that it takes until it is answered. Its headers have come."""
        if self.answered:
            return 0
        if not self._head_weight:
            self._head_weight = 4 * PLACE + self.head_bytes + _HEADER * len(self.headers)
        return self._head_weight + len(self.body)

    @property
    def has_body(self) -> bool:
        """True if its headers say that a body follows."""
        return any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)

    def tell(self) -> None:
        """Wake the task that waits for news of this request."""
        self._news.set()

    def hang_up(self) -> None:
        """Note that the client has gone."""
        self.gone = True
        self.tell()

    async def wait(self) -> None:
        """Wait for news: a piece of the body, its end, or that the client has gone.

        Raises:
            Gone: the client hung up, or the request is answered already.
        """
        if not self.gone and not self.answered:
            await self._news.wait()
            self._news.clear()
        if self.gone or self.answered:
            raise Gone

    def take(self) -> bytes:
        """Return the piece of the body that has arrived."""
        piece = bytes(self.body)
        self.body = bytearray()
        return piece

    def leave_to_send(self) -> bytes:
        """Return what must be sent before the client sends the body: often nothing."""
        expected, self.expects_continue = self.expects_continue, False
        return _CONTINUE if expected else b""


def is_chunked(coding: bytes, version: str) -> bool:
    """True for a body in chunks and in no other coding, which the parser would not take off.

    Only HTTP/1.1 has chunks: a proxy that speaks another version would see the body's end elsewhere. Spaces may
    follow a header's value, and the parser leaves them there.
    """
    return coding.rstrip().lower() == b"chunked" and version == "1.1"


def expects_leave(expectation: bytes, version: str) -> bool:
    """True if the client waits for leave to send the body.

    A client of HTTP/1.0 would take the leave for its answer.
    """
    return expectation.rstrip().lower() == b"100-continue" and version == "1.1"


def last_answer(problem: dict[str, Any], headers: bytes = b"") -> bytes:
    """Return a problem as a whole response, after which the connection closes. `headers`: further ones as lines."""
    body = orjson.dumps(problem)
    head = b"content-type: application/problem+json\r\n%bcontent-length: %d\r\nconnection: close\r\n\r\n"
    return STATUS_LINE[problem["status"]] + head % (headers, len(body)) + body
