"""A claim that waits: for a message about its key, for the end of its owner's lease, or for the end of its own time.

A refused look does not end the wait: the store may be back within the claim's time, for example after a failover.
The claim looks again when the part of the store that holds its key is back, and from time to time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from ..backoff import UNANSWERED
from ..errors import ShortfallError, UnavailableError
from ..kernel.codes import Code
from ..kernel.operations import ClaimOp, Verdict
from ..kernel.terms import Terms, terms
from ..model import Outcome
from .connection import Connection
from .executor import StaleLedger
from .gate import Gate

_DEAF_PAUSE = 0.25
"""Seconds between two looks of a waiter that gets no messages."""
_LOOPS_STEP = 0.001
"""Seconds of the smallest step of uvloop's time, which counts whole milliseconds."""
_PAUSE_EACH = 0.001
"""Seconds that each refused waiter adds to the pauses of all. So together they look 1,300 times a second, which takes
a tenth of a core; else ten thousand waiters would look 33,000 times. The first answered look wakes the others."""


def end_of(wait: float) -> float:
    """Return the end, in the loop's time, of a wait of these seconds that begins now: never early by a step."""
    return asyncio.get_running_loop().time() + wait + _LOOPS_STEP


async def wait_for_verdict(gate: Gate, call: ClaimOp, wait: float) -> Verdict:
    """Claim; while another owner is at work, wait for a message about the key, for at most `wait` seconds.

    `call` is the claim to make; it is not sent itself, because each look is an operation of its own.

    Raises:
        UnavailableError: neither the store nor the policy has answered the last look.
    """
    connection = gate.connection
    connection.running_engine()
    gives_up = end_of(wait)
    with connection.orphans.while_it_waits(call):
        # Most claims need not wait; and if the store does not answer, that costs its timeout only once.
        return await wait_on(gate, call, gives_up, await look(gate, call, call.terms, gives_up))


async def wait_on(gate: Gate, call: ClaimOp, gives_up: float, found: Verdict | UnavailableError) -> Verdict:
    """Go on after a first look, until `gives_up` in the loop's time. Errors: see `wait_for_verdict`.

    `found`: another owner at work; or the error of a refused look, which does not count as a wait for an owner.
    """
    with gate.connection.orphans.while_it_waits(call):
        if isinstance(found, UnavailableError):
            found = await look_again(gate, call, call.terms, gives_up, found)
        if found.outcome is not Outcome.IN_PROGRESS:
            return found
        with _counted(gate):
            return await _wait(gate, call, gives_up, found)


async def wait_by_looks(
    gate: Gate, call: ClaimOp, gives_up: float, found: Verdict, longest: float
) -> Verdict:
    """Wait like `wait_on`, in looks of `longest` seconds: if the gate does not answer, it ends after one."""
    loop = asyncio.get_running_loop()
    with _counted(gate):
        while found.outcome is Outcome.IN_PROGRESS and loop.time() < gives_up:
            with gate.connection.orphans.while_it_waits(call):
                found = await _wait(gate, call, min(gives_up, end_of(longest)), found)
    return found


@contextmanager
def _counted(gate: Gate) -> Iterator[None]:
    """Count all waits in a `with` block as one wait of a claim."""
    since = perf_counter()
    try:
        yield
    finally:
        gate.observers.waited(gate.settings.namespace, perf_counter() - since)


async def _wait(gate: Gate, call: ClaimOp, gives_up: float, found: Verdict) -> Verdict:
    """Wait for another owner at work; errors: see `wait_for_verdict`."""
    connection = gate.connection
    loop = asyncio.get_running_loop()
    known = call.terms
    patient = terms(known.mode, known.lease_ms, known.keep_ms, True, known.remembered)
    verdict = found
    is_lock = gate.locks.has(call.wire)
    try:
        while True:
            with connection.wakeups.watch(call.wire, in_line=is_lock) as freed:
                # Inside the watch: if the subscription is lost later, that wakes this waiter.
                hears = not verdict.degraded and await connection.wakeups.listen(connection.store)
                verdict = await look(gate, call, patient, gives_up, verdict)
                left = gives_up - loop.time()
                if verdict.outcome is not Outcome.IN_PROGRESS or left <= 0:
                    return verdict
                if not verdict.fresh:
                    continue  # the engine answered: ask the store itself, so that it has this waiter on its list
                alarm = min(left, verdict.left_ms / 1000 + 0.001)
                # No other process, and no other gate of this one, sends messages about a fallback's records.
                told = hears and not verdict.degraded
                if not told and not verdict.degraded:
                    connection.wakeups.tell_deaf(_DEAF_PAUSE)
                await asyncio.wait([freed], timeout=alarm if told else min(alarm, _DEAF_PAUSE))
    finally:
        # With the lock or without, and also if it was woken and did not look: the next one must look now. The store
        # sends a message about a new holder's lock only if a waiter has met this holder.
        connection.wakeups.wake_next(call.wire)


async def look(
    gate: Gate, call: ClaimOp, terms: Terms, gives_up: float, known: Verdict | None = None
) -> Verdict:
    """Look at the key; if that is refused, go on with `look_again`.

    `known`: the verdict of an earlier look. It is returned if `gives_up` comes before this look's turn does.
    """
    turns = gate.connection.look_turns
    if not turns.take():
        await turns.queue()
        if known is not None and asyncio.get_running_loop().time() >= gives_up:
            turns.give_back()
            return known
    try:
        return await claim_once(gate, call, terms)
    except ShortfallError:
        raise  # the store answers, so it is not an outage
    except UnavailableError as error:
        refusal = error
    finally:
        turns.give_back()
    return await look_again(gate, call, terms, gives_up, refusal)


async def look_again(
    gate: Gate, call: ClaimOp, terms: Terms, gives_up: float, refusal: UnavailableError
) -> Verdict:
    """Look again and again after a refused look, until one is answered, or until `gives_up` in the loop's time.

    Raises:
        UnavailableError: the last look was refused.
        ShortfallError: too few replicas confirmed the claim.
    """
    connection = gate.connection
    loop = asyncio.get_running_loop()
    pauses = 0
    while (left := gives_up - loop.time()) > 0.0:
        part = connection.part_of(call.wire)
        await _pause(connection, part, UNANSWERED.longest(pauses), left)
        pauses += 1
        if not connection.look_turns.take():
            await connection.look_turns.queue()
        try:
            verdict = await claim_once(gate, call, terms)
        except ShortfallError:
            raise
        except UnavailableError as error:
            refusal = error
            continue
        finally:
            connection.look_turns.give_back()
        if not verdict.degraded:
            connection.outage_waiters.is_back(part)
        return verdict
    try:
        raise refusal
    finally:
        del refusal  # it refers to this frame


async def _pause(connection: Connection, part: bytes, pause: float, left: float) -> None:
    """Pause for at most `left` seconds, or until the part of the store that refused is back."""
    longest = max(pause, connection.outage_waiters.count(part) * _PAUSE_EACH)
    await connection.outage_waiters.wait(part, min(left, UNANSWERED.draw(longest)))


async def claim_once(gate: Gate, call: ClaimOp, terms: Terms) -> Verdict:
    """Look at the key once, on behalf of `call`."""
    op = call.copy(terms)
    call.at = asyncio.get_running_loop().time()
    try:
        verdict: Verdict | None = await gate.claim(op)
    except StaleLedger:
        verdict = None
    if verdict is None:
        await gate.find_again(call, Code.STALE, moves=True)
        op = call.copy(terms)
        verdict = await gate.claim(op)
    if terms.redeems and verdict.outcome is Outcome.SUCCEEDED:
        verdict = await gate.until_use_stays(op, verdict)
    if verdict.outcome is Outcome.ACQUIRED:
        gate.took(call, op)
    return verdict
