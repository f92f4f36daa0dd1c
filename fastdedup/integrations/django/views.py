"""Decorating views: functions and methods, sync and async; and where a transaction of theirs ends."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.db import connections, transaction
from django.http import HttpRequest

from ...errors import ConfigError
from ...web.rules import Rule
from .bridge import AWAITING, BLOCKING, Bridge, drive

Handle = Callable[[Bridge, HttpRequest, Callable[[], Any]], Coroutine[Any, Any, Any]]


def wrap(view: Callable[..., Any], handle: Handle) -> Callable[..., Any]:
    """Return the view with `handle` in front of it, sync or async as the view is."""
    if is_async(view):

        @functools.wraps(view)
        async def awaited(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            check_request(request)
            return await handle(AWAITING, request, lambda: view(request, *args, **kwargs))

        return awaited

    @functools.wraps(view)
    def called(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        check_request(request)
        run = _atomic(view, called._non_atomic_requests)  # type: ignore[attr-defined] # set below
        return drive(handle(BLOCKING, request, lambda: run(request, *args, **kwargs)))

    called._non_atomic_requests = _Every()  # type: ignore[attr-defined] # Django's own mark
    return called


def is_async(view: Callable[..., Any]) -> bool:
    """Return whether a view is awaited; `dispatch` of a class of async handlers is, and does not look like it."""
    owner = getattr(getattr(view, "func", None), "__self__", None)
    return iscoroutinefunction(view) or bool(getattr(owner, "view_is_async", False))


def check_settings(rule: Rule, view: Callable[..., Any]) -> None:
    """Check what holds for a view.

    Raises:
        ConfigError: it is no view, or runs in a thread, and is to be cancelled.
    """
    if not callable(view):
        raise ConfigError(f"this decorates a view, not {view!r}; its arguments are named ones")
    if rule.on_disconnect == "cancel" and not is_async(view):
        raise ConfigError(
            "on_disconnect='cancel' is for async views: a sync one runs in a thread, which cannot be cancelled, and "
            "would go on beside the retry"
        )


def check_request(request: Any) -> None:
    """Raise ConfigError for what is no request: `self`, say."""
    if not hasattr(request, "META"):
        raise ConfigError(
            f"a view's first argument is a request, not {request!r}: decorate a class with "
            '@method_decorator(..., name="dispatch")'
        )


class _Every(set[str]):
    """All databases: ATOMIC_REQUESTS would commit outside of us, after the result is stored. `_atomic` does it."""

    def __contains__(self, alias: object) -> bool:
        return True


def _atomic(view: Callable[..., Any], outside: set[str]) -> Callable[..., Any]:
    """Return the view in the transactions that ATOMIC_REQUESTS asks for."""
    without = {*getattr(view, "_non_atomic_requests", ()), *outside}
    for alias, database in connections.settings.items():
        if database["ATOMIC_REQUESTS"] and alias not in without:
            view = transaction.atomic(using=alias)(view)
    return view
