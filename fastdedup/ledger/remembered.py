"""A claim whose success a ledger remembers: `dedup.claim(key, remember=ledger)` returns it."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from time import perf_counter
from typing import Any

from ..claim import Claim
from ..core.calls import ClaimCall, Then, claim_of, claim_op, count_claim
from ..core.gate import Gate
from ..core.options import ClaimOptions
from ..core.together import parts_of
from ..core.traced_lists import within_a_span
from ..core.waiting import claim_once, wait_for_verdict
from ..errors import ConfigError, UnavailableError
from ..kernel.operations import ClaimOp
from ..kernel.owners import owner_text
from .client import Ledger
from .ids import record_wire
from .operations import FindsIds


class RememberedClaim:
    """A claim whose record has a place that depends on the ledger's form.

    Args:
        gate: the claim's gate.
        op: the claim's operation; its `wire` is the key's record without a ledger.
        ledger: remembers the success.
        wait: seconds to wait for another owner.
        renew: keep the lease alive.
    """

    __slots__ = ("_gate", "_ledger", "_renews", "_wait", "op")

    def __init__(self, gate: Gate, op: ClaimOp, ledger: FindsIds, wait: float, renew: bool | None) -> None:
        self._gate = gate
        self.op = op
        self._ledger = ledger
        self._wait = wait
        self._renews = renew

    def call(self, then: Then | None) -> RememberedCall:
        """Return a call that users await."""
        return RememberedCall(self, self._gate, self.op, self._wait, self._renews, then)

    async def make(self, call: ClaimCall | None = None, late: float = 0.0) -> Claim:
        """Make the claim.

        Args:
            call: the caller's awaitable, which decides how the claim is counted.
            late: the seconds of its wait that have passed already.
        """
        gate, since = self._gate, perf_counter()
        op = await self._operation()
        try:
            if self._wait > late:
                verdict = await wait_for_verdict(gate, op, self._wait - late)
            else:
                verdict = await claim_once(gate, op, op.terms)
        except Exception as fault:
            if isinstance(fault, UnavailableError):
                self._ledger.distrust()
            count_claim(gate, "claim", fault, since)
            raise
        if verdict.degraded:
            self._ledger.distrust()
        count_claim(gate, "claim", verdict, since, will_wait=call is not None and call.will_wait)
        if call is None:
            return claim_of(gate, op, verdict, self._renews)
        return claim_of(gate, op, verdict, call.renews, owned=call.owns_renewal)

    async def _operation(self) -> ClaimOp:
        plain = self.op
        try:
            place = await self._ledger.place_of(plain.key)
        except UnavailableError as error:
            error.owner = owner_text(plain.owner)
            raise
        op = plain.copy()
        op.wire = record_wire(place.bucket, plain.wire, self._gate.settings.namespace)
        op.unless = place
        return op


class RememberedCall(ClaimCall):
    """A claim that is not made yet, like `ClaimCall`, whose success a ledger remembers."""

    __slots__ = ("_remembered",)

    def __init__(
        self,
        remembered: RememberedClaim,
        gate: Gate,
        op: ClaimOp,
        wait: float,
        renew: bool | None,
        then: Then | None,
    ) -> None:
        super().__init__(gate, op, wait, renew, then)
        self._remembered = remembered

    def __await__(self) -> Generator[Any, Any, Claim]:
        """Make the claim. A coroutine of its own, because the ledger's form may have to be read first."""
        if self._then is not None or self.wants_span():
            return (yield from self.surrounded().__await__())
        if self._used:
            raise self.used_before()
        self._used = True
        return (yield from self._remembered.make(self).__await__())


def remembered_claim(
    gate: Gate, options: ClaimOptions, key: Any, mark: bytes | None, wait: float, renew: bool | None
) -> RememberedClaim:
    """Return a claim to make. Arguments and errors: see `Dedup.claim`.

    Args:
        gate: the claim's gate.
        options: how to make it.
        key: the key.
        mark: its fingerprint, or None.
        wait: seconds to wait for another owner: those of the options, or 0.
        renew: keep the lease alive.
    """
    ledger = options.remember
    if not isinstance(ledger, Ledger) or not ledger.is_of(gate.connection):
        raise ConfigError(f"remember must be a ledger of this gate, made by its ledger(), got {ledger!r}")
    if ledger.dense:
        raise ConfigError(
            f"remember must be a ledger without dense=True, because a claim's key is text, got {ledger!r}"
        )
    op = claim_op(gate, options, key, gate.claims.wire(key), mark)
    return RememberedClaim(gate, op, ledger, wait, renew)


def remembered_claims(
    gate: Gate, options: ClaimOptions, keys: Sequence[Any], marks: Sequence[bytes | None]
) -> list[RememberedClaim]:
    """Return the claims of a list, for `claim_each`. Arguments and errors: see `Dedup.claim_many`."""
    longest, renew = options.seconds_to_wait, bool(options.renew)
    claims: list[RememberedClaim] = []
    seen: set[bytes] = set()
    for key, mark in zip(keys, marks, strict=True):
        wire = gate.claims.wire(key)
        wait = 0.0 if wire in seen else longest  # a claim never waits for another one of its list
        seen.add(wire)
        claims.append(remembered_claim(gate, options, key, mark, wait, renew))
    return claims


async def claim_each(gate: Gate, claims: Sequence[RememberedClaim], *, named: bool) -> list[Claim]:
    """Make claims of one list. If one cannot be answered, its error is raised and the others are released.

    Args:
        gate: the claims' gate.
        claims: the result of `remembered_claims`.
        named: the caller chose the owner; claims that it held before stay its own.
    """
    if not claims:
        return []
    return await within_a_span(gate, [claim.op for claim in claims], lambda: _each_made(gate, claims, named))


async def _each_made(gate: Gate, claims: Sequence[RememberedClaim], named: bool) -> list[Claim]:
    loop = asyncio.get_running_loop()
    since = loop.time()
    made: list[Claim] = []
    tasks: list[asyncio.Task[Claim]] = []
    try:
        for part in parts_of(claims):
            late = loop.time() - since
            tasks = [asyncio.ensure_future(claim.make(late=late)) for claim in part]
            made += await asyncio.gather(*tasks)
        return made
    except BaseException as error:  # noqa: BLE001 -- it is raised below
        fault = error
    # Not awaited in the except clause, because mypyc's code crashes if it is cancelled there.
    for task in tasks:
        task.cancel()
    await asyncio.shield(gate.connection.keep(_give_back(made, tasks, named)))
    try:
        raise fault
    finally:
        del fault  # it refers to this frame


async def _give_back(made: Sequence[Claim], tasks: Sequence[asyncio.Task[Claim]], named: bool) -> None:
    """Free the acquired claims of a list: those that are made, and those of the tasks of its last part."""
    last = await asyncio.gather(*tasks, return_exceptions=True)
    given = [*made, *[claim for claim in last if isinstance(claim, Claim)]]
    held = [claim.settlement for claim in given if claim.acquired]
    for part in parts_of([claim for claim in held if not named or claim.newly_acquired]):
        await asyncio.gather(*[claim.free() for claim in part], return_exceptions=True)
