"""Warns of FastAPI's dependencies with `yield` that end after the response was stored and sent.

A commit that fails in such a dependency comes too late: the response has reported success, and is replayed.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from functools import partial
from inspect import isasyncgenfunction, isgeneratorfunction
from typing import Any

log = logging.getLogger("fastdedup.web")


def warn_of_late_exits(app: object, is_guarded: Callable[[Any], bool]) -> None:
    """Log a warning for each dependency of a guarded route that ends after the response.

    Args:
        app: an application of FastAPI, or what stands around one; others are left alone.
        is_guarded: tells of a route of FastAPI whether its responses are stored.
    """
    fastapi = fastapi_in(app)
    if fastapi is None:
        return
    told = set()
    for route in filter(is_guarded, routes_of(fastapi)):
        for dependency in dependencies_of(route.dependant):
            if _ends_late(dependency) and dependency.call not in told:
                told.add(dependency.call)
                log.warning(
                    "%s: the dependency %s() ends after the response is stored and sent. A commit in it that fails "
                    "comes too late, because the stored response reports success. Commit in the handler, or give "
                    'the dependency Depends(..., scope="function").',
                    route.path,
                    getattr(dependency.call, "__qualname__", type(dependency.call).__qualname__),
                )


def routes_of(app: Any) -> list[Any]:
    """Return the routes of an application of FastAPI."""
    # Newer versions keep routers nested, and list their routes by this function.
    listed = getattr(sys.modules["fastapi.routing"], "iter_route_contexts", iter)
    return [route for route in listed(app.routes) if hasattr(route, "dependant")]


def fastapi_in(app: object) -> Any:
    """Return the FastAPI application that is this one, or is within this one; None if there is none."""
    fastapi = sys.modules.get("fastapi")
    if fastapi is None:
        return None
    while app is not None and not isinstance(app, fastapi.FastAPI):
        app = getattr(app, "app", None)  # by custom, the attribute in which middleware has its application
    return app


def dependencies_of(dependant: Any) -> Iterator[Any]:
    """Yield the dependencies of a route, and theirs."""
    for dependency in dependant.dependencies:
        yield dependency
        yield from dependencies_of(dependency)


def bare(call: Any) -> Any:
    """Return the function that a `partial` calls, or the function itself."""
    while isinstance(call, partial):
        call = call.func
    return call


def _ends_late(dependency: Any) -> bool:
    """Return whether it is a generator that FastAPI ends after the response; so it does unless told otherwise."""
    call = bare(dependency.call)
    calls = (call, type(call).__call__)
    generates = any(isgeneratorfunction(one) or isasyncgenfunction(one) for one in calls)
    # Versions without scopes are left alone: there no other end could be chosen.
    return generates and getattr(dependency, "scope", "function") != "function"
