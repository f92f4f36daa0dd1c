"""Claims for frameworks that authenticate inside of a Django view: after that, and before their operation runs.

An operation that returns a response needs `answered`. An operation whose result is made a response by its framework
needs two steps: `begun` around the operation, and `ended` around the framework's function that returns the response.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse

from .bridge import BLOCKING, Bridge
from .capture import abandon, finish, mark_held, note_commits, pending, run
from .convert import body_of
from .decorators import Operation
from .middleware import ReadBody, claimed
from .settling import Hold


async def answered(
    operation: Operation, request: HttpRequest, view: Callable[[], Any], read: ReadBody = body_of
) -> HttpResponse:
    """Answer a request whose synchronous operation returns a response."""
    got = await _claimed(BLOCKING, operation, request, read)
    if isinstance(got, Hold):
        return await run(BLOCKING, got, request, view)
    return await BLOCKING.view(view) if got is None else got


async def begun(operation: Operation, bridge: Bridge, request: HttpRequest, view: Callable[[], Any]) -> Any:
    """Run an operation under its claim. Return its result, or the answer to a request whose operation does not run.

    Raises:
        BaseException: any exception of the operation; then its claim is released.
    """
    got = await _claimed(bridge, operation, request, body_of)
    if got is None:
        return await _viewed(bridge, request, view)
    if not isinstance(got, Hold):
        return got
    got.pending = 500
    mark_held(request, got)
    with got.working():
        return await _viewed(bridge, request, view)


async def ended(operation: Operation, bridge: Bridge, request: HttpRequest, view: Callable[[], Any]) -> Any:
    """Run a framework's function around an operation, and settle the claim of `begun` by the response.

    Raises:
        BaseException: any exception of the framework; then the claim is released.
    """
    claims = operation.claims_of(request) if "HTTP_IDEMPOTENCY_KEY" in request.META else None
    work = _ended(bridge, request, view)
    if claims is None or claims.rule.on_disconnect == "cancel":
        return await work
    return await bridge.finish(work)


async def _claimed(
    bridge: Bridge, operation: Operation, request: HttpRequest, read: ReadBody
) -> Hold | HttpResponse | None:
    claims = operation.claims_of(request)
    if claims is None:
        return None
    got = await claimed(bridge, claims, request, read)
    if isinstance(got, Hold) and bridge is BLOCKING:  # Django has no transaction around an async view
        note_commits(got)
    return got


async def _viewed(bridge: Bridge, request: HttpRequest, view: Callable[[], Any]) -> Any:
    """Return what a view returns; after an error release the claim that waits for a response."""
    try:
        return await bridge.view(view)
    except GeneratorExit:  # the loop has dropped this coroutine, so it can no longer await
        raise
    except BaseException:
        await abandon(bridge, request)
        raise


async def _ended(bridge: Bridge, request: HttpRequest, view: Callable[[], Any]) -> Any:
    response = await _viewed(bridge, request, view)
    hold = pending(request)
    return response if hold is None else await finish(bridge, hold, request, response)
