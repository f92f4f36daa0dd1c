"""The places of commands in the order of their replies, and the commands that run in a task."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from ...gateway import Dedup
from ..turns import TaskLine


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
    """A command that runs in a task. `RespConnection.spawn` tells of its attributes; `since`: when it was read;
    `line`: the tasks that it follows.
    """

    __slots__ = ("dedup", "line", "repeatable", "since", "slot", "verb", "work")

    def __init__(
        self,
        slot: Slot,
        work: Work,
        dedup: Dedup,
        verb: str,
        since: float,
        line: TaskLine,
        *,
        repeatable: bool,
    ) -> None:
        self.slot = slot
        self.work = work
        self.dedup = dedup
        self.verb = verb  # "" once it was counted
        self.since = since
        self.line = line
        self.repeatable = repeatable
