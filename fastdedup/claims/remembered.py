"""A claim whose success a ledger remembers: what `dedup.claim(key, remember=ledger)` returns."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from time import perf_counter
from typing import Any

from ..claim import Claim
from ..errors import UnavailableError, UsageError
from ..gate.namespace import Namespace
from ..protocol.ledger_ids import record_wire
from ..protocol.ledgers import FindsIds, RememberedClaimOp
from ..protocol.operations import Terms
from ..protocol.owners import owner_text
from .call import ClaimCall, claim_of, count_claim
from .waiting import claim_once, wait_for_verdict


class RememberedCall(ClaimCall):
    """A claim not yet made, as `ClaimCall`. Where its record lies is known once the ledger's form is.

    `wire`: the key's record without a ledger.
    """

    __slots__ = ("_ledger",)

    def __init__(
        self,
        namespace: Namespace,
        key: str,
        wire: bytes,
        ledger: FindsIds,
        terms: Terms,
        owner: bytes,
        fingerprint: bytes | None,
    ) -> None:
        super().__init__(namespace, key, wire, terms, owner, fingerprint)
        self._ledger = ledger

    def _made(self) -> Generator[Any, Any, Claim]:
        """Claim. A coroutine of its own, as the ledger's form may have to be read first."""
        if self._used:
            raise UsageError(f"this claim of {self.key!r} was awaited before; call claim() for another one")
        self._used = True
        return (yield from self._claim().__await__())

    async def _claim(self) -> Claim:
        namespace = self._namespace
        if namespace.watchers.counters is not None:
            self.since = perf_counter()
        op = await self._operation()
        try:
            if self.patient and self.wait > 0.0:
                verdict = await wait_for_verdict(namespace, op, self.wait)
            else:
                verdict = await claim_once(namespace, op, op.terms)
        except Exception as fault:
            if isinstance(fault, UnavailableError):
                self._ledger.distrust()
            count_claim(namespace, op, fault, self)
            raise
        if verdict.degraded:
            self._ledger.distrust()
        count_claim(namespace, op, verdict, self)
        return claim_of(namespace, op, verdict, self._renews)

    async def _operation(self) -> RememberedClaimOp:
        try:
            place = await self._ledger.place_of(self.key)
        except UnavailableError as error:
            error.owner = owner_text(self.owner)
            raise
        wire = record_wire(place[0], self.wire, self._namespace.settings.namespace)
        op = RememberedClaimOp(wire, self.terms, self.owner, self.fingerprint, place)
        op.key, op.named, op.ledger = self.key, self.named, self._ledger
        return op


async def claim_each(calls: Sequence[RememberedCall], *, named: bool) -> list[Claim]:
    """Make claims of one list; where one cannot be answered its error is raised, and the others are released.

    `named`: the owner is the caller's own; what it held before stays its own.
    """
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
    await asyncio.shield(calls[0]._namespace.connection.keep(_give_back(tasks, named)))
    try:
        raise fault
    finally:
        del fault  # it refers to this frame


async def _give_back(tasks: Sequence[asyncio.Task[Claim]], named: bool) -> None:
    made = await asyncio.gather(*tasks, return_exceptions=True)
    claims = [claim for claim in made if isinstance(claim, Claim) and claim.acquired]
    releases = [claim.release() for claim in claims if not named or claim._first_hand]
    await asyncio.gather(*releases, return_exceptions=True)
