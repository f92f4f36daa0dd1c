"""What a forked child must not share with its parent is let go of there, before anything else runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from weakref import WeakSet


class InChild:
    """Calls `leave` in every forked child, for as long as somebody keeps this."""

    __slots__ = ("__weakref__", "_leave")

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave
        _KEPT.add(self)

    def forked(self) -> None:
        """This is a child."""
        self._leave()


_KEPT: WeakSet[InChild] = WeakSet()


def _leave_all() -> None:
    for each in list(_KEPT):
        each.forked()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_leave_all)
