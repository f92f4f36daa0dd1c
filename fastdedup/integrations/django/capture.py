"""Runs a view under a claim, and settles the claim by the view's response. Main path: `run` → `_finish`.

A view's response is captured once it is rendered. A stream is passed on part by part, and settles at its end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from django.core.signals import got_request_exception
from django.db import connections
from django.db.transaction import get_rollback, on_commit
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from ...errors import DedupError
from ...flows import drive, step
from ...sql.drivers.django import are_of_a_test
from ...sync import Claim
from ..http.threads import has_plain_operation
from .bridge import AWAITING, BLOCKING, Bridge, is_async
from .convert import mark, reply, take, tell_language
from .settling import Hold, give_back, settle, settle_later

_HOLD = "_fastdedup_hold"


def claim_of(request: HttpRequest) -> Claim | None:
    """Return the claim under which a view runs, a `fastdedup.sync.Claim`, for its `fence` and `lost`.

    A view is not interrupted when its lease is lost: check `lost` before a step that cannot be undone. Return None if
    the request has no key and no token.
    """
    hold = hold_of(request)
    return None if hold is None else hold.public


def hold_of(request: HttpRequest) -> Hold | None:
    """Return the claim that a request holds, with its background thread; None if it holds no claim."""
    return getattr(request, _HOLD, None)


def mark_held(request: HttpRequest, hold: Hold) -> None:
    """Set the claim that a request holds, for `claim_of` and `hold_of`."""
    setattr(request, _HOLD, hold)
    request.close = partial(_closed, request)  # Django calls it when the response is closed


async def run(bridge: Bridge, hold: Hold, request: HttpRequest, view: Callable[[], Any]) -> HttpResponse:
    """Run a view that must run once, and settle its claim.

    Raises:
        BaseException: any exception of the view; then its claim is released.
    """
    mark_held(request, hold)
    return await bridge.finish(_run(bridge, hold, request, view), partial(_cancels, bridge, hold, request))


def _cancels(bridge: Bridge, hold: Hold, request: HttpRequest) -> bool:
    """Return whether a client that leaves ends the view: one in a thread would go on beside the retry."""
    match = request.resolver_match
    awaited = not bridge.blocks and match is not None and is_async(match.func)
    return awaited and hold.recorder.cancels and not has_plain_operation(match.func, request.method)


async def _run(bridge: Bridge, hold: Hold, request: HttpRequest, view: Callable[[], Any]) -> HttpResponse:
    try:
        with hold.working():
            response = await bridge.view(view)
        if not isinstance(response, HttpResponseBase):
            raise TypeError(f"a view must return an HttpResponse, got {response!r}")
    except GeneratorExit:  # the loop has dropped this coroutine, so it can no longer await
        raise
    except BaseException:
        with suppress(Exception):  # the view's own error matters more
            await give_back(bridge, hold)
        raise
    return await finish(bridge, hold, request, response)


async def finish(bridge: Bridge, hold: Hold, request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """Settle by a view's response, now or once it is rendered or sent. Return the response to send."""
    tell_language(request, response)
    if hold.within:
        note_rollback(hold, response)
    if response.streaming:
        hold.recorder.cancels = _cancels(bridge, hold, request)
        _watch(hold, response)
        return response
    if callable(getattr(response, "render", None)) and not response.is_rendered:
        # After the view, middleware may still change a TemplateResponse.
        _settle_once_rendered(hold, request, response, response.render)
        return response
    if hold.within and any(_request_transactions()):
        _settle_after_transaction(hold, request, response)
        return response
    return await settle_by(bridge, hold, response)


async def settle_by(bridge: Bridge, hold: Hold, response: HttpResponse) -> HttpResponse:
    """Settle by a whole response. Return it with its marks, or the one that stands in its place."""
    take(hold.recorder, response)
    marks = await settle(bridge, hold)
    return reply(hold.recorder.refusal()) if marks is None else mark(response, marks)


def _settle_once_rendered(
    hold: Hold, request: HttpRequest, response: Any, render: Callable[[], Any], callbacks: Sequence[Any] = ()
) -> None:
    """Settle when the response is rendered, by `render`; then call `callbacks` with it."""

    def rendered() -> HttpResponse:
        hold.pending, hold.late = 0, None
        # So that it replaces the response's own render() only once.
        del response.render, response.fastdedup_unsent
        settled = drive(_run(BLOCKING, hold, request, render))
        for callback in callbacks:
            settled = callback(settled) or settled
        return settled

    response.render = hold.late = rendered
    response.fastdedup_unsent = _Unsent(hold)
    hold.pending = response.status_code


def _settle_after_transaction(hold: Hold, request: HttpRequest, response: Any) -> None:
    """Settle when the transaction of ATOMIC_REQUESTS has ended: Django renders a late response after that."""
    hold.within = False
    callbacks: list[Callable[[Any], Any]] = []  # of decorators around the view, such as gzip_page

    def render() -> Any:
        del response.is_rendered, response.add_post_render_callback
        return response

    _settle_once_rendered(hold, request, response, render, callbacks)
    response.is_rendered, response.add_post_render_callback = False, callbacks.append
    # For middleware that fills the context of each response that is rendered late.
    response.context_data, response.template_name = {}, None


# The transaction of ATOMIC_REQUESTS


def note_rollback(hold: Hold | None, response: Any) -> None:
    """Let a response that tells of success free its key if the view's transaction will be rolled back.

    A 4xx is kept all the same: it tells that nothing was done. If there are several databases, each must be rolled
    back: otherwise a retry would repeat what one of them has committed.
    """
    status = getattr(response, "status_code", 500)
    if hold is None or status >= 400:
        return
    rolled_back = [get_rollback(alias) for alias in _request_transactions()]
    if rolled_back and all(rolled_back):
        hold.recorder.undone = True
        hold.recorder.claim.settlement.warn(
            "responses of work that is rolled back",
            "%s: its view answered %d, and its transaction is rolled back: the key is freed, and a retry runs again",
            status,
        )


def _request_transactions() -> Iterator[str]:
    """Yield the databases inside of a transaction that ATOMIC_REQUESTS has begun around the view."""
    for alias, database in connections.settings.items():
        if database["ATOMIC_REQUESTS"] and connections[alias].in_atomic_block:
            yield alias


def note_commits(hold: Hold) -> None:
    """Let a hold note the COMMIT of the transactions around its view, before any other function of `on_commit`."""
    hold.within = True
    for alias in _request_transactions():
        if not are_of_a_test(connections[alias].atomic_blocks[:1]):  # such a test counts these functions
            hold.committed = False
            on_commit(partial(setattr, hold, "committed", True), using=alias)


# Claims whose response does not come


def pending(request: HttpRequest) -> Hold | None:
    """Return the claim of a request that waits for a response, once."""
    hold = hold_of(request)
    if hold is None or not hold.pending:
        return None
    hold.pending = 0
    return hold


async def abandon(bridge: Bridge, request: HttpRequest) -> None:
    """Release the claim of a request that waits for a response: the response will not come.

    If its work is committed, store the response that does not come, for a retry.
    """
    hold = hold_of(request)
    if hold is not None and hold.committed and hold.late is not None:
        with suppress(Exception):  # the error that prevents the response matters more
            hold.late()
        return
    hold = pending(request)
    if hold is not None:
        with suppress(Exception):  # the error that prevents the response matters more
            await give_back(bridge, hold)


def _failed(*, request: HttpRequest | None = None, **_: Any) -> None:
    """Release the claim of a request that Django answers 500: its transaction has failed at its end, for example."""
    if request is not None:
        drive(abandon(BLOCKING, request))


got_request_exception.connect(_failed, dispatch_uid="fastdedup")


def _closed(request: HttpRequest) -> None:
    """Settle if the view's response was never rendered, because another one was sent in its place."""
    vars(request).pop("close", None)  # it refers to the request
    request.close()
    hold = hold_of(request)
    if hold is not None and hold.pending:
        _take_unsent(hold)
        with suppress(DedupError):  # a response is sent already, so an error could not be shown
            drive(settle(BLOCKING, hold))


class _Unsent:
    """Settles when Django drops a response that it has not rendered: the client of a view in a thread has left."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold

    def __del__(self) -> None:
        if self._hold.pending:
            _take_unsent(self._hold)
            settle_later(self._hold, failed=False)


def _take_unsent(hold: Hold) -> None:
    told = "%s: its view's response was not sent, so none is stored"
    hold.recorder.claim.settlement.warn("responses that were not sent", told)
    status = 500 if hold.committed is False else hold.pending  # its COMMIT may have failed
    hold.recorder.start(status, (), stream=True)
    hold.pending, hold.late = 0, None


# Streams


def _watch(hold: Hold, response: HttpResponse) -> None:
    """Settle when the stream ends, or when the server closes it because the client has disconnected.

    Nothing here refers to the response: if Django drops it, it is collected at once, and its key is free. Only its
    own source may do so: that of a FileResponse does.
    """
    take(hold.recorder, response)
    mark(response, hold.recorder.marks(stored=False))
    # The source may go on working when it is closed.
    response._resource_closers[:] = map(hold.working(), response._resource_closers)
    has_own = type(response).make_bytes is not HttpResponseBase.make_bytes
    make_bytes = (response if has_own else HttpResponse(charset=response.charset)).make_bytes
    source = response._iterator
    if response.is_async:
        response.streaming_content = _AsyncStream(hold, (make_bytes(part) async for part in source))
    else:
        response.streaming_content = _Stream(hold, map(make_bytes, source))


class _Ending:
    """A stream, which settles the claim once, however it ends."""

    def __init__(self, hold: Hold, chunks: Any) -> None:
        self._hold = hold
        self._chunks = chunks

    async def part(self, bridge: Bridge, advance: Callable[..., Awaitable[bytes | None]]) -> bytes | None:
        """Return the next part, which `advance` gives, or None at the end. Settle then, or after an error."""
        try:
            with self._hold.working():
                chunk = await advance(self._chunks, None)
        except Exception:
            await self.end(bridge, failed=True)
            raise
        if chunk is None or self._hold.recorder.passes(len(chunk)):
            await self.end(bridge)
        return chunk

    async def end(self, bridge: Bridge, *, failed: bool = False) -> None:
        if not self._hold.recorder.settled:
            self._hold.recorder.settled = True
            with suppress(DedupError):  # the response is sent already, so an error could not be shown
                await (give_back(bridge, self._hold) if failed else settle(bridge, self._hold))

    def close(self) -> None:
        """Settle when the response is closed: if the stream has not ended, its client has left.

        Django calls this in a thread that may block.
        """
        drive(self.end(BLOCKING, failed=not self._hold.recorder.counts_in_part))

    def __del__(self) -> None:
        """Settle if Django has dropped the response: its client left before it began, or another one was sent."""
        recorder = self._hold.recorder
        if not recorder.settled:
            failed = not recorder.counts_in_part
            recorder.settled = True
            settle_later(self._hold, failed=failed)


_NEXT = step(next)


class _Stream(_Ending):
    def __iter__(self) -> _Stream:
        return self

    def __next__(self) -> bytes:
        chunk = drive(self.part(BLOCKING, _NEXT))
        if chunk is None:
            raise StopIteration
        return chunk


class _AsyncStream(_Ending):
    def __aiter__(self) -> _AsyncStream:
        return self

    async def __anext__(self) -> bytes:
        chunk = await self.part(AWAITING, anext)
        if chunk is None:
            raise StopAsyncIteration
        return chunk
