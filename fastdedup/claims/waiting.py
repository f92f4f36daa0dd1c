"""A claim that waits: for news of its key, for the end of its owner's lease, or for the end of its own time."""

from __future__ import annotations

import asyncio

from ..errors import UnavailableError
from ..gate.connection import Connection
from ..gate.namespace import Namespace
from ..model import Outcome
from ..protocol.operations import ClaimOp, Terms, Verdict, terms

_DEAF_PAUSE = 0.25
"""Seconds between two looks of a waiter that cannot be told."""


async def wait_for_verdict(namespace: Namespace, call: ClaimOp, wait: float) -> Verdict:
    """Claim, and while another owner is at work wait for news of it, for `wait` seconds at most.

    `call` says what to claim; it is not sent itself, as each look is an operation of its own.
    """
    connection = namespace.connection
    connection.running_engine()
    gives_up = asyncio.get_running_loop().time() + wait
    # Most need not wait; and where the store is silent, its silence is paid for once.
    verdict = await claim_once(namespace, call, call.terms)
    if verdict.outcome is not Outcome.IN_PROGRESS:
        return verdict
    return await wait_on(namespace, call, gives_up, verdict)


async def wait_on(namespace: Namespace, call: ClaimOp, gives_up: float, verdict: Verdict) -> Verdict:
    """Go on after a first look that found another owner at work, until `gives_up` in the loop's time."""
    connection = namespace.connection
    loop = asyncio.get_running_loop()
    patient = terms(call.terms.mode, call.terms.lease_ms, call.terms.keep_ms, True)
    heard = not verdict.degraded and await _listens(connection)
    while True:
        with connection.wakeups.watch(call.wire) as freed:
            verdict = await claim_once(namespace, call, patient)
            left = gives_up - loop.time()
            if verdict.outcome is not Outcome.IN_PROGRESS or left <= 0:
                return verdict
            if not verdict.fresh:
                continue  # answered by the engine: ask the store itself, so that it has us on its list
            alarm = min(left, verdict.left_ms / 1000 + 0.001)
            # Of what a fallback holds no other process, nor another gate of this one, sends news.
            told = heard and not verdict.degraded
            await asyncio.wait([freed], timeout=alarm if told else min(alarm, _DEAF_PAUSE))


async def _listens(connection: Connection) -> bool:
    """Hear of freed keys. Where the store refuses just that, waiters look again every so often instead."""
    try:
        await connection.store.listen(connection.wakeups.freed)
    except UnavailableError:
        return False
    return True


async def claim_once(namespace: Namespace, call: ClaimOp, terms: Terms) -> Verdict:
    """Look once how the key stands, on behalf of `call`."""
    op = ClaimOp(call.wire, terms, call.owner, call.fingerprint)
    op.named = call.named
    op.key = call.key
    call.at = asyncio.get_running_loop().time()
    return await namespace.ask.claim(op)
