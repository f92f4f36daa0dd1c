"""A claim whose success a ledger remembers: what `dedup.claim(key, remember=ledger)` returns."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from time import perf_counter
from typing import Any

from ..checks import Seconds
from ..claim import Claim
from ..core.calls import ClaimCall, claim_of, count_claim
from ..core.gate import Gate
from ..core.traced_lists import within_a_span
from ..core.waiting import claim_once, wait_for_verdict
from ..errors import ConfigError, UnavailableError, UsageError
from ..kernel.operations import Terms
from ..kernel.owners import owner_field, owner_text
from ..keys import digest
from .client import Ledger
from .ids import record_wire
from .operations import FindsIds, RememberedClaimOp


class RememberedCall(ClaimCall):
    """A claim not yet made, as `ClaimCall`. Where its record lies is known once the ledger's form is.

    `wire`: the key's record without a ledger.
    """

    __slots__ = ("_ledger",)

    def __init__(
        self,
        gate: Gate,
        key: str,
        wire: bytes,
        ledger: FindsIds,
        terms: Terms,
        owner: bytes,
        fingerprint: bytes | None,
    ) -> None:
        super().__init__(gate, key, wire, terms, owner, fingerprint)
        self._ledger = ledger

    def _made(self) -> Generator[Any, Any, Claim]:
        """Claim. A coroutine of its own, as the ledger's form may have to be read first."""
        if self._used:
            raise UsageError(f"this claim of {self.key!r} was awaited before; call claim() for another one")
        self._used = True
        return (yield from self._claim().__await__())

    async def _claim(self) -> Claim:
        gate = self._gate
        if gate.watchers.counters is not None:
            self.since = perf_counter()
        op = await self._operation()
        try:
            if self.patient and self.wait > 0.0:
                verdict = await wait_for_verdict(gate, op, self.wait)
            else:
                verdict = await claim_once(gate, op, op.terms)
        except Exception as fault:
            if isinstance(fault, UnavailableError):
                self._ledger._distrust()
            count_claim(gate, op, fault, self)
            raise
        if verdict.degraded:
            self._ledger._distrust()
        count_claim(gate, op, verdict, self)
        return claim_of(gate, op, verdict, self._renews)

    async def _operation(self) -> RememberedClaimOp:
        try:
            place = await self._ledger._place_of(self.key)
        except UnavailableError as error:
            error.owner = owner_text(self.owner)
            raise
        wire = record_wire(place[0], self.wire, self._gate.settings.namespace)
        op = RememberedClaimOp(wire, self.terms, self.owner, self.fingerprint, place)
        op.key, op.named, op.ledger = self.key, self.named, self._ledger
        return op


def remembered_call(
    gate: Gate,
    key: str,
    ledger: Any,
    mark: bytes | None,
    owner: str | None,
    lease: Seconds | None,
    ttl: Seconds | None,
    wait: Seconds,
    renew: bool,
) -> RememberedCall:
    """Return a claim to be awaited. Arguments and errors as for `Dedup.claim`; `mark`: the fingerprint's digest."""
    if not isinstance(ledger, Ledger) or not ledger._is_of(gate.connection):
        raise ConfigError(f"remember must be a ledger of this gate, made by its ledger(), got {ledger!r}")
    if ledger.dense:
        raise ConfigError(
            f"remember must be a ledger without dense=True, as a claim's key is text, got {ledger!r}"
        )
    call = RememberedCall(
        gate,
        key,
        gate.claims.wire(key),
        ledger,
        gate.remembered_terms(lease, ttl),
        gate.draw_owner() if owner is None else owner_field(owner),
        mark,
    )
    call.named = owner is not None
    if wait or renew:
        call.set_patience(wait, renew)
    return call


def remembered_calls(
    gate: Gate,
    keys: Sequence[str],
    ledger: Any,
    fingerprints: Sequence[Any],
    owner: str | None,
    lease: Seconds | None,
    ttl: Seconds | None,
    wait: Seconds,
    renew: bool,
) -> list[RememberedCall]:
    """Return the claims of a list, to be awaited by `claim_each`. Arguments and errors as for `Dedup.claim_many`."""
    calls: list[RememberedCall] = []
    seen: set[bytes] = set()
    try:
        for key, fingerprint in zip(keys, fingerprints, strict=True):
            wire = gate.claims.wire(key)
            seconds = 0.0 if wire in seen else wait  # nobody waits for a claim of the same list
            seen.add(wire)
            mark = None if fingerprint is None else digest(fingerprint)
            calls.append(remembered_call(gate, key, ledger, mark, owner, lease, ttl, seconds, renew))
    except BaseException:
        for call in calls:
            call.close()  # nobody awaits it
        raise
    return calls


async def claim_each(calls: Sequence[RememberedCall], *, named: bool) -> list[Claim]:
    """Make claims of one list; where one cannot be answered its error is raised, and the others are released.

    `named`: the owner is the caller's own; what it held before stays its own.
    """
    if not calls:
        return []
    return await within_a_span(calls[0]._gate, calls, lambda: _each_made(calls, named))


async def _each_made(calls: Sequence[RememberedCall], named: bool) -> list[Claim]:
    tasks = [asyncio.ensure_future(call._claim()) for call in calls]
    for call in calls:
        call.close()
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException as error:  # noqa: BLE001 -- it is raised below
        fault = error
    # Not awaited within the except clause: compiled by mypyc, that crashes where it is cancelled.
    for task in tasks:
        task.cancel()
    await asyncio.shield(calls[0]._gate.connection.keep(_give_back(tasks, named)))
    try:
        raise fault
    finally:
        del fault  # it refers to this frame


async def _give_back(tasks: Sequence[asyncio.Task[Claim]], named: bool) -> None:
    made = await asyncio.gather(*tasks, return_exceptions=True)
    claims = [claim for claim in made if isinstance(claim, Claim) and claim.acquired]
    releases = [claim._free() for claim in claims if not named or claim._first_hand]
    await asyncio.gather(*releases, return_exceptions=True)
