"""Counts the answers to orders: an ASGI middleware around the whole application."""

from __future__ import annotations

from time import perf_counter

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .stats import Tally, box_of

_ORDERS = {"/orders", "/api/orders"}
PAYING = "paying"
"""The name in `request.state` of the payment's seconds, which are not fastdedup's time."""
BOX = "Shop-Answer"
"""The response header with the answer's kind, for the page's own count."""


class Watch:
    """Counts each order's answer in a tally, by its kind and its duration, and tells the page the kind."""

    def __init__(self, app: ASGIApp, tally: Tally) -> None:
        self._app = app
        self._tally = tally

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http" or scope["path"] not in _ORDERS or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        started = perf_counter()
        state = scope.setdefault("state", {})

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[BOX] = box = _box(message["status"], headers)
                self._tally.answered(box, seconds=perf_counter() - started - state.get(PAYING, 0.0))
            await send(message)

        await self._app(scope, receive, counting)


def _box(status: int, headers: MutableHeaders) -> str:
    return box_of(status, replayed="idempotency-replayed" in headers, later="retry-after" in headers)
