"""Finds out whether a request's handler runs in a thread. Such a handler cannot be cancelled."""

from __future__ import annotations

from functools import partial
from inspect import isasyncgenfunction, iscoroutinefunction, isfunction, ismethod
from typing import Any

from .lifespan import ASGIApp, Scope

_WSGI_ADAPTERS = ("WSGIMiddleware", "WsgiToAsgi", "WsgiToAsgiInstance")
"""Classes of a2wsgi, Starlette and asgiref: each runs a WSGI application in a thread."""


def runs_in_thread(scope: Scope, app: ASGIApp | None = None) -> bool:
    """Return whether a request's handler runs in a thread; False if that is not known.

    Args:
        scope: of the request, with the handler that a router has found.
        app: what the request was passed to.
    """
    handler = scope.get("route_handler")  # of Litestar
    if handler is not None:
        return bool(getattr(handler, "sync_to_thread", False))
    endpoint = scope.get("endpoint")  # of Starlette and FastAPI
    if isinstance(endpoint, type):  # Starlette's HTTPEndpoint has a method for each method of HTTP
        endpoint = getattr(endpoint, scope["method"].lower(), None)
    if is_plain_function(endpoint):
        return True
    return type(app if endpoint is None else endpoint).__name__ in _WSGI_ADAPTERS


def is_plain_function(call: Any) -> bool:
    """Return whether a handler is a `def` and no `async def`: Starlette and FastAPI run it in a thread."""
    while isinstance(call, partial):
        call = call.func
    plain = isfunction(call) or ismethod(call)
    return plain and not (iscoroutinefunction(call) or isasyncgenfunction(call))
