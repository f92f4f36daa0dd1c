"""Counts the answers to orders: an ASGI middleware around the whole application."""

from __future__ import annotations

from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .stats import Tally

_ORDERS = {"/orders", "/api/orders"}
PAYING = "paying"
"""The name in `request.state` of the payment's seconds, which are not fastdedup's time."""


class Watch:
    """Counts each order's answer in a tally: its status, whether it is a replay, and its duration."""

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
                replayed = any(name.lower() == b"idempotency-replayed" for name, _ in message["headers"])
                seconds = perf_counter() - started - state.get(PAYING, 0.0)
                self._tally.answered(message["status"], replayed=replayed, seconds=seconds)
            await send(message)

        await self._app(scope, receive, counting)
