"""The table of all RESP commands, and MULTI, behind which another table counts.

Those of verbs come from the table of verbs. A command that has to wait returns
`connection.spawn(work, dedup, verb)`: the reply is what the async function `work` returns or raises.
"""

from __future__ import annotations

from functools import partial

from ...errors import ConfigError
from ..access import Access
from ..wire_verbs import VERBS
from . import claim_commands, client_commands, store_commands, verb_commands
from .connection import Command, RespConnection
from .frames import OK, error
from .reply_places import ReplyPlace


def multi(connection: RespConnection, command: list[bytes]) -> bytes:
    """`MULTI`: refuse all commands up to `EXEC` or `DISCARD`. Otherwise the commands of the transaction would run.

    The reply is Redis's OK. A client that gets an error here (phpredis) sends no EXEC or DISCARD, and all its further
    commands would be refused.
    """
    connection.answer_only(_BEHIND_MULTI)
    return OK


def execute(connection: RespConnection, command: list[bytes]) -> bytes:
    """`EXEC` behind a MULTI: nothing was run."""
    connection.answer_only(None)
    return error("EXECABORT", "Transaction discarded: there is no MULTI, send a pipeline instead.")


def discard(connection: RespConnection, command: list[bytes]) -> bytes:
    """`DISCARD` behind a MULTI, or `RESET`."""
    connection.answer_only(None)
    return b"+RESET\r\n" if command[0].upper() == b"RESET" else OK


def skip(connection: RespConnection, command: list[bytes]) -> bytes:
    """Any other command behind a MULTI: it is not run."""
    raise ConfigError("not run: there is no MULTI, and this stands in one: send DISCARD, then a pipeline")


# The table

COMMANDS: dict[bytes, Command] = {
    **claim_commands.COMMANDS,
    **verb_commands.COMMANDS,
    **client_commands.COMMANDS,
    b"MULTI": multi,
    **store_commands.REFUSALS,
}
WITH_STORES: dict[bytes, Command] = COMMANDS | store_commands.COMMANDS
"""The commands of a socket that also serves `sidecar://` stores."""
VERB_OF: dict[bytes, str] = {verb.usage.name: verb.rule for verb in VERBS}
"""The verb of each command, one of `access.VERBS`. FD.RUN asks the rules for itself."""


def commands_of(access: Access, *, stores: bool) -> dict[bytes, Command]:
    """Return the commands of a socket: a command that has rules there asks them before it runs."""
    commands = WITH_STORES if stores else COMMANDS
    ruled = {name: verb for name, verb in VERB_OF.items() if access.judges(verb)}
    return commands | {name: partial(judged, access, verb, commands[name]) for name, verb in ruled.items()}


def judged(
    access: Access, verb: str, run: Command, connection: RespConnection, command: list[bytes]
) -> bytes | ReplyPlace:
    """Run a command that the socket's rules allow."""
    connection.count_pending()
    access.admit(verb)
    return run(connection, command)


_BEHIND_MULTI: dict[bytes, Command] = {
    **dict.fromkeys(WITH_STORES, skip),
    b"EXEC": execute,
    b"DISCARD": discard,
    b"RESET": discard,
    b"QUIT": client_commands.leave,
}
