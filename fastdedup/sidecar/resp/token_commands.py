"""One-time tokens: FD.ISSUE, FD.CONSUME, and FD.REDEEM, which claims a token."""

from __future__ import annotations

from functools import partial
from typing import Final

from ...core.calls import ClaimCall
from ..verbs import seconds
from .claim_commands import claim_in_task
from .connection import Command, RespConnection
from .frames import encode
from .options import check_count, left_of, read_options, text_of
from .reply_places import Slot

_ISSUE: Final = frozenset({"SUBJECT", "TTL", "NS"})
_CONSUME: Final = frozenset({"SUBJECT", "NS"})
_REDEEM: Final = frozenset({"NS", "SUBJECT", "LEASE", "TTL", "WAIT", "EPHEMERAL"})


def issue(connection: RespConnection, command: list[bytes]) -> Slot:
    """`FD.ISSUE [SUBJECT s] [TTL ms] [NS n]`: the reply is the token."""
    options = read_options(command, 1, _ISSUE)
    dedup = connection.namespaces.dedup(options.ns)

    async def work() -> bytes:
        return encode(await dedup.tokens.issue(options.subject, seconds(options.ttl)))

    return connection.spawn(work, dedup, "issue")


def consume(connection: RespConnection, command: list[bytes]) -> Slot:
    """`FD.CONSUME token [SUBJECT s] [NS n]`: the reply is the outcome."""
    check_count(command, 2)
    options = read_options(command, 2, _CONSUME)
    dedup = connection.namespaces.dedup(options.ns)

    async def work() -> bytes:
        return encode((await dedup.tokens.consume(text_of("the token", command[1]), options.subject)).value)

    return connection.spawn(work, dedup, "consume")


def redeem(connection: RespConnection, command: list[bytes]) -> Slot:
    """`FD.REDEEM token [SUBJECT s] [NS n] [LEASE ms] [TTL ms] [WAIT ms] [EPHEMERAL]`."""
    check_count(command, 2)
    options = read_options(command, 2, _REDEEM)
    dedup = connection.namespaces.dedup(options.ns)
    wait = left_of(options.wait)

    def call() -> ClaimCall:
        token = text_of("the token", command[1])
        return dedup.tokens.redeem_with(options.of_claim(wait()), token, options.subject)

    redeems = partial(claim_in_task, connection, dedup, call, options.ephemeral)
    return connection.spawn(redeems, dedup, "redeem", repeatable=True, waits=bool(options.wait))


COMMANDS: dict[bytes, Command] = {b"FD.ISSUE": issue, b"FD.CONSUME": consume, b"FD.REDEEM": redeem}
