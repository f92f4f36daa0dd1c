"""Runs a view under a claim, and settles it by what the view answers. Main path: `run` → `_finish`.

A view's response is captured once it is rendered; one that streams is passed on as it comes, and settles
at its end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from ...errors import DedupError
from ...sync import Claim
from ...web.problems import CLAIM_LOST, respond
from ...web.response import DEGRADED, UNSTORED, Response
from .bridge import AWAITING, BLOCKING, Bridge, drive
from .convert import mark, reply, response_of
from .settling import Hold, give_back, settle

_HOLD = "_fastdedup_hold"


def claim_of(request: HttpRequest) -> Claim | None:
    """Return the claim under which a view runs, a `fastdedup.sync.Claim`: its fence, whether it is lost.

    A view is not interrupted when its lease is lost: look at `lost` before what cannot be undone. None where
    the request came without a key or token.
    """
    hold = hold_of(request)
    return None if hold is None else hold.public


def hold_of(request: HttpRequest) -> Hold | None:
    """Return what a request holds."""
    return getattr(request, _HOLD, None)


async def run(bridge: Bridge, hold: Hold, request: HttpRequest, view: Callable[[], Any]) -> HttpResponse:
    """Run a view that shall run once.

    Raises:
        BaseException: whatever the view raises; then its claim is released.
    """
    setattr(request, _HOLD, hold)
    work = _run(bridge, hold, view)
    return await (work if hold.rule.on_disconnect == "cancel" else bridge.finish(work, _unsent))


async def _unsent(response: Any) -> None:
    """Settle by a response that would only have been settled while it was rendered, or sent."""
    if response.streaming:
        await sync_to_async(response.close)()
    elif callable(getattr(response, "render", None)):
        await sync_to_async(response.render)()


async def _run(bridge: Bridge, hold: Hold, view: Callable[[], Any]) -> HttpResponse:
    try:
        response = await bridge.view(view)
        if not isinstance(response, HttpResponseBase):
            raise TypeError(f"the view returned {response!r}, which is no response")
    except GeneratorExit:  # thrown away by its loop: nothing can be awaited any more
        raise
    except BaseException:
        with suppress(DedupError):  # the view's own error matters more
            await give_back(bridge, hold)
        raise
    return await _finish(bridge, hold, response)


async def _finish(bridge: Bridge, hold: Hold, response: HttpResponse) -> HttpResponse:
    if response.streaming:
        _watch(hold, response)
        return response
    if callable(getattr(response, "render", None)) and not response.is_rendered:
        _settle_once_rendered(hold, response)
        return response
    marks = await settle(bridge, hold, captured(hold, response))
    if marks is None:
        return reply(respond(CLAIM_LOST, docs=hold.held.docs, retry_after=hold.rule.retry_after))
    return mark(response, marks)


def _settle_once_rendered(hold: Hold, response: Any) -> None:
    """A TemplateResponse is rendered after its view, where middleware may still change what it says."""
    render = response.render

    def rendered() -> HttpResponse:
        del response.render  # for once
        return drive(_run(BLOCKING, hold, render))

    response.render = rendered


def captured(hold: Hold, response: HttpResponse) -> Response:
    """Return a response as it settles a claim."""
    return response_of(response, hold.rule.max_response, hold.held.mark)


# Streams


def _watch(hold: Hold, response: HttpResponse) -> None:
    """Settle when the stream ends, or the server closes it because its client has left."""
    watched = _AsyncStream if response.is_async else _Stream
    mark(response, [UNSTORED] + [DEGRADED] * hold.held.claim.degraded)
    end = captured(hold, response)
    response.streaming_content = watched(hold, end, response.streaming_content)


class _Ending:
    """Settles once, however a stream ends."""

    def __init__(self, hold: Hold, response: Response) -> None:
        self._hold = hold
        self._response = response
        # Mutable.
        self._over = False

    async def end(self, bridge: Bridge, *, failed: bool = False) -> None:
        if not self._over:
            self._over = True
            with suppress(DedupError):  # what was sent was sent
                if failed:
                    await give_back(bridge, self._hold)
                else:
                    await settle(bridge, self._hold, self._response)

    def close(self) -> None:
        """Called by Django with the response, in a thread that may block."""
        drive(self.end(BLOCKING))


class _Stream(_Ending):
    def __init__(self, hold: Hold, response: Response, chunks: Iterator[bytes]) -> None:
        super().__init__(hold, response)
        self._chunks = chunks

    def __iter__(self) -> _Stream:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._chunks)
        except StopIteration:
            drive(self.end(BLOCKING))
            raise
        except Exception:
            drive(self.end(BLOCKING, failed=True))
            raise


class _AsyncStream(_Ending):
    def __init__(self, hold: Hold, response: Response, chunks: AsyncIterator[bytes]) -> None:
        super().__init__(hold, response)
        self._chunks = chunks

    def __aiter__(self) -> _AsyncStream:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._chunks)
        except StopAsyncIteration:
            await self.end(AWAITING)
            raise
        except Exception:
            await self.end(AWAITING, failed=True)
            raise
