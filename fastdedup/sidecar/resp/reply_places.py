"""The places of commands in the order of their replies, and the commands that run in a task."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Final, NamedTuple, Protocol

from ...core.counters import outcome_of
from ...gateway import Dedup
from ...kernel.verbs import Keys
from ...stores.sidecar.wire import BY_NAME
from ..counters import Counters, is_bad
from ..releases import Grant
from ..reply_memory import LARGE
from ..turns import TaskLine, Turns
from ..wire_verbs import VERBS
from .errors import error_reply

_OUTLIVING: Final = {verb.usage.name for verb in VERBS if verb.of_owner} | {
    *(b"MULTI", b"EXEC", b"DISCARD", b"RESET", b"QUIT"),
}
"""The commands of what an owner does to its claim, and those that decide whether such a command runs."""
_OF_OWNERS: Final = {name for name, run in BY_NAME.items() if run.verb.row.keys is Keys.HELD}
"""The runs of an FD.RUN that owners do to their claims."""


def outlives(command: list[bytes]) -> bool:
    """True if a command runs though its client has gone: an owner's work is done, whatever became of the owner."""
    name = command[0].upper()
    return name in _OUTLIVING or (name == b"FD.RUN" and not _OF_OWNERS.isdisjoint(command[1:2]))


class ReplyPlace(Protocol):
    """A command's place in the order of replies."""

    reply: bytes | None
    """None until the command is answered."""
    size: int
    """The bytes of the command, and of what it may be granted, that it keeps until its reply is written."""
    grants: Sequence[Grant]
    """What the reply grants: it is taken back if the reply is never written."""


class Slot:
    """A command's place in the order of replies, without anything else."""

    __slots__ = ("reply", "size")

    grants: Sequence[Grant] = ()

    def __init__(self, reply: bytes | None = None) -> None:
        self.reply = reply
        self.size = 0


NO_PLACE: Final = Slot()
"""The place of no command."""


def kept_by(*places: ReplyPlace) -> int:
    """Return the bytes of these commands, of their replies, and of what they grant, while that is kept."""
    return sum([place.size + len(place.reply or b"") for place in places])


Work = Callable[[], Coroutine[Any, Any, tuple[bytes, str, Sequence[Grant]]]]
"""A command that runs in a task; returns the reply, in one word its outcome, for the counters, and what it grants."""


class Replies(Protocol):
    """Takes the replies of commands that run in a task: their connection."""

    counters: Counters
    at: float
    """When the latest bytes were read."""
    tasks: CommandTasks

    def answer(self, slot: ReplyPlace, reply: bytes) -> None:
        """Give a command its reply."""
        ...

    def answer_at_length(
        self, place: ReplyPlace, payload: bytes, build: Callable[[], bytes], again: Callable[[], None] | None
    ) -> None:
        """Give a command a large reply; see `RespConnection.answer_at_length`."""
        ...


class TaskCommand:
    """A command that runs in a task, and its place in the order of replies.

    `spawn` tells of its attributes; `since`: when it was read.
    """

    # No Slot: a compiled class with __call__ crashes if its base has none.
    __slots__ = (
        "connection",
        "dedup",
        "grants",
        "line",
        "repeatable",
        "reply",
        "since",
        "size",
        "verb",
        "work",
    )

    def __init__(
        self,
        connection: Replies,
        work: Work,
        dedup: Dedup,
        verb: str,
        since: float,
        line: TaskLine,
        *,
        repeatable: bool,
    ) -> None:
        self.reply: bytes | None = None
        self.grants: Sequence[Grant] = ()
        self.size = 0
        self.connection = connection
        self.work = work
        self.dedup = dedup
        self.verb = verb  # "" once it was counted
        self.since = since
        self.line = line
        self.repeatable = repeatable

    def run(self) -> None:
        """Run in a task, now or after earlier commands of its line."""
        self.line.add(self)

    async def __call__(self) -> None:
        """Answer with what the command returns or raises, and count that, the first time that it runs."""
        connection = self.connection
        try:
            reply, outcome, self.grants = await self.work()
        except Exception as fault:  # noqa: BLE001 -- the client gets every error as a reply
            connection.counters.bad_requests += is_bad(fault)
            reply, outcome = error_reply(fault), outcome_of(fault)
        if self.verb:
            name, took = self.dedup.settings.namespace, perf_counter() - self.since
            connection.counters.observe(name, self.verb, outcome, took)
            self.verb = ""
        if self.repeatable and len(reply) >= LARGE:
            connection.answer_at_length(self, reply, partial(bytes, reply), self.run)
        else:
            connection.answer(self, reply)


class CommandTasks(NamedTuple):
    """The tasks of one connection's commands.

    Attributes:
        brief: those of commands that do not wait.
        settling: those of what owners do to their claims, which also runs when the client has gone.
        patient: those of commands that wait for another owner.
        reading: those of commands that look at many keys.
    """

    brief: TaskLine
    settling: TaskLine
    patient: TaskLine
    reading: TaskLine

    def client_gone(self) -> None:
        """Cancel all but what an owner does to its claim."""
        for line in (self.brief, self.patient, self.reading):
            line.clear()


def tasks_of(turns: Turns) -> CommandTasks:
    """Return the tasks of a new connection."""
    places = (turns.brief, turns.brief, turns.waiting, turns.reading)
    return CommandTasks(*[TaskLine(each, "fastdedup-command") for each in places])


def spawn(
    connection: Replies,
    work: Work,
    dedup: Dedup,
    verb: str,
    *,
    repeatable: bool = False,
    waits: bool = False,
    reads: bool = False,
    settles: bool = False,
) -> ReplyPlace:
    """Run a command in a task, now or after its client's earlier ones; the reply is what it returns or raises.

    Args:
        connection: the client's.
        work: the command.
        dedup: its namespace's, for the metrics.
        verb: its name, for the metrics.
        repeatable: it may have a large reply, and then may run again.
        waits: it waits for a key, perhaps for long: then no command that does not wait follows it.
        reads: it looks at many keys and takes turns (`ReadTurns`): one of a client's at a time.
        settles: an owner does it to its claim.
    """
    tasks = connection.tasks
    line = tasks.settling if settles else tasks.patient if waits else tasks.reading if reads else tasks.brief
    command = TaskCommand(connection, work, dedup, verb, connection.at, line, repeatable=repeatable)
    command.run()
    return command
