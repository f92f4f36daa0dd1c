"""aiohttp.web: `setup` puts the handlers under the ASGI middleware, which sees them as an ASGI application.

Main path: `setup` → `idempotency`, the middleware of aiohttp → `IdempotencyMiddleware` → `AiohttpRequest.handle`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Final, Unpack

from ..claim import Claim
from ..errors import ConfigError
from ..extras import needs
from ..gateway import Dedup
from ..web.fingerprints import json_fingerprint
from ..web.request import by_header, by_host, everyone
from ..web.response import own_reason
from ..web.rules import UUID, Route, RouteSettings, make_rules
from .asgi import IdempotencyMiddleware
from .http.exchange import CLAIM as SCOPE_CLAIM
from .http.exchange import REASON, RECORDER, STREAM
from .http.lifespan import Message, Receive, Scope, Send

with needs(__name__, "aiohttp", "'fastdedup[aiohttp]'"):
    from aiohttp import StreamReader, web

__all__ = ["UUID", "Route", "by_header", "by_host", "claim_of", "everyone", "json_fingerprint", "setup"]

CLAIM: Final = web.RequestKey("fastdedup.claim", Claim)
_BEGIN: Final[web.RequestKey[Any]] = web.RequestKey("fastdedup.begin", object)
"""The key of a request under which is what takes the head of a response that a guarded handler sends part by part."""
_REQUEST: Final = "fastdedup.request"
_OWN: Final = "fastdedup.own"
"""The key of a response's start under which is how many headers the handler has given it; a response without this
key stands in the place of the handler's own."""
_END: Final[Message] = {"type": "http.response.body", "body": b""}
_ENCODED_SLASH: Final = re.compile("%(?:25)*2F")
"""A slash within a segment, in a path whose slashes and percent signs are still encoded; and a text like that."""


def setup(
    app: web.Application,
    dedup: Dedup,
    *,
    routes: Sequence[Route | str] = ("/*",),
    docs: str | None = None,
    **settings: Unpack[RouteSettings],
) -> None:
    """Make requests with an Idempotency-Key happen once, and replay the first response to the others.

        app = web.Application(middlewares=[authentication])
        setup(app, dedup, principal=by_header("x-api-key"))

    It appends a middleware, so call it after those that authenticate were added. It opens `dedup` when the
    application starts, and closes it at the end, unless it was open before. Arguments, errors and records are those
    of `fastdedup.integrations.asgi.IdempotencyMiddleware`. A function of `settings` gets aiohttp's request as
    `request.source["aiohttp"]`, with what other middlewares have put there.

    Raises:
        ConfigError: also for `on_disconnect="cancel"`: the server cancels handlers, if it is run with
            `handler_cancellation=True`. Such a handler releases its key.
    """
    if any(rule.on_disconnect == "cancel" for rule in make_rules(routes, dict(settings))):
        raise ConfigError(
            "on_disconnect='cancel': aiohttp cancels the handlers whose clients have left for a whole server: run it "
            "with handler_cancellation=True"
        )
    guarded = IdempotencyMiddleware(_handled, dedup, routes=routes, docs=docs, **settings)

    @web.middleware
    async def idempotency(request: web.Request, handler: Any) -> web.StreamResponse:
        adapted = AiohttpRequest(request, handler)
        await guarded(adapted.scope, adapted.receive, adapted.send)
        if adapted.sending:
            raise ConnectionResetError("the claim was lost while its handler sent the response")
        if isinstance(adapted.response, web.HTTPException):
            raise adapted.response
        return adapted.response

    async def prepared(request: web.Request, response: web.StreamResponse) -> None:
        begin = request.pop(_BEGIN, None)
        if begin is not None:
            await begin(response)

    async def opened(_: web.Application) -> AsyncIterator[None]:
        async with nullcontext() if dedup.is_open else dedup:
            yield

    app.middlewares.append(idempotency)
    app.on_response_prepare.append(prepared)
    app.cleanup_ctx.append(opened)


def claim_of(request: web.Request) -> Claim | None:
    """Return the claim under which a request runs, with its `fence` and `lost`; None if it came without a key."""
    return request.get(CLAIM)


async def _handled(scope: Scope, receive: Receive, send: Send) -> None:
    """Run the handler: the application under `IdempotencyMiddleware`."""
    await scope[_REQUEST].handle(scope, receive, send)


class AiohttpRequest:
    """A request of aiohttp as the middleware sees it: its server, and its handler as an application."""

    response: web.StreamResponse

    def __init__(self, request: web.Request, handler: Any) -> None:
        self._request = request
        self._handler = handler
        # Mutable: the body so far; is the handler sending its response itself, part by part.
        self._pieces: list[bytes] = []
        self.sending = False
        self.scope: Scope = {
            "type": "http",
            "method": request.method,
            "path": path_of(request),
            "query_string": request.rel_url.raw_query_string.encode(),
            "headers": [(name.lower(), value) for name, value in request.raw_headers],
            "scheme": request.scheme,
            "aiohttp": request,
            _REQUEST: self,
        }
        if _BEGIN in request:  # by `setup` of an outer application
            self.scope[SCOPE_CLAIM] = request[CLAIM]

    async def receive(self) -> Message:
        """Give the middleware the next piece of the body.

        Raises:
            ConfigError: another middleware has taken the body, or a part of it.
        """
        payload = self._request._payload  # `content` would keep this one, also once it is replaced
        piece = await payload.readany()
        self._pieces.append(piece)
        if payload.at_eof() and sum(map(len, self._pieces)) < payload.total_bytes:
            piece = await self._request.read()  # what it has returned before, it returns again
            self._pieces = [piece]
            if len(piece) < payload.total_bytes:
                raise ConfigError(
                    "a middleware outside of fastdedup's has taken the request's body, so it cannot be compared: let "
                    "it use request.read(), or call setup() before it is added"
                )
        return {"type": "http.request", "body": piece, "more_body": not payload.at_eof()}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Give the handler its request, whose body it reads anew, and the middleware the response."""
        request = self._request
        recorder: Any = scope.get(RECORDER)
        if recorder is not None:
            request[CLAIM] = scope[SCOPE_CLAIM]
            if request.body_exists:
                request._payload = refilled(request, b"".join(self._pieces))
            request[_BEGIN] = partial(self._start, send, whole=False)
        try:
            response: web.StreamResponse = await self._handler(request)
        except web.HTTPException as raised:  # in aiohttp these are responses
            if self.sending:
                raise
            response = raised
        except OSError:
            left = request.transport is None or request.transport.is_closing()
            if left and self.sending and recorder.counts_in_part:
                await send(_END)
            raise
        finally:
            if recorder is not None:
                request.pop(_BEGIN, None)  # any other head is that of the server's own answer
        if not isinstance(response, web.StreamResponse):
            raise TypeError(f"{self._handler!r} must return a response, got {type(response).__name__}")
        content = response.body if isinstance(response, web.Response) else response
        whole = not response.prepared and (content is None or isinstance(content, bytes | bytearray))
        if not self.sending:
            await self._start(send, response, whole=whole)  # if it is not whole, the server reads a file
        self.response, self.sending = response, False
        await send({**_END, "body": bytes(content or b"")} if whole else _END)  # type: ignore[arg-type]

    async def _start(self, send: Send, response: web.StreamResponse, *, whole: bool) -> None:
        self.response, self.sending = response, not whole
        pairs = [*response.headers.items()]
        pairs += [("Set-Cookie", cookie.OutputString()) for cookie in response.cookies.values()]
        headers = [(name.lower().encode(), value.encode("utf-8", "surrogateescape")) for name, value in pairs]
        start = {"type": "http.response.start", "status": response.status, "headers": headers}
        reason = own_reason(response.status, response.reason)
        await send({**start, _OWN: len(headers), REASON: reason, STREAM: None if whole else True})

    async def send(self, message: Message) -> None:
        """Take the response: the handler's own with the middleware's marks, or the one in its place."""
        if message["type"] == "http.response.body":
            if message["body"] and isinstance(self.response, web.Response):
                self.response.body = message["body"]
        elif _OWN in message:
            for name, value in message["headers"][message[_OWN] :]:
                self.response.headers.add(name.decode(), value.decode())
        else:
            self.response = web.Response(status=message["status"], reason=message.get(REASON))
            for name, value in message["headers"]:
                if name != b"content-length":  # aiohttp counts the bytes itself
                    self.response.headers.add(name.decode(), value.decode("utf-8", "surrogateescape"))


def path_of(request: web.Request) -> str:
    """Return a request's path as text. A slash that was sent as %2F stays encoded, because it ends no segment.

    Otherwise `/orders/a%2Fb`, which aiohttp serves by `/orders/{id}`, would slip past the rule of that route; and
    `/c/1%2F2/3` and `/c/1/2%2F3`, which have other parameters, would be one request. If the text itself has %2F, its
    percent signs stay encoded as well, so that no two paths become one.
    """
    safe = request.rel_url.path_safe
    return safe if _ENCODED_SLASH.search(safe) else request.path


def refilled(request: web.Request, body: bytes) -> StreamReader:
    """Return a stream of a request's body. With less room it would stop the connection's reading."""
    stream = StreamReader(request.protocol, max(len(body), 1), loop=asyncio.get_running_loop())
    stream.feed_data(body)
    stream.feed_eof()
    return stream
