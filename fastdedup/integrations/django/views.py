"""Decorates views, sync and async, functions and methods; keeps a view's transaction inside of the decorator."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from threading import Event
from typing import Any

from django.db import connections, transaction
from django.http import HttpRequest

from ...errors import ConfigError
from ...web.rules import Rule
from .bridge import Bridge, Flow, is_async, over_bridge
from .capture import hold_of, note_rollback

log = logging.getLogger("fastdedup.web")


def wrap(view: Callable[..., Any], handle: Flow) -> Callable[..., Any]:
    """Return a view that calls `handle` with this view; it is sync or async as this view is."""

    def checked(bridge: Bridge, request: HttpRequest, run: Callable[[], Any]) -> Coroutine[Any, Any, Any]:
        check_request(request)
        return handle(bridge, request, run)

    if is_async(view):
        return over_bridge(view, checked)
    marks = _Every()

    @functools.wraps(view)
    def atomic(*args: Any, **kwargs: Any) -> Any:
        return _atomic(view, marks)(*args, **kwargs)

    called = over_bridge(atomic, checked)
    called._non_atomic_requests = marks  # type: ignore[attr-defined] # Django's own mark
    return called


def check_settings(rule: Rule, view: Callable[..., Any]) -> None:
    """Check that a view can be decorated with these settings.

    Raises:
        ConfigError: the object is not a view, or it runs in a thread but `on_disconnect` wants to cancel it.
    """
    if not callable(view):
        raise ConfigError(
            f"a view must be decorated, got {view!r}: call the decorator's arguments by their names"
        )
    if rule.on_disconnect == "cancel" and not is_async(view):
        raise ConfigError(
            f"on_disconnect='cancel' needs an async view, got {view!r}: it runs in a thread, which cannot be "
            "cancelled and would go on beside the retry; use on_disconnect='finish'"
        )


def check_request(request: Any) -> None:
    """Raise ConfigError if a view's first argument is not a request, for example `self`."""
    if not hasattr(request, "META"):
        raise ConfigError(
            f"a view's first argument must be a request, got {request!r}: decorate a class with "
            '@method_decorator(..., name="dispatch")'
        )


class _Every(set[str]):
    """All databases: Django's own transaction would end after the result is stored, so `_atomic` makes it instead."""

    def __contains__(self, alias: object) -> bool:
        return True


def _atomic(view: Callable[..., Any], outside: set[str]) -> Callable[..., Any]:
    """Return the view inside of the transactions that ATOMIC_REQUESTS asks for."""
    without = {*getattr(view, "_non_atomic_requests", ()), *outside}

    def run(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        hold = hold_of(request)
        within = transaction.atomic if hold is None else committing
        with ExitStack() as transactions:
            for alias, database in reversed(connections.settings.items()):  # as Django begins them
                if database["ATOMIC_REQUESTS"] and alias not in without:
                    transactions.enter_context(within(using=alias))
            response = view(request, *args, **kwargs)
            note_rollback(hold, response)
        return response

    return run


@contextmanager
def committing(using: str, *, durable: bool = False) -> Iterator[None]:
    """Within the block: a transaction. An error of a function of `on_commit` is logged: the work is committed."""
    is_of_a_test, committed = connections[using].in_atomic_block, Event()
    try:
        with transaction.atomic(using=using, durable=durable):
            if not is_of_a_test:  # such a test counts these functions
                transaction.on_commit(committed.set, using=using)
            yield
    except Exception:
        if not committed.is_set():
            raise
        log.exception("the work is committed, but a function of on_commit failed")
