"""Finds out whether a request's handler runs in a thread. Such a handler cannot be cancelled."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import partial, update_wrapper
from inspect import (
    isasyncgenfunction,
    isclass,
    isfunction,
    isgeneratorfunction,
    ismethod,
    unwrap,
)
from threading import Lock
from typing import Any, Final, TypeVar

from .late_exits import bare, dependencies_of
from .lifespan import ASGIApp, Scope

if sys.version_info >= (3, 13):
    from inspect import iscoroutinefunction
else:
    from asyncio import iscoroutinefunction  # as Starlette does: it also knows the mark of older decorators

T = TypeVar("T")

IN_THREADS: Final = "_fastdedup_in_threads"
"""The attribute of a dependency whose transaction functions in threads may use."""
_WSGI_ADAPTERS = frozenset(("WSGIMiddleware", "WsgiToAsgi", "WsgiToAsgiInstance"))
"""Classes of a2wsgi, Starlette and asgiref: each runs a WSGI application in a thread."""
_DJANGO = ("django.core.handlers.asgi", "ASGIHandler")
_NINJA = ("ninja.operation", "PathView")
_INNER = ("app", "application", "inner")
"""The attributes in which middleware has its application by custom; the last two are those of Django, Channels."""
_DEEPEST = 100
"""The number of middlewares, one in the other, that are looked through."""
_CALLS: ContextVar[CallsInThreads | None] = ContextVar("fastdedup_calls_in_threads", default=None)


def runs_in_thread(scope: Scope, app: ASGIApp | None = None, running: Any = None) -> bool:
    """Return whether a request's handler runs in a thread; False if that is not known.

    If a framework also runs dependencies in a thread, the answer is True until the async handler is seen at work.

    Args:
        scope: of the request, with the handler that a router has found.
        app: what the request was passed to.
        running: the coroutine that `app` returned.
    """
    endpoint = scope.get("endpoint")  # of Starlette and FastAPI
    handler = scope.get("route_handler")
    if handler is not None and endpoint is None:
        return _litestar_threads(handler, scope, running)
    dependant = getattr(route_of(scope), "dependant", None)
    if dependant is not None:
        threads = any(not is_awaited(one.call) for one in dependencies_of(dependant))
        return not is_awaited(endpoint) or (threads and not _is_at_work(endpoint, running))
    if isclass(endpoint):  # Starlette's HTTPEndpoint has a method for each method of HTTP
        endpoint = getattr(endpoint, scope["method"].lower(), None)
        return endpoint is not None and not is_async(endpoint)
    if isfunction(bare(endpoint)) or ismethod(bare(endpoint)):
        return not is_async(endpoint)
    return _ends_in_thread(app if endpoint is None else endpoint, scope)


def _litestar_threads(handler: Any, scope: Scope, running: Any) -> bool:
    if not hasattr(handler, "sync_to_thread"):  # it mounts an ASGI application
        return _ends_in_thread(handler.fn, scope)
    threads = any(one.sync_to_thread for one in handler.resolve_dependencies().values())
    return bool(handler.sync_to_thread) or (threads and not _is_at_work(handler.fn, running))


def is_async(call: Any) -> bool:
    """Return whether a handler is async, by Starlette's rule: it is an `async def`, or its `__call__` is one."""
    call = bare(call)
    both = (call, type(call).__call__)
    return not isclass(call) and any(iscoroutinefunction(one) or isasyncgenfunction(one) for one in both)


def is_awaited(call: Any) -> bool:
    """Return whether FastAPI awaits a handler or dependency, and does not run it in a thread.

    It also awaits the result of a decorator's plain function, if the decorated function is async.
    """
    return is_async(call) or is_async(unwrap(bare(call)))


class CallsInThreads:
    """The plain functions that one request runs in threads: a cancelled request lets go of its thread."""

    def __init__(self) -> None:
        # Mutable: the ends of the calls that have begun; True once no further one may begin.
        self._ends: list[Future[None]] = []
        self._closed = False
        self._lock = Lock()

    def run(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a function. Raise CancelledError if it may not begin any more."""
        end: Future[None] = Future()
        with self._lock:
            if self._closed:
                raise CancelledError
            self._ends.append(end)
        try:
            return call(*args, **kwargs)
        finally:
            end.set_result(None)

    def close(self) -> list[Future[None]]:
        """Let no further call begin, and return the ends of the others."""
        with self._lock:
            self._closed = True
        return self._ends


def calls_of(scope: Scope) -> CallsInThreads:
    """Return the calls of a request's plain handler and dependencies, from now on."""
    tell_calls(route_of(scope).dependant)  # of a route that was added late
    calls = CallsInThreads()
    _CALLS.set(calls)
    return calls


def tell_calls(dependant: Any) -> None:
    """Run the plain functions that may use a transaction as calls of their requests. Others are left alone.

    FastAPI reads some functions before it calls others, so call it before a request.
    """
    for one in (dependant, *dependencies_of(dependant)):
        uses = any(hasattr(needed.call, IN_THREADS) for needed in dependencies_of(one))
        if uses and not (is_awaited(one.call) or isinstance(one.call, _Told)):
            call = unwrap(bare(one.call))
            generates = any(map(isgeneratorfunction, (call, type(call).__call__)))
            # Some versions do not look behind a decorator, and say so here.
            generates = getattr(one, "is_gen_callable", generates) and one is not dependant
            one.call = (_ToldGenerator if generates else _Told)(one.call)


class _Told:
    """A plain function that is run as one of its request's calls. FastAPI finds its override, because it is equal."""

    __wrapped__: Callable[..., Any]

    def __init__(self, call: Callable[..., Any]) -> None:
        update_wrapper(self, call, updated=())
        # For FastAPI's lowest version, which evaluates annotations in them if there are overrides.
        self.__globals__ = getattr(call, "__globals__", {})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _run(self.__wrapped__, *args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return bool(self.__wrapped__ == (other.__wrapped__ if isinstance(other, _Told) else other))

    def __hash__(self) -> int:
        return hash(self.__wrapped__)


class _ToldGenerator(_Told):
    """A dependency with `yield`: FastAPI runs its first part in a thread, and its last one."""

    def __call__(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        parts = contextmanager(self.__wrapped__)(*args, **kwargs)
        value = _run(parts.__enter__)
        with ExitStack() as stack:
            stack.push(partial(_run, parts.__exit__))
            try:
                yield value
            except (
                GeneratorExit
            ):  # FastAPI has dropped it: its function ends by itself, if its call may not begin
                stack.pop_all()
                raise


def _run(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    calls = _CALLS.get()
    return call(*args, **kwargs) if calls is None else calls.run(call, *args, **kwargs)


def route_of(scope: Scope) -> Any:
    """Return the route of a request; None if it is not told. FastAPI tells it with the prefixes of nested routers."""
    return scope.get("fastapi", {}).get("effective_route_context") or scope.get("route")


def _is_at_work(call: Any, running: Any) -> bool:
    """Return whether a coroutine awaits an async function, itself or through others; False if that is not seen."""
    call = bare(call)
    code = getattr(call, "__code__", None) or getattr(type(call).__call__, "__code__", None)
    while running is not None:
        frame = getattr(running, "cr_frame", None)
        if code is not None and frame is not None and frame.f_code is code:
            return True
        running = getattr(running, "cr_await", None)
    return False


def _ends_in_thread(app: Any, scope: Scope) -> bool:
    """Return whether an ASGI application is, or has in it, one that calls its handlers in a thread."""
    for _ in range(_DEEPEST):
        if any(kind.__name__ in _WSGI_ADAPTERS for kind in type(app).__mro__):
            return True
        if _is(_DJANGO, app):
            return not _has_async_view(scope)
        app = _inner(app)
        if app is None:
            break
    return False


def _inner(app: Any) -> Any:
    for name in _INNER:
        found = getattr(app, name, None)
        if callable(found):
            return found
    by_protocol = getattr(app, "application_mapping", None)  # of ProtocolTypeRouter of Channels
    return by_protocol.get("http") if isinstance(by_protocol, dict) else None


def _has_async_view(scope: Scope) -> bool:
    """Return whether Django's view for a request is async; False if the view is not found."""
    from asgiref.sync import iscoroutinefunction as is_async_view
    from django.conf import settings
    from django.urls import resolve

    mount = settings.FORCE_SCRIPT_NAME or scope.get("root_path", "")
    try:
        view = resolve(scope["path"].removeprefix(mount), settings.ROOT_URLCONF).func
    except Exception:  # noqa: BLE001 -- middleware may choose other patterns, and a converter may raise any error
        return False
    return is_async_view(view) and not has_plain_operation(view, scope["method"])


def has_plain_operation(view: Any, method: str) -> bool:
    """Return whether a Django view is one of Ninja that runs a plain operation for this method, in a thread.

    Ninja's view of a path is async if one operation of the path is async.
    """
    owner: Any = getattr(view, "__self__", None)  # of a method, in older versions of Ninja
    if owner is None and isfunction(view):
        cells = dict(zip(view.__code__.co_freevars, view.__closure__ or (), strict=True))
        with suppress(KeyError, ValueError):  # there is none, or it is empty
            owner = cells["self"].cell_contents
    operations = owner.operations if _is(_NINJA, owner) else ()
    chosen = next((one for one in operations if method in one.methods), None)
    return chosen is not None and not chosen.is_async


def _is(named: tuple[str, str], thing: Any) -> bool:
    """Return whether an object is of a class with this module and name, without an import of that."""
    return any((kind.__module__, kind.__name__) == named for kind in type(thing).__mro__)
