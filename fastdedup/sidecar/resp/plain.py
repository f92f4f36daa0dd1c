"""The shortest way of the commonest command: `FD.CLAIM key` by a client that waits for each reply.

Where each read brings one command, half of a claim's time goes into the calls on its way, each of them cold.
This does what `Frames`, `commands.claim` and `Claiming` do, for the plain case alone; all else goes their way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model import Outcome
from ...protocol.operations import ClaimOp, Reply, Verdict
from ...protocol.owners import draw_owner
from .commands import Claiming, acquired_reply

if TYPE_CHECKING:
    from ..limits import Limits
    from .connection import Place, RespConnection

_ACQUIRED = Outcome.ACQUIRED
_HEAD = [b"*2", b"$8", b"FD.CLAIM"]
_MOST = 512
"""Bytes. What is longer is a pipeline, or has a key that is: not worth cutting up twice."""


def plain_bytes(limits: Limits) -> int:
    """Return how long a plain claim may be; 0 where the limits allow none."""
    return min(_MOST, limits.frame) if limits.arguments > 1 else 0


def claim_plainly(connection: RespConnection, data: bytes) -> Place | None:
    """Begin the claim that `data` is, from its first byte to its last; None where it is anything else."""
    parts = data.split(b"\r\n")
    if parts[:3] != _HEAD or len(parts) != 6 or parts[5]:
        return None
    key = parts[4]
    if parts[3] != b"$%d" % len(key) or not key.isascii():
        return None
    scope = connection.gate.root
    try:
        op = ClaimOp(scope.claim_wire(key), scope.claim_terms, draw_owner(), None)
        claiming = PlainClaim(connection, scope, op, ephemeral=False)
        scope.start_claim(op, claiming)
    except Exception:  # noqa: BLE001 -- nothing was sent: the other way meets it again, and tells the client
        return None
    return claiming


class PlainClaim(Claiming):
    """A claim's place, whose verdict is written without a detour where it is won."""

    __slots__ = ()

    def set_result(self, reply: Reply) -> None:
        """As a future; called once, and not if `done` is true."""
        op, connection = self._op, self._connection
        if type(reply) is not Verdict or reply.outcome is not _ACQUIRED or reply.short or connection.resp3:
            super().set_result(reply)
            return
        assert op is not None
        self._op = None  # as `Asked` does, and for its reason
        try:
            connection.judged(self._scope, reply, self._at)
            connection.answer(self, acquired_reply(reply, op.owner))
        except Exception as fault:  # noqa: BLE001 -- the engine has others to tell
            self.failed(fault)
