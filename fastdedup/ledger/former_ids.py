"""The ids that a ledger remembered before it was resized: asked first, until all of them are over.

From the switch on nobody remembers an id by the former form: the store's scripts refuse it by the time of the very
node that answers here. So what is not found here stays absent, and the present form decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ..core.gate import Gate
from ..kernel.operations import Code, Reply
from .operations import FirstOp, ForgetIdOp, SeenOp
from .views import FormerView


async def look(gate: Gate, former: FormerView, ids: Sequence[bytes], nonce: bytes) -> list[Reply]:
    """Return for each id ALREADY, ABSENT, or OK where the call of this nonce has remembered it; or why not.

    What a call has remembered that was given up is taken back before: nobody was told.
    """
    ops = []
    for each in ids:
        wire, entry = former.addresses.entry(each, nonce)
        ops.append(FirstOp(wire, entry, former.terms, each))
    undo = gate.connection.undo
    if undo:
        await undo.until_free(ops)
    # What was given up may be taken back between the store's answer and ours.
    suspects = {op.place for op in ops if undo and undo.knows(op)}
    replies = await _ask(gate, ops)
    again = []
    for at, op in enumerate(ops):
        if replies[at] is Code.OK:
            undo.keep_id(op, named=True)
        elif replies[at] is Code.ALREADY and (op.place in suspects or undo.knows(op)):
            again.append(at)
    if again:
        await undo.until_free([ops[at] for at in again])
        for at in again:
            await undo.take_back_id(ops[at])
        for at, reply in zip(again, await _ask(gate, [ops[at] for at in again]), strict=True):
            replies[at] = reply
    return replies


async def seen(gate: Gate, former: FormerView, id: bytes) -> Reply:
    """Return ALREADY or ABSENT; or why not."""
    return await gate.run(SeenOp(*former.addresses.find(id), former.terms, id))


async def forget(gate: Gate, former: FormerView, id: bytes, reason: str) -> Reply:
    """Remove an id: OK or ABSENT; or why not."""
    return await gate.run(ForgetIdOp(*former.addresses.find(id), former.terms, id, reason))


async def _ask(gate: Gate, ops: Sequence[FirstOp]) -> list[Reply]:
    looks = [SeenOp(op.wire, op.entry, op.terms, op.id) for op in ops]
    return list(await asyncio.gather(*map(gate.run, looks)))
