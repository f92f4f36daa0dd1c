"""A claim whose success a ledger remembers: `dedup.claim(key, remember=ledger)` returns it; and a list of them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from time import perf_counter
from typing import Any

from ..claim import Claim
from ..core.calls import ClaimCall, Then, claim_of, claim_op, count_claim
from ..core.gate import Gate
from ..core.many import ClaimList, ListedClaim
from ..core.options import ClaimOptions
from ..core.waiting import claim_once, wait_for_verdict
from ..errors import ConfigError, UnavailableError
from ..kernel.operations import ClaimOp
from ..kernel.owners import owner_text
from .client import Ledger
from .ids import record_wire
from .operations import FindsIds


class RememberedCall(ClaimCall):
    """A claim that is not made yet, like `ClaimCall`, whose success a ledger remembers.

    Its record has a place that depends on the ledger's form.

    Args:
        gate: the claim's gate.
        op: the claim's operation; its `wire` is the key's record without a ledger.
        ledger: remembers the success.
        wait: seconds to wait for another owner.
        renew: keep the lease alive.
        then: see `ClaimCall`.
    """

    __slots__ = ("_ledger",)

    def __init__(
        self,
        gate: Gate,
        op: ClaimOp,
        ledger: FindsIds,
        wait: float,
        renew: bool | None,
        then: Then | None,
    ) -> None:
        super().__init__(gate, op, wait, renew, then)
        self._ledger = ledger

    def __await__(self) -> Generator[Any, Any, Claim]:
        """Make the claim. A coroutine of its own, because the ledger's form may have to be read first."""
        if self._then is not None or self.wants_span():
            return (yield from self.surrounded().__await__())
        if self._used:
            raise self.used_before()
        self._used = True
        return (yield from self._make().__await__())

    async def _make(self) -> Claim:
        gate, since = self._gate, perf_counter()
        op = self.op.copy()
        await find_place(gate, op, self._ledger)
        try:
            if self.wait > 0.0:
                verdict = await wait_for_verdict(gate, op, self.wait)
            else:
                verdict = await claim_once(gate, op, op.terms)
        except Exception as fault:
            if isinstance(fault, UnavailableError):
                self._ledger.distrust()
            count_claim(gate, "claim", fault, since)
            raise
        if verdict.degraded:
            self._ledger.distrust()
        count_claim(gate, "claim", verdict, since, will_wait=self.will_wait)
        return claim_of(gate, op, verdict, self.renews, owned=self.owns_renewal)


class RememberedList(ClaimList):
    """Claims of different keys, made by one call, whose successes a ledger remembers. Arguments: see `ClaimList`.

    Raises:
        ConfigError: see `ledger_for`.
    """

    def __init__(self, gate: Gate, options: ClaimOptions) -> None:
        super().__init__(gate, options)
        self._ledger: FindsIds = ledger_for(gate, options)

    async def prepare(self, claims: Sequence[ListedClaim]) -> None:
        """Find the places of the claims' records."""
        for claim in claims:
            await find_place(self.gate, claim, self._ledger)

    def ended(self, claims: Sequence[ListedClaim], fault: BaseException | None = None) -> None:
        """Distrust what is known of the ledger after an answer without the store."""
        if fault is None:
            distrusts = any(claim.answer.degraded for claim in claims)
        else:
            distrusts = isinstance(fault, UnavailableError)
        if distrusts:
            self._ledger.distrust()


async def find_place(gate: Gate, op: ClaimOp, ledger: FindsIds) -> None:
    """Let a claim's record lie beside its id in the ledger; `op.wire` is the key's record without a ledger.

    Raises:
        UnavailableError: the store did not answer; `owner` names the claim's own.
        ConfigError: see `Ledger.place_of`.
    """
    try:
        place = await ledger.place_of(op.key)
    except UnavailableError as error:
        error.owner = owner_text(op.owner)
        raise
    op.wire = record_wire(place.bucket, op.wire, gate.settings.namespace)
    op.unless = place


def ledger_for(gate: Gate, options: ClaimOptions) -> Ledger:
    """Return the ledger of the options. Raises ConfigError: it is none, or another gate's, or takes no text."""
    ledger = options.remember
    if not isinstance(ledger, Ledger) or not ledger.is_of(gate.connection, gate.settings.namespace):
        raise ConfigError(f"remember must be a ledger of this gate, made by its ledger(), got {ledger!r}")
    if ledger.dense:
        raise ConfigError(
            f"remember must be a ledger without dense=True, because a claim's key is text, got {ledger!r}"
        )
    return ledger


def remembered_call(
    gate: Gate, options: ClaimOptions, key: Any, mark: bytes | None, then: Then | None
) -> RememberedCall:
    """Return a claim to await. Arguments and errors: see `Dedup.claim`.

    Args:
        gate: the claim's gate.
        options: how to make it.
        key: the key.
        mark: its fingerprint, or None.
        then: see `ClaimCall`.
    """
    wait, ledger = options.seconds_to_wait, ledger_for(gate, options)
    op = claim_op(gate, options, key, gate.claims.wire(key), mark)
    return RememberedCall(gate, op, ledger, wait, options.renews, then)
