"""The operations that both wires share, in the wires' terms: times in milliseconds, results as bytes."""

from __future__ import annotations

from typing import Any, Final

import orjson

from ..codec import check_size
from ..errors import (
    DedupError,
    InvalidKeyError,
    LedgerFullError,
    ShortfallError,
    UnavailableError,
    UsageError,
)
from ..gateway import Dedup
from ..model import Outcome, Record
from ..protocol.operations import ClaimOp, ReleaseOp, RenewOp, Reply, SettleOp, Verdict
from ..protocol.owners import owner_field
from .limits import LimitError
from .namespaces import Namespaces

_ACQUIRED: Final = Outcome.ACQUIRED


def without_addresses(fault: DedupError) -> str:
    """Return an outage in words for a client: the error's own text, for the log, names the store's address."""
    if isinstance(fault, ShortfallError):
        return "the operation was done, and too few replicas of the store confirmed it in time"
    if isinstance(fault, UsageError):
        return "the sidecar is stopping"
    if isinstance(fault, LimitError | LedgerFullError):
        return str(fault)
    return "the store does not answer, or takes no more; the sidecar's log says why"


def seconds(ms: int | None) -> float | None:
    """Return the wire's milliseconds as seconds."""
    return None if ms is None else ms / 1000


# Claims


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
            self._dedup._namespace.ask.begin_claim(self._op, self)
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
        """Take the store's reply."""
        if type(reply) is Verdict and not reply.short:
            self._hand_on(reply)
        else:
            self._judge(reply)

    def set_exception(self, fault: BaseException) -> None:
        """Take the error that came instead of the reply."""
        self._error = fault
        self._judge(fault)

    def _judge(self, answer: Reply | BaseException) -> None:
        op = self._op
        assert op is not None
        try:
            verdict = self._dedup._namespace.ask.claim_verdict(op, answer)
        except Exception as final:  # noqa: BLE001 -- whatever it is, the client is told
            self._op = None
            self.failed(final)
        else:
            self._hand_on(verdict)

    def _hand_on(self, verdict: Verdict) -> None:
        op = self._op
        assert op is not None
        self._op = None  # it knows us: two that know each other are left to the garbage collector
        try:
            self.answered(self._dedup, op, verdict)
        except Exception as fault:  # noqa: BLE001 -- the engine has others to tell
            self.failed(fault)


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
    check_size(payload, dedup.settings.max_result)
    keep_ms = ttl or dedup._namespace.keep_ms(succeeded=succeeded)
    return SettleOp(wire, owner, fence or 0, succeeded=succeeded, keep_ms=keep_ms, payload=payload)


def releasing(wire: bytes, owner: bytes, fence: int | None) -> ReleaseOp:
    """Return the operation that frees a claim."""
    return ReleaseOp(wire, owner, fence or 0)


def renewing(dedup: Dedup, wire: bytes, owner: bytes, fence: int | None, lease: int | None) -> RenewOp:
    """Return the operation that starts a lease anew; `lease` None stands for the namespace's lease."""
    terms = dedup._namespace.terms_ms(lease, None)
    return RenewOp(wire, owner, fence or 0, terms.lease_ms, terms.keep_ms)


def held(dedup: Dedup, key: str, owner: str, *, token: bool) -> tuple[bytes, bytes]:
    """Return the store key and the owner field for the key and the owner that a client names.

    Raises:
        InvalidKeyError: no claim can have this key or this owner.
    """
    wire = dedup.tokens.wire(key) if token else dedup._namespace.claims.wire_of(key.encode())
    return wire, owner_field(owner)


# Forgetting


async def forget(namespaces: Namespaces, dedup: Dedup, key: str, transport: Any) -> bool:
    """Remove a key's record for the client behind `transport`, and report that; False where there was none."""
    name = dedup.settings.namespace
    try:
        found = await dedup.forget(key)
    except InvalidKeyError:
        raise
    except BaseException:
        namespaces.audit(name, key, "unknown", transport)  # it may have taken effect
        raise
    namespaces.audit(name, key, "forgotten" if found else "absent", transport)
    return found


# Records and results


def record_facts(namespaces: Namespaces, record: Record) -> dict[str, Any]:
    """Return a record for JSON, times in milliseconds. A result that is JSON is embedded; any other is text.

    The owner is null on a socket that shows none: whoever knows it may settle the claim of another socket's client.
    """
    return {
        "key": record.key,
        "state": record.state,
        "owner": record.owner if namespaces.access.show_owners else None,
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
