"""The commands of all verbs but FD.CLAIM: each is read by its usage, and its verb's work runs in a task.

The options of a ledger's command stand before the ledger's name. After the name, everything is an id, and an id
may be any bytes, "OWNER" too. The reply has a 1 for each id that is new (FD.FIRST) or remembered (FD.SEEN), else a 0.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

import orjson

from ...gateway import Dedup
from ..counters import outcome_found
from ..releases import REMEMBERED, Grant, Undoable
from ..verbs import BEGIN, dedup_of
from ..wire_verbs import VERBS, Usage, WireVerb
from .claim_commands import SlowClaim
from .connection import Command, RespConnection
from .frames import OK, encode
from .options import CommandOptions, check_count, read_command, read_options
from .reply_places import ReplyPlace
from .task_commands import Result, TaskCommand


def run(verb: WireVerb, connection: RespConnection, command: list[bytes]) -> ReplyPlace:
    """Answer a command of a verb.

    The task ends with the client, except an owner's: no client reads the answer then, so FD.FIRST remembers nothing.
    """
    options = (read_of_ledger if verb.of_ledger else read_command)(verb.usage, command)
    if verb.name == "redeem":
        redeemed, token = connection.namespaces.dedup(options.namespace), options.token
        return SlowClaim(connection, command, "redeem", redeemed, token, options.subject, options).run()
    home, begun = BEGIN[verb.name](connection.namespaces, options, connection.peer)
    place = VerbCommand(connection, command, verb, dedup_of(home), begun)
    if verb.name == "first":
        granted = len(options.ids) * REMEMBERED
        place.size += granted
        connection.taken += granted
    return place.run()


class VerbCommand(TaskCommand):
    """A command of a verb.

    Args:
        connection: the client's.
        command: its parts.
        verb: the verb.
        dedup: the namespace's.
        begun: does what the command asks for.
    """

    __slots__ = ("_begun",)

    def __init__(
        self,
        connection: RespConnection,
        command: list[bytes],
        verb: WireVerb,
        dedup: Dedup,
        begun: Callable[[], Coroutine[Any, Any, Any]],
    ) -> None:
        tasks = connection.tasks
        line = tasks.settling if verb.of_owner else tasks.reading if verb.turns else tasks.brief
        super().__init__(connection, command, dedup, verb.name, line, repeatable=verb.shows)
        self._begun = begun

    async def work(self) -> Result:
        """Do it, and make the reply's value of what was found."""
        found = await self._begun()
        value_of = _VALUE_OF[self.verb]
        if value_of is None:
            self.connection.namespaces.ephemeral.changed(self.dedup, found)
            return OK, "ok", ()
        grants: Sequence[Grant] = ()
        if type(found) is Undoable:
            found, grants = found
        return encode(value_of(found), self.resp3), outcome_found(found), grants


# Reading a command

_NO_NAMES: Final = frozenset({"OWNER", "NS"})
"""No ledger is meant by these words, also in a command that does not take such an option: that is a mistake."""


def read_of_ledger(usage: Usage, command: list[bytes]) -> CommandOptions:
    """Return the arguments of a ledger's command; errors as of `read_command`."""
    at = 1
    names = usage.options | _NO_NAMES
    while command[at : at + 1] and command[at][:16].upper().decode(errors="replace") in names:
        at += 2
    options = read_options(command[:at], 1, usage)
    check_count(command, at - 1 + usage.least, usage.text)
    options.ledger, options.ids = command[at], command[at + 1 :]
    if len(usage.places) == 1:
        check_count(command, at + 1, usage.text, most=at + 1)  # it takes no ids
    return options


# Replies


def in_json(found: dict[str, Any] | None) -> bytes | None:
    """Return facts as JSON, or None for null."""
    return None if found is None else orjson.dumps(found)


def numbers(found: list[bool]) -> list[int]:
    """Return a 1 or a 0 for each id."""
    return [int(each) for each in found]


_VALUES: Final[dict[str, Callable[[Any], Any]]] = {
    "issue": lambda found: found["token"],
    "consume": lambda verdict: verdict.outcome.value,
    "forget": int,
    **dict.fromkeys(("get", "list", "ledger"), in_json),
    **dict.fromkeys(("first", "seen", "forget_id"), numbers),
}
"""What makes the reply's value of what was found, for the verbs that are not an owner's."""
_VALUE_OF: Final = {
    verb.name: None if verb.of_owner else _VALUES[verb.name] for verb in VERBS if verb.name in BEGIN
}
"""The same for every verb that has its work in `BEGIN`; None: the reply is OK."""


COMMANDS: dict[bytes, Command] = {
    verb.usage.name: partial(run, verb) for verb in VERBS if verb.name != "claim"
}
