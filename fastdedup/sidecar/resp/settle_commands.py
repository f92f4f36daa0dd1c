"""What an owner does with its claim: FD.COMPLETE, FD.FAIL, FD.RELEASE, FD.RENEW."""

from __future__ import annotations

from functools import partial
from typing import Final

from ...gateway import Dedup
from ...protocol.operations import ReleaseOp, RenewOp, SettleOp
from ..verbs import held, releasing, renewing, settling
from .connection import Command, RespConnection
from .frames import OK
from .options import CommandOptions, check_count, number_of, read_options, text_of
from .reply_places import Slot

_SETTLING: Final = frozenset({"NS", "TTL", "FENCE", "TOKEN"})
_HOLDING: Final = frozenset({"NS", "FENCE", "TOKEN"})


def settle(succeeded: bool, connection: RespConnection, command: list[bytes]) -> Slot:
    """`FD.COMPLETE key owner [result]`, `FD.FAIL key owner [error]`, then `[NS n] [TTL ms] [FENCE n] [TOKEN]`."""
    check_count(command, 3)
    options = read_options(command, 4, _SETTLING)
    dedup, wire, owner = _held(connection, command, options)
    payload = command[3] if len(command) > 3 else b""
    op = settling(
        dedup, wire, owner, fence=options.fence, succeeded=succeeded, ttl=options.ttl, payload=payload
    )
    return connection.spawn(
        partial(_change, connection, dedup, op), dedup, "complete" if succeeded else "fail"
    )


def release(connection: RespConnection, command: list[bytes]) -> Slot:
    """`FD.RELEASE key owner [NS n] [FENCE n] [TOKEN]`."""
    check_count(command, 3)
    options = read_options(command, 3, _HOLDING)
    dedup, wire, owner = _held(connection, command, options)
    op = releasing(wire, owner, options.fence)
    return connection.spawn(partial(_change, connection, dedup, op), dedup, "release")


def renew(connection: RespConnection, command: list[bytes]) -> Slot:
    """`FD.RENEW key owner [ms] [NS n] [FENCE n] [TOKEN]`: ms is the new lease, the namespace's by default."""
    check_count(command, 3)
    given = len(command) > 3 and command[3].isdigit()
    options = read_options(command, 4 if given else 3, _HOLDING)
    dedup, wire, owner = _held(connection, command, options)
    lease = number_of("the lease", command[3], 1) if given else None
    op = renewing(dedup, wire, owner, options.fence, lease)
    return connection.spawn(partial(_change, connection, dedup, op), dedup, "renew")


def _held(
    connection: RespConnection, command: list[bytes], options: CommandOptions
) -> tuple[Dedup, bytes, bytes]:
    """Return the `Dedup`, the store key and the owner field for the key and the owner that a client names."""
    dedup = connection.namespaces.passing(options.ns)
    key, owner = text_of("the key", command[1]), text_of("the owner", command[2])
    return dedup, *held(dedup, key, owner, token=options.token)


async def _change(connection: RespConnection, dedup: Dedup, op: SettleOp | ReleaseOp | RenewOp) -> bytes:
    await dedup._namespace.change(op)
    if isinstance(op, RenewOp):
        connection.holdings.renew((dedup, op.wire, op.owner), op.lease_ms)
    else:
        connection.holdings.remove((dedup, op.wire, op.owner))
    return OK


COMMANDS: dict[bytes, Command] = {
    b"FD.COMPLETE": partial(settle, True),
    b"FD.FAIL": partial(settle, False),
    b"FD.RELEASE": release,
    b"FD.RENEW": renew,
}
