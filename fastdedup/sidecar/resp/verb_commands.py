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
from .claim_commands import SlowRedeem
from .connection import Command, RespConnection
from .frames import OK, encode
from .options import Answerer, CommandOptions, check_count, read_command, read_options
from .reply_places import ReplyPlace, spawn


def answer(
    verb: WireVerb,
    value_of: Callable[[Any], Any] | None,
    connection: RespConnection,
    options: CommandOptions,
) -> ReplyPlace:
    """Answer a command of a verb; `value_of`: see `VerbWork`.

    The task ends with the client, except an owner's: no client reads the answer then, so FD.FIRST remembers nothing.
    """
    home, begun = BEGIN[verb.name](connection.namespaces, options, connection.peer)
    dedup = dedup_of(home)
    work = VerbWork(connection, begun, dedup, value_of)
    shows, turns, settles = verb.shows, verb.turns, verb.of_owner
    place = spawn(connection, work, dedup, verb.name, repeatable=shows, reads=turns, settles=settles)
    if verb.name == "first":
        place.size = len(options.ids) * REMEMBERED
    return place


class VerbWork:
    """The work of a verb's command; see `SlowClaim` for the protocol of its reply.

    A client may have 1,000 of these, and a function in its place takes 0.3 kB more.

    Args:
        connection: the client's.
        begun: does what the command asks for.
        dedup: the namespace's.
        value_of: makes the reply's value of what that returns; None for what an owner does to its claim: the reply is
            OK.
    """

    __slots__ = ("_begun", "_connection", "_dedup", "_resp3", "_value_of")

    def __init__(
        self,
        connection: RespConnection,
        begun: Callable[[], Coroutine[Any, Any, Any]],
        dedup: Dedup,
        value_of: Callable[[Any], Any] | None,
    ) -> None:
        self._connection = connection
        self._dedup = dedup
        self._resp3 = connection.resp3
        self._begun = begun
        self._value_of = value_of

    async def __call__(self) -> tuple[bytes, str, Sequence[Grant]]:
        """Return the reply, its outcome, and what it grants."""
        found = await self._begun()
        grants: Sequence[Grant] = ()
        if type(found) is Undoable:
            found, grants = found
        if self._value_of is not None:
            return encode(self._value_of(found), self._resp3), outcome_found(found), grants
        self._connection.namespaces.ephemeral.changed(self._dedup, found)
        return OK, "ok", grants


def redeem(connection: RespConnection, options: CommandOptions) -> ReplyPlace:
    """Answer FD.REDEEM: the reply is that of a claim."""
    home = connection.namespaces.dedup(options.namespace)
    return SlowRedeem(connection, home, options.token, options.subject, options).run("redeem")


# Reading a command

_NO_NAMES: Final = frozenset({"OWNER", "NS"})
"""No ledger is meant by these words, also in a command that does not take such an option: that is a mistake."""


def run(
    usage: Usage,
    read: Callable[[Usage, list[bytes]], CommandOptions],
    answerer: Answerer,
    connection: RespConnection,
    command: list[bytes],
) -> ReplyPlace:
    """Read a command of a verb, and answer it."""
    return answerer(connection, read(usage, command))


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


def answerer_of(verb: WireVerb) -> Answerer:
    """Return what answers the commands of a verb."""
    if verb.name == "redeem":
        return redeem
    return partial(answer, verb, None if verb.of_owner else _VALUES[verb.name])


def command_of(verb: WireVerb) -> Command:
    """Return the command of a verb."""
    read = read_of_ledger if verb.of_ledger else read_command
    return partial(run, verb.usage, read, answerer_of(verb))


COMMANDS: dict[bytes, Command] = {verb.usage.name: command_of(verb) for verb in VERBS if verb.name != "claim"}
