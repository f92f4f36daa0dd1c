"""The state that the routes share: two `Dedup`s, the order book, the figures, the connection to the parent."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import cast

import anyio
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse

from fastdedup import Dedup, LocalLRU, Reject, UnavailableError

from .control import ControlLine
from .order_book import OrderBook
from .orphan import orphaned
from .pages import Html, ShopPage
from .sessions import COOKIE, Session, opened
from .settings import ShopSettings
from .stats import Tally

OUTAGE = "outage"
"""The cookie with the visitor's choice for a Redis that is down: "refuse" or "local"."""
GATE = "gate"
"""The cookie with the visitor's choice to go without fastdedup: "on" or "off"."""
_TICK = 0.25
_HEADERS = {
    # Not no-store, so that going back shows the form that was sent, with its token, and it can be sent again.
    "Cache-Control": "private, no-cache",
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}


class WebShop:
    """The shop in one worker."""

    def __init__(self, settings: ShopSettings) -> None:
        self.settings = settings
        self.folder = Path(settings.folder)
        self.tally = Tally(self.folder, settings.number)
        self.order_book = OrderBook(settings.order_book)
        self.control = ControlLine(on_end=lambda: orphaned(settings))
        self.dedup = Dedup(
            f"unix://{settings.redis_socket}?db=0",
            namespace="shop",
            ttl=3_600.0,
            token_ttl=settings.token_ttl,
            on_event=self.tally.on_event,
        )
        # Both have one namespace, so one set of records; they differ in their policy for outages.
        self._dedups = {
            "refuse": self.dedup.scoped("sale", on_unavailable=Reject()),
            "local": self.dedup.scoped("sale", on_unavailable=LocalLRU()),
        }

    @property
    def opens_in(self) -> float:
        """Seconds until the sale opens; negative once it has."""
        return self.settings.opens_at - time.time()

    def dedup_for(self, request: Request) -> Dedup:
        """Return the `Dedup` with the policy that this visitor has chosen."""
        return self._dedups[outage_of(request)]

    def session(self, request: Request) -> Session | None:
        """Return the visit of the person who is signed in, or None."""
        return opened(request.cookies.get(COOKIE, ""), self.settings.secret)

    def page(self, request: Request) -> ShopPage:
        """Return the frame of this visitor's page."""
        return ShopPage(
            session=self.session(request),
            outage=outage_of(request),
            gate=gate_is_on(request),
            stock=self.settings.stock,
            opens_at=self.settings.opens_at,
        )

    async def form(self, session: Session | None) -> str:
        """Return a token for a new form.

        The `Dedup` with the local policy issues it, whatever policy the visitor has chosen: while Redis is down this
        worker keeps the token, and once Redis is back the token is put there, so that the form can be sent.
        """
        return "" if session is None else await self._dedups["local"].tokens.issue(subject=session.subject)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Open the shop for the length of the block."""
        try:
            await self.control.open(self.settings.control_socket)
        except OSError:
            orphaned(self.settings)
            raise
        try:
            async with self.dedup:
                await self.control.ask("ready")
                async with self._ticking():
                    yield
        finally:
            self.control.close()
            self.order_book.close()

    @asynccontextmanager
    async def _ticking(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(self._tick)
            yield
            group.cancel_scope.cancel()

    async def _tick(self) -> None:
        while True:
            self.publish()
            self.order_book.look()
            with suppress(UnavailableError):
                # Orders would also notice an outage, but for minutes there may be no order.
                await self.dedup.get("heartbeat")
            await anyio.sleep(_TICK)

    def publish(self) -> None:
        """Write this worker's figures, for the other workers to read."""
        self.tally.write(self.dedup.breaker.value)


def shop_of(request: Request) -> WebShop:
    """Return the shop that an app was made for."""
    return cast(WebShop, cast(FastAPI, request.app).state.shop)


def outage_of(request: Request) -> str:
    """Return the visitor's policy for a Redis that is down: "refuse" by default, or "local"."""
    return "local" if request.cookies.get(OUTAGE) == "local" else "refuse"


def gate_is_on(request: Request) -> bool:
    """Return whether the visitor's orders go through fastdedup, as they do by default."""
    return request.cookies.get(GATE) != "off"


def shown(page: Html, status: int = 200) -> HTMLResponse:
    """Return a page as an HTTP response."""
    return HTMLResponse(page, status, _HEADERS)
