"""The span of a `claim_many`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from ..claim import Claim
from ..kernel.operations import ClaimOp
from .calls import note_trace
from .gate import Gate
from .tracing import Tracing


async def within_a_span(
    gate: Gate, ops: Sequence[ClaimOp], make: Callable[[], Awaitable[list[Claim]]]
) -> list[Claim]:
    """Make the claims of a list, within a span if the gate is traced. `ops` are not sent yet."""
    observers = gate.observers
    tracing = observers.tracing
    if tracing is None or not ops or not observers.wants_span():
        return await make()
    span = _begin(gate, ops, tracing)
    try:
        claims = await make()
    except BaseException as error:
        tracing.ended(span, error)
        raise
    tracing.claimed_many(span, claims)
    return claims


def _begin(gate: Gate, ops: Sequence[ClaimOp], tracing: Tracing) -> object:
    connection = gate.connection
    parts = {connection.part_of(op.wire) for op in ops}
    part = parts.pop().decode() if len(parts) == 1 else ""  # else the keys are on several nodes of a Cluster
    span = tracing.claiming_many(gate.settings.namespace, len(ops), part)
    trace = tracing.trace_of(span)
    for op in ops:
        note_trace(op, trace)
    return span
