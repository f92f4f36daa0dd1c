"""A request and its response, between an ASGI server and an application: the response settles the claim."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from ..errors import ClaimLostError
from ..web.answers import lost, streams
from ..web.request import RequestTooLarge
from ..web.response import DEGRADED, UNSTORED, Response
from .lifespan import ASGIApp, Message, Receive, Scope, Send
from .settling import HeldClaim, Marks, settle

EXCHANGE = "fastdedup.exchange"
"""The key of a scope under which the exchange is, from when it holds a claim."""
_GRACE = 0.1
"""Seconds in which an application that was told to stop may do so, before it is cancelled."""
_GONE = {"type": "http.disconnect"}
_CLIENT_GONE = 499
"""The status that nginx logs for a client that left."""
_UNSUPPORTED = frozenset(("http.response.pathsend", "http.response.zerocopysend", "http.response.trailers"))
"""Extensions of ASGI that would send a response past the capture."""


class AsgiExchange:
    """Takes the server's place for the application, which gets its `receive` and `send`.

    It keeps the request's body, up to a limit, so that the body can be digested before or after the application reads
    it. From `hold` on it holds the response back until that is whole and stored, so that nobody sees a result that a
    retry would not get.

    Args:
        limit: how many bytes of the request's body it keeps.
    """

    def __init__(self, receive: Receive, send: Send, limit: int) -> None:
        self._receive = receive
        self._send = send
        self._limit = limit
        # Mutable, of the request: its chunks, how many the application has, their size, and what came after.
        self._chunks: list[bytes] = []
        self._delivered = 0
        self._size = 0
        self._ended = False
        self._gone = False
        # Of the claim, once there is one: it, and who cancels the handler when the client leaves.
        self._held: HeldClaim | None = None
        self._task = asyncio.current_task()
        self._watcher: asyncio.Task[None] | None = None
        # Of stopping the handler: how many listen for the end, whether it was told, whether it was cancelled.
        self._listening = 0
        self._stopping = False
        self._cancelled = False
        self._timer: asyncio.TimerHandle | None = None
        self._news = asyncio.Event()
        # Of the response: its start, its body so far, and whether it goes straight through, is a stream, broke off as
        # the client was gone, is settled, over, came before the handler ran.
        self._start: Message | None = None
        self._body: list[bytes] = []
        self._body_size = 0
        self._passing = False
        self._streams = False
        self._torn = False
        self._settled = False
        self._over = False
        self._unreached = False

    # The request

    async def body(self) -> bytes | None:
        """Return the whole body, or None where the client left before it came.

        Raises:
            RequestTooLarge: the body exceeds the limit.
        """
        while not (self._ended or self._gone) and self._size <= self._limit:
            await self._pull()
        if self._size > self._limit:
            raise RequestTooLarge
        return b"".join(self._chunks) if self._ended else None

    async def _pull(self) -> None:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._gone = True
            return
        chunk = message.get("body", b"")
        self._size += len(chunk)
        self._ended = not message.get("more_body", False)
        if chunk or self._ended:  # there may be any number of empty pieces
            self._chunks.append(chunk)

    async def receive(self) -> Message:
        """Give the application the body, and later the end of the connection, once it may know of that."""
        while self._delivered == len(self._chunks) and not (self._ended or self._gone):
            await self._pull()
        if self._delivered < len(self._chunks):
            return self._next_chunk()
        if self._held is not None:
            await self._news_of_the_end()
        if not (self._gone or self._stopping):
            if self._watcher is None:
                return await self._receive()
            await asyncio.wait([self._watcher])
        return _GONE

    async def _news_of_the_end(self) -> None:
        """Wait until the application may know that the client left: a handler that finishes in any case may not."""
        self._listening += 1
        self._watch_for_listener()
        try:
            await self._news.wait()
        finally:
            self._listening -= 1

    def _watch_for_listener(self) -> None:
        """Tell a stream that its client left, because it may be endless, and no retry gets the rest of it."""
        if self._passing and self._listening and self._watcher is None:
            self._watcher = asyncio.ensure_future(self._watch())

    def _next_chunk(self) -> Message:
        chunk = self._chunks[self._delivered]
        if self._size > self._limit:
            self._chunks[self._delivered] = b""  # beyond the limit
        self._delivered += 1
        more = not self._ended or self._delivered < len(self._chunks)
        return {"type": "http.request", "body": chunk, "more_body": more}

    # The application

    async def answer(self, response: Response) -> None:
        """Send a response in the application's place."""
        await self._send(
            {"type": "http.response.start", "status": response.status, "headers": list(response.headers)}
        )
        await self._send({"type": "http.response.body", "body": response.body})

    def hold(self, held: HeldClaim) -> None:
        """Settle this claim by the response. Where the lease is lost, the handler is cancelled."""
        self._held = held
        held.claim._bind_body(self)  # the task that it cancels and uncancels
        if held.rule.on_disconnect == "cancel":
            self._watcher = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        """When the client leaves, cancel the handler, or only tell it where it finishes in any case."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        if self._held is not None and self._held.rule.on_disconnect == "finish":
            self._news.set()
        elif not self._settled:
            self.cancel()

    def cancel(self) -> None:
        """Stop the handler: tell it of the connection's end where it listens for that, else cancel it.

        A cancelled Django leaves its view running, but it cancels the view when it hears that the client is gone.
        """
        self._stopping = True
        self._news.set()
        if self._listening:
            self._timer = asyncio.get_running_loop().call_later(_GRACE, self._cancel)
        else:
            self._cancel()

    def _cancel(self) -> None:
        if not self._settled:
            self._cancelled = self._task is not None and self._task.cancel()

    def uncancel(self) -> int:
        """Take back a cancellation by `cancel`; return how many others there are."""
        if self._task is None:
            return 0
        cancelled, self._cancelled = self._cancelled, False
        return self._task.uncancel() if cancelled else self._task.cancelling()

    def unreached(self) -> None:
        """Take note that the request has not reached its handler: nothing of it is kept, unless the rule says so."""
        self._unreached = self._held is not None and not self._held.rule.keep_unreached

    @property
    def holds(self) -> bool:
        """True from `hold` on."""
        return self._held is not None

    async def run(self, app: ASGIApp, scope: Scope) -> None:
        """Run the application; release the claim unless a response settles it.

        Raises:
            BaseException: the application's exception, and its cancellation unless that was for the claim.
        """
        try:
            try:
                await app(scope, self.receive, self.send)
            finally:
                if self._timer is not None:
                    self._timer.cancel()
        except BaseException as error:
            if not await self._broke_off(error):
                raise
        else:
            await self._ran()
        finally:
            if self._watcher is not None:
                self._watcher.cancel()

    async def _ran(self) -> None:
        held = self._held
        if held is None:
            return
        if not self._settled and self._passing and not (self._stopping or self._streams):
            # Too large to be kept, and its client left: the part that was sent counts as the response.
            await self._settle(held, self._response(whole=False))
        if self._settled:
            held.claim._unbind()
            return
        try:
            await held.claim._leave(None, release=True)
        except ClaimLostError:  # the application has swallowed its cancellation, and has not answered
            await self._refuse_lost(held)
        else:
            if self._gone and self._stopping:
                await self._answer_nobody()

    async def _answer_nobody(self) -> None:
        """Answer a client that is gone: outer middleware (Starlette's BaseHTTPMiddleware) requires some response."""
        if not self._passing:
            with suppress(OSError):
                await self.answer(Response(_CLIENT_GONE, (), b""))

    async def _broke_off(self, error: BaseException) -> bool:
        """Release the claim. Return whether the error was fastdedup's own, and is dealt with."""
        held = self._held
        if held is None:
            return False
        cut = self._torn and not (self._settled or self._stopping or self._streams)
        if cut and isinstance(error, Exception):
            await self._settle(held, self._response(whole=False))  # the part that was sent is the response
            held.claim._unbind()
            return False
        try:
            await held.claim._leave(error)
        except ClaimLostError:
            await self._refuse_lost(held)
            return True
        if not (self._cancelled and self.uncancel() == 0):
            return False
        await self._answer_nobody()
        return True

    # The response

    async def send(self, message: Message) -> None:
        """Take a message from the application."""
        held = self._held
        if held is None or self._over:
            await self._send(message)
            return
        match message["type"]:
            case "http.response.start":
                self._start = message
                headers = message["headers"] = list(message.get("headers", ()))
                if any(streams(value) for name, value in headers if name.lower() == b"content-type"):
                    self._streams = True  # where its client leaves before its end, the key is free again
                    await self._pass_on()
            case "http.response.body" if self._start is not None:
                await self._take(held, message)
            case _:
                await self._send(message)

    async def _take(self, held: HeldClaim, message: Message) -> None:
        more = message.get("more_body", False)
        if not self._passing:
            self._body.append(message.get("body", b""))
            self._body_size += len(self._body[-1])
            if self._body_size <= held.rule.max_response:
                if not more:
                    await self._finish(held)
                return
            await self._pass_on()
            message = {"type": "http.response.body", "body": b"".join(self._body), "more_body": more}
            self._body.clear()
        if not more:
            await self._settle(held, self._response(whole=False))
            self._end()
        await self._send_on(message)

    async def _pass_on(self) -> None:
        """Let the response through as it comes: it is a stream, or too large to be kept."""
        assert self._start is not None
        self._passing = True
        self._watch_for_listener()
        marks = [UNSTORED, DEGRADED] if self._held and self._held.claim.degraded else [UNSTORED]
        await self._send_on({**self._start, "headers": [*self._start["headers"], *marks]})

    async def _send_on(self, message: Message) -> None:
        """Send a message. Where the client is gone a handler goes on, but a stream must end: it may be endless."""
        if self._gone and not self._passing:
            return
        try:
            await self._send(message)
        except OSError:
            self._gone = True
            if self._passing and not self._settled:
                self._torn = True
                raise

    async def _finish(self, held: HeldClaim) -> None:
        assert self._start is not None
        marks = await self._settle(held, self._response())
        self._end()
        if marks is None:
            await self._refuse_lost(held)
            return
        headers = self._start["headers"]
        await self._send_on({**self._start, "headers": [*headers, *marks]} if marks else self._start)
        await self._send_on({"type": "http.response.body", "body": b"".join(self._body)})

    def _end(self) -> None:
        self._over = True
        self._news.set()

    def _response(self, *, whole: bool = True) -> Response:
        """Return the response, without its body where that was not kept."""
        assert self._start is not None
        assert self._held is not None
        body = b"".join(self._body) if whole else b""
        return Response(self._start["status"], self._start["headers"], body, whole, self._held.mark)

    async def _refuse_lost(self, held: HeldClaim) -> None:
        if not self._passing:
            await self.answer(lost(held.rule, held.docs, outage=held.claim._lost_in_outage))

    # The claim

    async def _settle(self, held: HeldClaim, response: Response) -> Marks | None:
        self._settled = True
        if not held.claim.lost:
            held.claim._bind_body(None)  # the work is done: only the store knows now
        return await settle(held, response, undone=self._unreached)


def supported(scope: Scope, claim: Any) -> Scope:
    """Return the scope for the application: with the claim, and without extensions that would bypass the capture."""
    extensions = scope.get("extensions")
    scope = {**scope, "fastdedup.claim": claim}
    if extensions:
        scope["extensions"] = {name: it for name, it in extensions.items() if name not in _UNSUPPORTED}
    return scope
