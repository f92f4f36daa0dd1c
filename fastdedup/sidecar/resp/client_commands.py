"""Redis' own commands, such as HELLO and CLIENT, which real clients send before their first own command."""

from __future__ import annotations

from functools import partial
from typing import Any

from ... import __version__
from ...errors import ConfigError
from .connection import Command, RespConnection
from .frames import OK, encode, error


def ping(connection: RespConnection, command: list[bytes]) -> bytes:
    """`PING [text]`."""
    return encode(command[1]) if len(command) > 1 else b"+PONG\r\n"


def hello(connection: RespConnection, command: list[bytes]) -> bytes:
    """`HELLO [2|3] [AUTH user password] [SETNAME name]`.

    A password is not checked: the socket's rights decide who may connect.
    """
    if len(command) > 1:
        if command[1] not in (b"2", b"3"):
            return error("NOPROTO", "unsupported protocol version")
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


def info(connection: RespConnection, command: list[bytes]) -> bytes:
    """`INFO [section]`: the lines that clients read before they call a server ready."""
    lines = ["# Server", "redis_version:7.0.0", f"fastdedup_version:{__version__}", "redis_mode:standalone"]
    lines += ["# Persistence", "loading:0", "# Replication", "role:master"]
    return encode("\r\n".join(lines) + "\r\n")


def client(connection: RespConnection, command: list[bytes]) -> bytes:
    """`CLIENT SETNAME | SETINFO | ID | GETNAME | …`."""
    what = command[1].upper() if len(command) > 1 else b""
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


COMMANDS: dict[bytes, Command] = {
    b"PING": ping,
    b"HELLO": hello,
    b"AUTH": partial(constant, OK),
    b"CLIENT": client,
    b"SELECT": select,
    b"INFO": info,
    b"COMMAND": partial(constant, b"*0\r\n"),
    b"CONFIG": partial(constant, b"*0\r\n"),
    b"QUIT": leave,
}
