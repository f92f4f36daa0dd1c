"""The operations that both wires share, in the wires' terms: times in milliseconds, results as bytes."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from ..errors import UnavailableError, foreign
from ..gateway import Dedup
from ..model import Outcome, Record
from ..protocol.keyspace import names_of
from ..protocol.operations import ClaimOp, ReleaseOp, RenewOp, Reply, SettleOp, Verdict
from ..protocol.owners import owner_field

_ACQUIRED = Outcome.ACQUIRED


def seconds(ms: int | None) -> float | None:
    """Return the wire's milliseconds as seconds."""
    return None if ms is None else ms / 1000


# Claims


def start(dedup: Dedup, op: ClaimOp) -> asyncio.Future[Reply]:
    """Send a claim to the engine. Where the engine refuses it, the future that is returned fails."""
    try:
        return dedup.start_claim(op)
    except UnavailableError as fault:
        refused: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        refused.set_exception(fault)
        return refused


async def verdict_on(dedup: Dedup, op: ClaimOp, future: asyncio.Future[Reply]) -> Verdict:
    """Return the verdict on a claim that was sent; where the store does not answer, the policy's verdict.

    Raises:
        UnavailableError: the policy does not answer either, or too few replicas confirmed the claim and
            `on_shortfall` is "raise".
        ForeignRecordError: the key holds what fastdedup did not write.
    """
    try:
        reply = await future
        if isinstance(reply, UnavailableError):
            raise reply
    except UnavailableError as fault:
        reply = dedup.fall_back(op, fault)
    if type(reply) is not Verdict:
        raise foreign(names_of(op.wire)[1])
    if reply.short and reply.outcome is _ACQUIRED:
        _fell_short(dedup, op, reply)
    return reply


def _fell_short(dedup: Dedup, op: ClaimOp, verdict: Verdict) -> None:
    try:
        dedup.fell_short(op)
    except UnavailableError:
        if verdict.fresh and not op.terms.consumes:
            dedup.release_later(
                op.wire, op.owner
            )  # the claimant gets the error, so nobody knows of the claim
        raise


class Asked:
    """A claim whose owner was drawn at random, in the place of the future that the engine expects.

    An asyncio future would cost a turn of the loop, and a task that waits for it: 40 % of the instructions of a
    claim over HTTP.
    """

    __slots__ = ("_dedup", "_error", "_op")

    def __init__(self, dedup: Dedup, op: ClaimOp) -> None:
        self._dedup = dedup
        self._op: ClaimOp | None = op
        self._error: BaseException | None = None

    def answered(self, dedup: Dedup, op: ClaimOp, verdict: Verdict) -> None:
        """Take the verdict."""
        raise NotImplementedError

    def failed(self, fault: Exception) -> None:
        """Take the exception that came instead of a verdict."""
        raise NotImplementedError

    def begin(self) -> None:
        """Send the claim to the engine."""
        assert self._op is not None
        try:
            self._dedup.start_claim(self._op, self)
        except UnavailableError as fault:
            self.set_exception(fault)

    def done(self) -> bool:
        """True once nobody waits; the engine then releases the claim."""
        return self._op is None

    def cancelled(self) -> bool:
        """Return False: nobody cancels this object."""
        return False

    def exception(self) -> BaseException | None:
        """Return the exception that the engine gave, or None."""
        return self._error

    def set_result(self, reply: Reply) -> None:
        """Take the store's reply (the engine calls this)."""
        op = self._op
        assert op is not None
        if type(reply) is not Verdict:
            self.set_exception(reply if isinstance(reply, Exception) else foreign(names_of(op.wire)[1]))
            return
        self._op = None  # the operation refers to this object: a cycle would be left to the garbage collector
        if reply.short and reply.outcome is _ACQUIRED:
            try:
                _fell_short(self._dedup, op, reply)
            except UnavailableError as fault:
                self.failed(fault)
                return
        try:
            self.answered(self._dedup, op, reply)
        except Exception as fault:  # noqa: BLE001 -- the engine has others to tell
            self.failed(fault)

    def set_exception(self, fault: BaseException) -> None:
        """Take the engine's exception: ask the policy, and take its reply or its exception."""
        op, self._error = self._op, fault
        assert op is not None
        try:
            if not isinstance(fault, UnavailableError):
                raise fault
            reply = self._dedup.fall_back(op, fault)
        except Exception as final:  # noqa: BLE001 -- whatever it is, the client is told
            self._op = None
            self.failed(final)
        else:
            self.set_result(reply)


# Settling


def settling(
    dedup: Dedup,
    wire: bytes,
    owner: bytes,
    *,
    fence: int | None,
    succeeded: bool,
    ttl: int | None,
    payload: bytes,
) -> SettleOp:
    """Return the operation that completes or fails a claim.

    Raises:
        ResultTooLargeError: the payload is larger than the namespace allows.
    """
    dedup.check_result(payload)
    keep_ms = ttl or dedup.keep_ms(succeeded=succeeded)
    return SettleOp(wire, owner, fence or 0, succeeded=succeeded, keep_ms=keep_ms, payload=payload)


def releasing(wire: bytes, owner: bytes, fence: int | None) -> ReleaseOp:
    """Return the operation that frees a claim."""
    return ReleaseOp(wire, owner, fence or 0)


def renewing(dedup: Dedup, wire: bytes, owner: bytes, fence: int | None, lease: int | None) -> RenewOp:
    """Return the operation that starts a lease anew; `lease` None stands for the namespace's lease."""
    terms = dedup.terms_ms(lease, None)
    return RenewOp(wire, owner, fence or 0, terms.lease_ms, terms.keep_ms)


def held(dedup: Dedup, key: str, owner: str, *, token: bool) -> tuple[bytes, bytes]:
    """Return the store key and the owner field for the key and the owner that a client names.

    Raises:
        InvalidKeyError: no claim can have this key or this owner.
    """
    wire = dedup.tokens.wire(key) if token else dedup.claim_wire(key.encode())
    return wire, owner_field(owner)


# Records and results


def record_facts(record: Record) -> dict[str, Any]:
    """Return a record for JSON, times in milliseconds. A result that is JSON is embedded; any other is text."""
    return {
        "key": record.key,
        "state": record.state,
        "owner": record.owner,
        "fence": record.fence,
        "attempt": record.attempt,
        "lease": None if record.lease is None else round(record.lease * 1000),
        "ttl": round(record.ttl * 1000),
        "fingerprint": record.fingerprint.hex() if record.fingerprint else None,
        "result": as_json(record.result),
        "error": as_json(record.error),
    }


def as_json(payload: bytes | None) -> Any:
    """Return a payload for embedding in JSON: as it is where it is JSON, else as text."""
    if not payload:
        return None
    try:
        orjson.loads(payload)
    except ValueError:
        return payload.decode(errors="replace")
    return orjson.Fragment(payload)
