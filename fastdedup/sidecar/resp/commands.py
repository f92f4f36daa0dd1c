"""The table of all RESP commands, Redis' own among them, and MULTI, behind which another table counts.

Those of verbs come from the table of verbs. A command that has to wait returns a `TaskCommand`: the reply is what
its method `work` returns or raises.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from ... import __version__
from ...errors import ConfigError
from ..access import Access
from ..wire_verbs import VERBS
from . import claim_commands, store_commands, verb_commands
from .connection import Command, RespConnection
from .frames import OK, encode, error
from .options import check_count
from .reply_places import ReplyPlace

# Redis' own commands, such as HELLO and CLIENT, which real clients send before their first own command


def ping(connection: RespConnection, command: list[bytes]) -> bytes:
    """`PING [text]`."""
    check_count(command, 1, "PING [text]", most=2)
    return encode(command[1]) if len(command) > 1 else b"+PONG\r\n"


def auth(connection: RespConnection, command: list[bytes]) -> bytes:
    """`AUTH [user] password`: not checked, because the socket's rights decide who may connect."""
    check_count(command, 2, "AUTH [user] password", most=3)
    return OK


def hello(connection: RespConnection, command: list[bytes]) -> bytes:
    """`HELLO [2|3 [AUTH user password] [SETNAME name]]`; the password is not checked, see `auth`."""
    if len(command) > 1:
        if command[1] not in (b"2", b"3"):
            return error("NOPROTO", "unsupported protocol version")
        _check_hello(command[2:])
        connection.resp3 = command[1] == b"3"
    facts: dict[str, Any] = {
        "server": "fastdedup",
        "version": __version__,
        "proto": 3 if connection.resp3 else 2,
        "id": id(connection) & 0x7FFFFFFF,
        "mode": "standalone",
        "role": "master",
        "modules": [],
    }
    return encode(facts, connection.resp3)


def _check_hello(options: list[bytes]) -> None:
    """Check the options of a HELLO, like Redis: a mistake in one gets an error.

    Raises:
        ConfigError: an option is unknown, or lacks a value.
    """
    at = 0
    while at < len(options):
        values = _HELLO_OPTIONS.get(options[at].upper())
        if values is None or at + values >= len(options):
            name = options[at][:32].decode(errors="replace")
            raise ConfigError(
                f"syntax error in HELLO option '{name}': it takes AUTH user password, SETNAME name"
            )
        at += 1 + values


_HELLO_OPTIONS: Final = {b"AUTH": 2, b"SETNAME": 1}
"""How many values follow each option."""


def info(connection: RespConnection, command: list[bytes]) -> bytes:
    """`INFO [section]`: the lines that clients read before they call a server ready."""
    lines = ["# Server", "redis_version:7.0.0", f"fastdedup_version:{__version__}", "redis_mode:standalone"]
    lines += ["# Persistence", "loading:0", "# Replication", "role:master"]
    return encode("\r\n".join(lines) + "\r\n")


def client(connection: RespConnection, command: list[bytes]) -> bytes:
    """`CLIENT SETNAME | SETINFO | ID | GETNAME | …`."""
    check_count(command, 2, "CLIENT SETNAME name, or another of its commands")
    what = command[1].upper()
    if what == b"REPLY" and [each.upper() for each in command[2:]] != [b"ON"]:
        raise ConfigError("CLIENT REPLY takes ON only: every command is answered")
    if what == b"ID":
        return encode(id(connection) & 0x7FFFFFFF)
    if what in (b"GETNAME", b"INFO", b"LIST"):
        return encode("")
    return OK


def select(connection: RespConnection, command: list[bytes]) -> bytes:
    """`SELECT 0`: there is one database only."""
    if command[1:] != [b"0"]:
        return error("ERR", "there is one database only, 0: name a namespace by NS instead")
    return OK


def leave(connection: RespConnection, command: list[bytes]) -> bytes:
    """`QUIT`: close the connection after the replies."""
    connection.hang_up_after_replies()
    return OK


def constant(reply: bytes, connection: RespConnection, command: list[bytes]) -> bytes:
    """Return the same reply to every call."""
    return reply


# Transactions


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
    b"PING": ping,
    b"HELLO": hello,
    b"AUTH": auth,
    b"CLIENT": client,
    b"SELECT": select,
    b"INFO": info,
    b"COMMAND": partial(constant, b"*0\r\n"),
    b"CONFIG": partial(constant, b"*0\r\n"),
    b"QUIT": leave,
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
    b"QUIT": leave,
}
