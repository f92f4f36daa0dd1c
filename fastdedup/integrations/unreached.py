"""Sees the errors by which FastAPI answers a request before its handler runs: nothing is kept of such a request.

FastAPI checks parameters and body after its dependencies have run, so a claim is held by then, and it shows the error
to the application's exception handlers alone. Here these handlers tell the recorder first.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from inspect import isawaitable
from traceback import walk_tb
from typing import Any
from weakref import WeakSet

from ..checks import is_async
from .http.exchange import RECORDER, WORK
from .http.late_exits import fastapi_in
from .http.lifespan import ASGIApp, Receive, Scope, Send

Handler = Callable[[Any, Exception], Any]
_HANDLERS = "starlette.exception_handlers"
_SOLVING = ("fastapi.dependencies.utils", "solve_dependencies")
_ENDPOINT = ("fastapi.routing", "run_endpoint_function")
_CHECKING = ("fastapi.routing", "app")
_watched: WeakSet[Any] = WeakSet()
"""The applications that are watched."""


def watch(app: object) -> None:
    """Watch the errors of a FastAPI application from its next request on; other applications are left alone.

    `IdempotencyMiddleware` calls it for the application in which, or around which, it stands. Call it for a FastAPI
    application that is mounted below a path of the one that has the middleware.
    """
    found = fastapi_in(app)
    if found is not None and found not in _watched:
        _watched.add(found)
        found.router.middleware_stack = _FirstRequest(found.router)


def watch_handlers(scope: Scope) -> None:
    """Let the exception handlers of a request's application tell of errors, from this request on."""
    for handlers in scope.get(_HANDLERS, ()):
        for kind, handler in handlers.items():
            if isinstance(handler, _Telling):
                return  # all of them do since an earlier request
            handlers[kind] = _Telling(handler)


class _FirstRequest:
    """Stands before an application's routes until a request shows the exception handlers, which are in its scope."""

    def __init__(self, router: Any) -> None:
        self._router = router
        self._routes: ASGIApp = router.middleware_stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if _HANDLERS in scope:
            self._router.middleware_stack = self._routes
            watch_handlers(scope)
        await self._routes(scope, receive, send)


class _Telling:
    """An exception handler that tells the recorder of an error that came before the endpoint."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._is_async = is_async(handler)

    async def __call__(self, connection: Any, error: Exception) -> Any:
        from starlette.concurrency import run_in_threadpool

        recorder, work = connection.scope.get(RECORDER), connection.scope.get(WORK)
        if work is not None:
            with suppress(Exception):  # in the words of `begin`, which come too late
                await work.roll_back(error)
        elif recorder is not None and not recorder.committed and before_endpoint(error):
            recorder.undone = not recorder.rule.keep_unreached
        if self._is_async:
            return await self._handler(connection, error)
        response = await run_in_threadpool(self._handler, connection, error)
        return await response if isawaitable(response) else response


def before_endpoint(error: Exception) -> bool:
    """Return whether FastAPI's own check of the request raised an error, or a dependency before the endpoint ran.

    If that is not certain, return False: a request that may have had an effect must not run again.
    """
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    frames = [
        (frame.f_globals.get("__name__"), frame.f_code.co_name) for frame, _ in walk_tb(error.__traceback__)
    ]
    if _ENDPOINT in frames:
        return False
    checked = isinstance(error, RequestValidationError | HTTPException) and frames[-1:] == [_CHECKING]
    return checked or _SOLVING in frames
