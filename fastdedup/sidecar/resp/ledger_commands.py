"""The commands of ledgers: FD.FIRST, FD.SEEN, FD.FORGETID, FD.LEDGER.

Options stand before the ledger's name: behind it, all is ids, which may be any bytes, "OWNER" too.
"""

from __future__ import annotations

from typing import Final

import orjson

from ..ledgers import ServedLedger
from ..verbs import id_audit
from .connection import Command, RespConnection
from .frames import encode
from .options import OperatorOptions, check_count, read_into, read_options
from .reply_places import Slot

_FIRST: Final = frozenset({"OWNER", "NS"})
_FORGET: Final = frozenset({"NS", "REASON"})
_OTHERS: Final = frozenset({"NS"})


def first(connection: RespConnection, command: list[bytes]) -> Slot:
    """`FD.FIRST [OWNER name] [NS n] ledger id [id …]`: the reply is 1 for each id that is the first, else 0.

    The task ends with the client: nobody reads the answer then, so nothing stays remembered.
    """
    served, options, ids = _asked(connection, command, _FIRST)
    connection.namespaces.access.charge("first", len(ids) - 1)

    async def work() -> bytes:
        return encode([int(answer) for answer in await served.first(ids, options.owner)])

    return connection.spawn(work, served.dedup, "first")


def seen(connection: RespConnection, command: list[bytes]) -> Slot:
    """`FD.SEEN [NS n] ledger id [id …]`: the reply is 1 for each id that is remembered, else 0."""
    served, _, ids = _asked(connection, command, _OTHERS)

    async def work() -> bytes:
        return encode([int(answer) for answer in await served.seen(ids)])

    return connection.spawn(work, served.dedup, "seen")


def forget(connection: RespConnection, command: list[bytes]) -> Slot:
    """`FD.FORGETID [NS n] [REASON text] ledger id [id …]`: the reply is 1 for each id that was remembered, else 0."""
    served, options, ids = _asked(connection, command, _FORGET)
    heard = id_audit(connection.namespaces, served.namespace, connection.peer, options.reason)

    async def work() -> bytes:
        return encode([int(answer) for answer in await served.forget(ids, heard)])

    return connection.spawn(work, served.dedup, "forget_id")


def stats(connection: RespConnection, command: list[bytes]) -> Slot:
    """`FD.LEDGER [NS n] ledger`: the reply is what the ledger holds, as JSON."""
    served, _, _ = _asked(connection, command, _OTHERS, ids=False)
    namespaces = connection.namespaces

    async def work() -> bytes:
        async with namespaces.turns.reads.turn(namespaces.access.path, connection.peer):
            return encode(orjson.dumps(await served.facts()))

    return connection.spawn(work, served.dedup, "ledger", reads=True)


def _asked(
    connection: RespConnection, command: list[bytes], allowed: frozenset[str], *, ids: bool = True
) -> tuple[ServedLedger, OperatorOptions, list[bytes]]:
    """Return the ledger that a command names, its options, and its ids."""
    at = 1
    names = allowed | _FIRST  # one that a command does not take is a mistake, and no ledger's name
    while command[at : at + 1] and command[at][:16].decode(errors="replace").upper() in names:
        at += 2
    options = read_into(OperatorOptions(), command[:at], 1, allowed)
    check_count(command, at + 1 + ids)
    served = connection.namespaces.ledgers.find(command[at], options.ns)
    if not ids:
        read_options(command, at + 1, frozenset())
    return served, options, command[at + 1 :]


COMMANDS: dict[bytes, Command] = {
    b"FD.FIRST": first,
    b"FD.SEEN": seen,
    b"FD.FORGETID": forget,
    b"FD.LEDGER": stats,
}
