"""Transports of httpx that make an Idempotency-Key for each request, and retry under it.

    client = httpx.Client(transport=IdempotentTransport())
    client = httpx.AsyncClient(transport=AsyncIdempotentTransport(httpx.AsyncHTTPTransport(http2=True)))

They are below the client's redirects and logins: each request of these has its own attempts.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Self

from ..extras import needs
from ..flows import drive, step
from .rules import RetryRules

with needs(__name__, "httpx", "'fastdedup[httpx]'"):
    import anyio
    import httpx

__all__ = ["AsyncIdempotentTransport", "IdempotentTransport", "RetryRules"]

LOST = (httpx.TimeoutException, httpx.NetworkError, httpx.RemoteProtocolError, httpx.ProxyError)
"""The errors after which it is unknown whether the server has the request."""
_READ, _CLOSE = step(httpx.Request.read), step(httpx.Response.close)


class IdempotentTransport(httpx.BaseTransport):
    """Sends requests through another transport, with a key and, if it is safe, again.

    Use it for servers that know the header: a server that ignores it executes each attempt. The last response is
    returned, with any status, or the last error is raised. `request.headers` has the key; after a
    redirect only a key of your own.

    Args:
        wrapped: the transport that sends; `httpx.HTTPTransport()` by default. Settings of connections (`verify`,
            `http2`, `limits`, `proxy`) belong to it, because httpx ignores the client's own beside `transport=`.
        rules: see `RetryRules`.
        sleep: waits between attempts; `time.sleep` by default.
    """

    def __init__(
        self,
        wrapped: httpx.BaseTransport | None = None,
        *,
        rules: RetryRules | None = None,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._wrapped = httpx.HTTPTransport() if wrapped is None else wrapped
        self._rules = RetryRules() if rules is None else rules
        self._sleep = step(time.sleep if sleep is None else sleep)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request until its answer is final. The main path."""
        return drive(final_response(self._rules, request, _READ, self._answer, _CLOSE, self._sleep))

    async def _answer(self, request: httpx.Request, repeatable: bool) -> httpx.Response:
        """Send a request once. A short response is read here, so that a loss in its middle can be repaired.

        A step that blocks, for `drive`.
        """
        response = self._wrapped.handle_request(request)
        if repeatable and self._rules.fits(response.headers):
            stream = response.stream
            assert isinstance(stream, httpx.SyncByteStream)
            try:
                response.stream = httpx.ByteStream(b"".join(stream))
            finally:
                stream.close()
        return response

    def close(self) -> None:
        """Close the transport that sends."""
        self._wrapped.close()

    def __enter__(self) -> Self:
        self._wrapped.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._wrapped.__exit__(exc_type, exc_value, traceback)


class AsyncIdempotentTransport(httpx.AsyncBaseTransport):
    """Like `IdempotentTransport`, for `httpx.AsyncClient`, under asyncio and trio.

    Args:
        wrapped: the transport that sends; `httpx.AsyncHTTPTransport()` by default.
        rules: see `RetryRules`.
        sleep: waits between attempts; `anyio.sleep` by default.
    """

    def __init__(
        self,
        wrapped: httpx.AsyncBaseTransport | None = None,
        *,
        rules: RetryRules | None = None,
        sleep: Callable[[float], Awaitable[object]] | None = None,
    ) -> None:
        self._wrapped = httpx.AsyncHTTPTransport() if wrapped is None else wrapped
        self._rules = RetryRules() if rules is None else rules
        self._sleep = anyio.sleep if sleep is None else sleep

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request until its answer is final. The main path."""
        read, close = httpx.Request.aread, httpx.Response.aclose
        return await final_response(self._rules, request, read, self._answer, close, self._sleep)

    async def _answer(self, request: httpx.Request, repeatable: bool) -> httpx.Response:
        response = await self._wrapped.handle_async_request(request)
        if repeatable and self._rules.fits(response.headers):
            stream = response.stream
            assert isinstance(stream, httpx.AsyncByteStream)
            try:
                response.stream = httpx.ByteStream(b"".join([part async for part in stream]))
            finally:
                await stream.aclose()
        return response

    async def aclose(self) -> None:
        """Close the transport that sends."""
        await self._wrapped.aclose()

    async def __aenter__(self) -> Self:
        await self._wrapped.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._wrapped.__aexit__(exc_type, exc_value, traceback)


async def final_response(
    rules: RetryRules,
    request: httpx.Request,
    read: Callable[[httpx.Request], Awaitable[object]],
    answer: Callable[[httpx.Request, bool], Awaitable[httpx.Response]],
    close: Callable[[httpx.Response], Awaitable[object]],
    sleep: Callable[[float], Awaitable[object]],
) -> httpx.Response:
    """Send a request until its answer is final. A flow of both transports: see `fastdedup.flows`."""
    attempts = rules.begin(request.method, request.headers, str(request.url))
    if attempts is None:
        return await answer(request, False)
    if not isinstance(request.stream, httpx.ByteStream) and rules.fits(request.headers):
        await read(request)  # a file or a form, short enough to keep in memory
    attempts.repeatable = isinstance(request.stream, httpx.ByteStream)
    send = partial(answer, request, attempts.repeatable)
    response: httpx.Response = await attempts.final_response(send, close, sleep, LOST)
    if attempts.made and response.has_redirect_location:
        request.headers.pop(rules.header, None)  # its copy goes to another address
    return response
