"""The places of commands in the order of their replies, and the commands that run in a task."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from ...core.counters import outcome_of
from ...gateway import Dedup
from ..counters import Counters, is_bad
from ..reply_memory import LARGE
from ..turns import TaskLine, Turns
from .errors import error_reply


class ReplyPlace(Protocol):
    """A command's place in the order of replies."""

    reply: bytes | None
    """None until the command is answered."""
    size: int
    """The bytes of the command that it keeps until then, if they are many."""


class Slot:
    """A command's place in the order of replies, without anything else."""

    __slots__ = ("reply",)

    size = 0

    def __init__(self, reply: bytes | None = None) -> None:
        self.reply = reply


Work = Callable[[], Coroutine[Any, Any, tuple[bytes, str]]]
"""A command that runs in a task; returns the reply, and in one word its outcome, for the counters."""


class TaskCommand:
    """A command that runs in a task, and its place in the order of replies.

    `RespConnection.spawn` tells of its attributes; `since`: when it was read; `tasks`: those of its connection.
    """

    # No Slot: a compiled class with __call__ crashes if its base has none.
    __slots__ = ("dedup", "line", "repeatable", "reply", "since", "size", "tasks", "verb", "work")

    def __init__(
        self,
        tasks: CommandTasks,
        work: Work,
        dedup: Dedup,
        verb: str,
        since: float,
        line: TaskLine,
        *,
        repeatable: bool,
    ) -> None:
        self.reply: bytes | None = None
        self.size = 0
        self.tasks = tasks
        self.work = work
        self.dedup = dedup
        self.verb = verb  # "" once it was counted
        self.since = since
        self.line = line
        self.repeatable = repeatable

    def __call__(self) -> Coroutine[Any, Any, None]:
        """Return what runs in the task."""
        return self.tasks.answer_with(self)

    def run(self) -> None:
        """Run in a task, now or after earlier commands of its line."""
        self.line.add(self)


class Replies(Protocol):
    """Takes the replies of commands that run in a task: their connection."""

    def answer(self, slot: ReplyPlace, reply: bytes) -> None:
        """Give a command its reply."""
        ...

    def answer_at_length(
        self, place: ReplyPlace, payload: bytes, build: Callable[[], bytes], again: Callable[[], None] | None
    ) -> None:
        """Give a command a large reply; see `RespConnection.answer_at_length`."""
        ...


class CommandTasks:
    """The tasks of one connection's commands, and how each of them is answered.

    Args:
        replies: the connection.
        turns: the places of tasks, of all clients.
        counters: count what was answered.
    """

    def __init__(self, replies: Replies, turns: Turns, counters: Counters) -> None:
        self._replies = replies
        self._counters = counters
        self.brief = TaskLine(turns.brief, "fastdedup-command")
        """The tasks of commands that do not wait."""
        self.patient = TaskLine(turns.waiting, "fastdedup-command")
        """The tasks of commands that wait for another owner."""
        self._reads = TaskLine(turns.reading, "fastdedup-command")

    def line(self, *, waits: bool, reads: bool) -> TaskLine:
        """Return the line of a command that waits for a key, of one that looks at many, or of any other."""
        return self.patient if waits else self._reads if reads else self.brief

    def clear(self) -> None:
        """Cancel all: the client has gone."""
        for line in (self.brief, self.patient, self._reads):
            line.clear()

    async def answer_with(self, command: TaskCommand) -> None:
        """Answer with what the command returns or raises, and count that, the first time that it runs."""
        try:
            reply, outcome = await command.work()
        except Exception as fault:  # noqa: BLE001 -- the client gets every error as a reply
            self._counters.bad_requests += is_bad(fault)
            reply, outcome = error_reply(fault), outcome_of(fault)
        if command.verb:
            self._counters.answered(command.dedup, command.verb, outcome, command.since)
            command.verb = ""
        if command.repeatable and len(reply) >= LARGE:
            self._replies.answer_at_length(command, reply, partial(bytes, reply), command.run)
        else:
            self._replies.answer(command, reply)
