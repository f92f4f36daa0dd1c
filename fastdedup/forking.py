"""Disconnects a forked child, before any other code runs there, from the objects that it must not share."""

from __future__ import annotations

import os
from collections.abc import Callable
from weakref import WeakSet


class InChild:
    """Calls `leave` in every forked child, for as long as this object is kept alive."""

    __slots__ = ("__weakref__", "_leave")

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave
        _KEPT.add(self)

    def forked(self) -> None:
        """Call `leave`: this process is a forked child."""
        self._leave()


_KEPT: WeakSet[InChild] = WeakSet()
_left_behind: list[object] = []


def leave_behind(thing: object) -> None:
    """Keep what another process, or a dead thread, has left from the collector.

    Closing a socket here, or a loop that watches one, could disturb the process that owns it.
    """
    _left_behind.append(thing)


def _leave_all() -> None:
    for each in list(_KEPT):
        each.forked()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_leave_all)
