"""A claim that waits: for news of the key, the end of its owner's lease, or the end of its own patience."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..errors import UnavailableError
from ..gate.connection import Connection
from ..model import Outcome
from ..protocol.operations import ClaimOp, Terms, Verdict, terms
from .call import ClaimCall, verdict_of

if TYPE_CHECKING:
    from ..gate.namespace import Scope

_DEAF_PAUSE = 0.25
"""Seconds between two looks of a waiter that cannot be told."""


async def claim_patiently(scope: Scope, core: Connection, call: ClaimCall) -> Verdict:
    """Claim, and while another owner is at work wait for news of it, `call.wait` seconds at the most."""
    scope.check_loop()
    loop = asyncio.get_running_loop()
    gives_up = loop.time() + call.wait
    # Most need not wait; and where the store is silent, its silence is paid for once.
    reply = await _claim(scope, call, call.terms)
    if reply.outcome is not Outcome.IN_PROGRESS:
        return reply
    patient = terms(call.terms.mode, call.terms.lease_ms, call.terms.keep_ms, True)
    heard = not reply.degraded and await _listens(core)
    while True:
        with core.waiters.watch(call.wire) as freed:
            reply = await _claim(scope, call, patient)
            left = gives_up - loop.time()
            if reply.outcome is not Outcome.IN_PROGRESS or left <= 0:
                return reply
            if not reply.fresh:
                continue  # answered by the engine: ask the store itself, so that it has us on its list
            alarm = min(left, reply.left_ms / 1000 + 0.001)
            # Of what a fallback holds no other process, nor another gate of this one, sends news.
            told = heard and not reply.degraded
            await asyncio.wait([freed], timeout=alarm if told else min(alarm, _DEAF_PAUSE))


async def _listens(core: Connection) -> bool:
    """Hear of freed keys. Where the store refuses just that, waiters look again every so often instead."""
    try:
        await core.store.listen(core.waiters.freed)
    except UnavailableError:
        return False
    return True


async def _claim(scope: Scope, call: ClaimCall, terms: Terms) -> Verdict:
    op = ClaimOp(call.wire, terms, call.owner, call.fingerprint)
    op.named = call.named
    op.key = call.key
    call.at = asyncio.get_running_loop().time()
    try:
        return verdict_of(await scope.start_claim(op), call.key)
    except UnavailableError as error:
        return verdict_of(scope.fall_back(op, error), call.key)
    except asyncio.CancelledError:
        scope.disown(op)
        raise
