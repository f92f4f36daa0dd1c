"""The places of commands in the order of their replies, and the commands that run in a task."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from ...gateway import Dedup


class ReplyPlace(Protocol):
    """A command's place in the order of replies."""

    reply: bytes | None
    """None until the command is answered."""


class Slot:
    """A command's place in the order of replies, without anything else."""

    __slots__ = ("reply",)

    def __init__(self, reply: bytes | None = None) -> None:
        self.reply = reply


Work = Callable[[], Coroutine[Any, Any, bytes]]
"""A command that runs in a task; returns the reply."""


class TaskCommand:
    """A command that runs in a task. `RespConnection.spawn` tells of its attributes; `since`: when it was read."""

    __slots__ = ("dedup", "repeatable", "since", "slot", "verb", "waits", "work")

    def __init__(
        self,
        slot: Slot,
        work: Work,
        dedup: Dedup,
        verb: str,
        since: float,
        *,
        repeatable: bool,
        waits: bool,
    ) -> None:
        self.slot = slot
        self.work = work
        self.dedup = dedup
        self.verb = verb  # "" once it was counted
        self.since = since
        self.repeatable = repeatable
        self.waits = waits
