"""What an owner does with its claim: FD.COMPLETE, FD.FAIL, FD.RELEASE, FD.RENEW."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from ...errors import ConfigError
from ...gateway import Dedup
from ...kernel.operations import ReleaseOp, RenewOp, SettleOp
from ...kernel.owners import owner_field
from ...kernel.verbs import Effect, Verb
from ...ledger.operations import IdPlace
from ..ledgers import ServedLedger
from ..verbs import held, releasing, renewing, settling
from .connection import Command, RespConnection
from .frames import OK
from .options import CommandOptions, check_count, number_of, read_options, text_of
from .reply_places import Slot

_SETTLING: Final = frozenset({"NS", "TTL", "FENCE", "TOKEN", "REMEMBER"})
_HOLDING: Final = frozenset({"NS", "FENCE", "TOKEN", "REMEMBER"})
_ENDING: Final = tuple(verb for verb in Verb if verb.row.effect is Effect.FREES)
"""Verbs after which the connection holds the key no more."""


def settle(succeeded: bool, connection: RespConnection, command: list[bytes]) -> Slot:
    """`FD.COMPLETE key owner [result]`, `FD.FAIL key owner [error]`, then options.

    These are `[NS n] [TTL ms] [FENCE n] [TOKEN] [REMEMBER ledger]`.
    """
    check_count(command, 3)
    options = read_options(command, 4, _SETTLING)
    if options.remember is not None:
        return _settle_remembered(succeeded, connection, command, options)
    dedup, wire, owner = _held(connection, command, options)
    payload = command[3] if len(command) > 3 else b""
    op = settling(
        dedup, wire, owner, fence=options.fence, succeeded=succeeded, ttl=options.ttl, payload=payload
    )
    return connection.spawn(
        partial(_change, connection, dedup, op), dedup, "complete" if succeeded else "fail"
    )


def release(connection: RespConnection, command: list[bytes]) -> Slot:
    """`FD.RELEASE key owner [NS n] [FENCE n] [TOKEN] [REMEMBER ledger]`."""
    check_count(command, 3)
    options = read_options(command, 3, _HOLDING)
    if options.remember is not None:
        field = owner_field(text_of("the owner", command[2]))
        return _change_remembered(
            connection, command, options, "release", lambda wire, _: releasing(wire, field, options.fence)
        )
    dedup, wire, owner = _held(connection, command, options)
    op = releasing(wire, owner, options.fence)
    return connection.spawn(partial(_change, connection, dedup, op), dedup, "release")


def renew(connection: RespConnection, command: list[bytes]) -> Slot:
    """`FD.RENEW key owner [ms] [NS n] [FENCE n] [TOKEN] [REMEMBER ledger]`.

    ms is the new lease, the namespace's by default.
    """
    check_count(command, 3)
    given = len(command) > 3 and command[3].isdigit()
    options = read_options(command, 4 if given else 3, _HOLDING)
    lease = number_of("the lease", command[3], 1) if given else None
    if options.remember is not None:
        gate, field = _ledger(connection, options).dedup, owner_field(text_of("the owner", command[2]))
        return _change_remembered(
            connection,
            command,
            options,
            "renew",
            lambda wire, _: renewing(gate, wire, field, options.fence, lease),
        )
    dedup, wire, owner = _held(connection, command, options)
    op = renewing(dedup, wire, owner, options.fence, lease)
    return connection.spawn(partial(_change, connection, dedup, op), dedup, "renew")


def _held(
    connection: RespConnection, command: list[bytes], options: CommandOptions
) -> tuple[Dedup, bytes, bytes]:
    """Return the `Dedup`, the store key and the owner field for the key and the owner that a client names."""
    dedup = connection.namespaces.passing(options.ns)
    key, owner = text_of("the key", command[1]), text_of("the owner", command[2])
    return dedup, *held(dedup, key, owner, token=options.token)


# Claims whose success a ledger remembers


def _ledger(connection: RespConnection, options: CommandOptions) -> ServedLedger:
    """Return the ledger that a command names.

    Raises:
        ConfigError: this socket serves none of this name, or a token is meant.
    """
    served = connection.namespaces.ledgers.find(options.remember or "", options.ns)
    if options.token:
        raise ConfigError("REMEMBER and TOKEN exclude each other: a ledger remembers claims, not tokens")
    return served


def _settle_remembered(
    succeeded: bool, connection: RespConnection, command: list[bytes], options: CommandOptions
) -> Slot:
    served, owner = _ledger(connection, options), owner_field(text_of("the owner", command[2]))
    payload = command[3] if len(command) > 3 else b""
    if succeeded:
        key = text_of("the key", command[1])
        done = served.completing(key, owner, fence=options.fence, ttl=options.ttl, payload=payload)
        return _change_remembered(connection, command, options, "complete", done)
    return _change_remembered(
        connection,
        command,
        options,
        "fail",
        lambda wire, _: settling(
            served.dedup,
            wire,
            owner,
            fence=options.fence,
            succeeded=False,
            ttl=options.ttl,
            payload=payload,
        ),
    )


def _change_remembered(
    connection: RespConnection,
    command: list[bytes],
    options: CommandOptions,
    verb: str,
    make: Callable[[bytes, IdPlace], SettleOp | ReleaseOp | RenewOp],
) -> Slot:
    served, key = _ledger(connection, options), text_of("the key", command[1])

    async def work() -> bytes:
        _note(connection, served.dedup, await served.change(key, make))
        return OK

    return connection.spawn(work, served.dedup, verb)


async def _change(connection: RespConnection, dedup: Dedup, op: SettleOp | ReleaseOp | RenewOp) -> bytes:
    await dedup.gate.change(op)
    _note(connection, dedup, op)
    return OK


def _note(connection: RespConnection, dedup: Dedup, op: SettleOp | ReleaseOp | RenewOp) -> None:
    """Take note of a change of what may be an EPHEMERAL claim."""
    if isinstance(op, RenewOp):
        connection.holdings.renew((dedup, op.wire, op.owner), op.lease_ms)
    elif op.verb in _ENDING:
        connection.holdings.remove((dedup, op.wire, op.owner))


COMMANDS: dict[bytes, Command] = {
    b"FD.COMPLETE": partial(settle, True),
    b"FD.FAIL": partial(settle, False),
    b"FD.RELEASE": release,
    b"FD.RENEW": renew,
}
