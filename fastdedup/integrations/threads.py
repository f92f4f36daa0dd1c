"""Finds out whether a request's handler runs in a thread. Such a handler cannot be cancelled."""

from __future__ import annotations

from functools import partial
from inspect import isasyncgenfunction, iscoroutinefunction, isfunction, ismethod
from typing import Any

from .lifespan import Scope


def runs_in_thread(scope: Scope) -> bool:
    """Return whether the handler that a router has found runs in a thread; False if the scope does not name it."""
    handler = scope.get("route_handler")  # of Litestar
    if handler is not None:
        return bool(getattr(handler, "sync_to_thread", False))
    endpoint = scope.get("endpoint")  # of Starlette and FastAPI
    if isinstance(endpoint, type):  # Starlette's HTTPEndpoint has a method for each method of HTTP
        endpoint = getattr(endpoint, scope["method"].lower(), None)
    return is_plain_function(endpoint)


def is_plain_function(call: Any) -> bool:
    """Return whether a handler is a `def` and no `async def`: Starlette and FastAPI run it in a thread."""
    while isinstance(call, partial):
        call = call.func
    plain = isfunction(call) or ismethod(call)
    return plain and not (iscoroutinefunction(call) or isasyncgenfunction(call))
