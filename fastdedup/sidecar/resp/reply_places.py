"""The places of commands in the order of their replies, and the tasks of commands."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from ...kernel.verbs import Keys
from ...stores.sidecar.wire import BY_NAME
from ..releases import Grant, claims_of, take_back
from ..turns import TaskLine, Turns
from ..wire_verbs import VERBS

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


def take_answered(places: deque[ReplyPlace], untold: list[ReplyPlace]) -> None:
    """Move the places that are answered and grant something to `untold`; undo now what has no lease there."""
    answered = [place for place in places if place.reply is not None]
    waiting = [place for place in places if place.reply is None]
    places.clear()
    places.extend(waiting)
    untold += [place for place in answered if place.grants]
    for place in untold:
        if place.grants:
            place.grants = claims_of(place.grants)


def undo(most: int, places: list[ReplyPlace]) -> None:
    """Take back what the first places grant, and remove these."""
    for place in places[:most]:
        take_back(place.grants)
    del places[:most]


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
