"""Forks: the actions of a forked child before any other code runs there, and the count of this process's forks.

No other module registers with `os.register_at_fork`, or compares process ids to find out.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from weakref import WeakSet

forks = 0
"""How often this process and those before it were forked. Always read `forking.forks`, because it changes."""


def in_each_child(action: Callable[[], object]) -> None:
    """Call `action` in every forked child from now on."""
    if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
        os.register_at_fork(after_in_child=action)


class InChild:
    """Calls `leave` in every forked child, for as long as this object is kept alive.

    `leave` disconnects an object from the things that the child must not share with its parent.
    """

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
    """Keep an object of another process, or of a dead thread, from the garbage collector.

    Closing a socket here, or a loop that watches one, could disturb the process that owns it.
    """
    _left_behind.append(thing)


def _count_and_leave() -> None:
    global forks
    forks += 1
    for each in list(_KEPT):
        each.forked()


in_each_child(_count_and_leave)
