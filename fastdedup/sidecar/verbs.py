"""The operations that both wires share, in the wires' terms: times in milliseconds, results as bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import orjson

from ..admin import inspection
from ..codec import check_size
from ..core.audit import check_reason
from ..errors import (
    DedupError,
    LedgerFullError,
    ShortfallError,
    UnavailableError,
    UsageError,
)
from ..gateway import Dedup
from ..kernel.keyspace import names_of
from ..kernel.operations import ClaimOp, ReleaseOp, RenewOp, Reply, SettleOp, Verdict
from ..kernel.owners import owner_field
from ..model import Outcome, Record, RecordKind
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
            self._dedup.gate.begin_claim(self._op, self)
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
        if type(reply) is Verdict and not reply.underreplicated:
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
            verdict = self._dedup.gate.claim_verdict(op, answer)
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
    keep_ms = ttl or dedup.gate.keep_ms(succeeded=succeeded)
    return SettleOp(wire, owner, fence or 0, succeeded=succeeded, keep_ms=keep_ms, payload=payload)


def releasing(wire: bytes, owner: bytes, fence: int | None) -> ReleaseOp:
    """Return the operation that frees a claim."""
    return ReleaseOp(wire, owner, fence or 0)


def renewing(dedup: Dedup, wire: bytes, owner: bytes, fence: int | None, lease: int | None) -> RenewOp:
    """Return the operation that starts a lease anew; `lease` None stands for the namespace's lease."""
    terms = dedup.gate.terms_ms(lease, None)
    return RenewOp(wire, owner, fence or 0, terms.lease_ms, terms.keep_ms)


def held(dedup: Dedup, key: str, owner: str, *, token: bool) -> tuple[bytes, bytes]:
    """Return the store key and the owner field for the key and the owner that a client names.

    Raises:
        InvalidKeyError: no claim can have this key or this owner.
    """
    wire = dedup.tokens.wire(key) if token else dedup.gate.claims.wire_of(key.encode())
    return wire, owner_field(owner)


# Forgetting


LISTED: Final = "records"
"""The kind by which an audit tells a list from a key that was forgotten."""


async def forget(
    namespaces: Namespaces,
    dedup: Dedup,
    key: str,
    peer: Any,
    *,
    kind: RecordKind = "claim",
    digest: bool = False,
    reason: str | None = None,
) -> bool:
    """Remove a key's record for the client `peer`, and report that; False where there was none."""
    name, why = dedup.settings.namespace, check_reason(reason)
    # As a list shows it: a long key as its digest, however the client has named it.
    listed = names_of(inspection.wire_of(dedup.gate, key, kind, digest=digest))[1]

    def heard(told: str, found: bool | None) -> None:
        result = "unknown" if found is None else "forgotten" if found else "absent"
        namespaces.audit(name, listed, result, peer, kind=kind, reason=why)

    return await inspection.forget(dedup.gate, key, kind, digest=digest, reason=why, heard=heard)


def id_audit(
    namespaces: Namespaces, name: str, peer: Any, reason: str | None
) -> Callable[[str, bool | None], None]:
    """Return what reports each id of a ledger that the client `peer` has forgotten, and why.

    Raises:
        ConfigError: the reason is too long.
    """
    why = check_reason(reason)

    def heard(told: str, found: bool | None) -> None:
        result = "unknown" if found is None else "forgotten" if found else "absent"
        namespaces.audit(name, told, result, peer, kind="id", reason=why)

    return heard


@contextmanager
def list_audit(
    namespaces: Namespaces, name: str, prefix: str, peer: Any, why: str
) -> Iterator[Callable[[int], None]]:
    """Report a list of records for the client `peer`; the block tells how many there are.

    A client that hangs up ends the block: what it was sent until then is not known.
    """
    told: list[int] = []
    try:
        yield told.append
    finally:
        result = f"{told[0]} records" if told else "unknown"
        namespaces.audit(name, prefix, result, peer, kind=LISTED, reason=why)


class ListOptions:
    """What a client asks of a list; times in milliseconds."""

    __slots__ = ("cursor", "kind", "limit", "older", "prefix", "reason", "state", "within")

    def __init__(
        self,
        *,
        kind: RecordKind | None = None,
        prefix: str = "",
        state: str | None = None,
        older: int = 0,
        limit: int = 100,
        within: int = 1000,
        cursor: str | None = None,
        reason: str | None = None,
    ) -> None:
        self.kind = kind
        self.prefix = prefix
        self.state = state
        self.older = older
        self.limit = limit
        self.within = within
        self.cursor = cursor
        self.reason = reason


async def records(namespaces: Namespaces, dedup: Dedup, wanted: ListOptions, peer: Any) -> dict[str, Any]:
    """Return a list of records for JSON, for the client `peer`, and report that."""
    why = check_reason(wanted.reason)
    with list_audit(namespaces, dedup.settings.namespace, wanted.prefix, peer, why) as told:
        async with namespaces.turns.reads.turn(namespaces.access.path, peer):
            found = await inspection.listing(
                dedup.gate,
                kind=wanted.kind,
                prefix=wanted.prefix,
                state=None if wanted.state is None else inspection.state_of(wanted.state),
                older=wanted.older / 1000,
                limit=wanted.limit,
                within=wanted.within / 1000,
                cursor=wanted.cursor,
                reason=why,
            )
        told(len(found.records))
    return {
        "records": [record_facts(namespaces, record) for record in found.records],
        "cursor": found.cursor,
        "looked_at": found.looked_at,
    }


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
        "result": record.result if record.kind == "machine" else as_json(record.result),
        "error": as_json(record.error),
        "kind": record.kind,
        "age": None if record.age is None else round(record.age * 1000),
        "version": record.version,
        "holder": record.holder,
        "trace": record.trace,
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
