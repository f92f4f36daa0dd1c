"""The operations that both wires share, in the wires' terms: times in milliseconds, results as bytes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import orjson

from ..admin import inspection
from ..claim import Claim
from ..claiming import claim_call
from ..core.audit import check_reason
from ..core.options import PLAIN, ClaimOptions
from ..errors import (
    ConfigError,
    DedupError,
    LedgerFullError,
    ShortfallError,
    UnavailableError,
    UsageError,
)
from ..gateway import Dedup
from ..kernel.keyspace import names_of
from ..kernel.operations import ClaimOp, OwnerOp, ReadOp, Reply, Verdict
from ..kernel.owners import draw_owner, owner_field
from ..kernel.records import Stored
from ..kernel.terms import Mode
from ..model import Outcome, Record, RecordKind
from ..tokens import token_op
from .ephemeral import EphemeralClaims
from .ledgers import ServedLedger
from .limits import MOST_LISTED, MOST_LISTING_MS, LimitError
from .namespaces import Namespaces
from .record_facts import facts_of
from .releases import Holding, Undoable
from .wire_verbs import VERBS, WireVerb

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

    __slots__ = ("_dedup", "_op")

    def __init__(self, dedup: Dedup, op: ClaimOp) -> None:
        self._dedup = dedup
        self._op: ClaimOp | None = op

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
        """True once the claim is answered; the engine then releases it if it wins."""
        return self._op is None

    def set_result(self, reply: Reply) -> None:
        """Take the store's reply."""
        if type(reply) is Verdict and not reply.underreplicated:
            self._hand_on(reply)
        else:
            self._judge(reply)

    def set_exception(self, fault: BaseException) -> None:
        """Take the error that came instead of the reply."""
        self._judge(fault)

    def _judge(self, answer: Reply | BaseException) -> None:
        op = self._op
        assert op is not None
        try:
            verdict = self._dedup.gate.claim_verdict(op, answer)
        except Exception as final:  # noqa: BLE001 -- the client gets every error as a reply
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


Home = Dedup | ServedLedger
"""The home of a claim: its namespace, or the ledger that remembers its success."""


def dedup_of(home: Home) -> Dedup:
    """Return the namespace that a claim belongs to."""
    return home if isinstance(home, Dedup) else home.dedup


Begun = tuple[Home, Callable[[], Coroutine[Any, Any, Any]]]
"""A request that was checked: the namespace or the ledger that it is about, and what does what it asks for, and
returns what was found or done; `Undoable` if only the answer tells of that."""
Begin = Callable[[Namespaces, Any, Any], Begun]
"""Checks a verb's request, which both wires read into an object with the same attributes; the last argument is the
client's process."""


def claim_in(
    home: Home, options: ClaimOptions, key: str, mark: Any, *, token: bool = False
) -> Coroutine[Any, Any, Claim]:
    """Return a claim to be awaited; arguments and errors as for `claim_call`, or of a token as for `redeem_with`."""
    if isinstance(home, ServedLedger):
        return home.claim(options, key, mark)
    if token:
        return home.tokens.redeem_with(options, key, mark)
    return claim_call(home.gate, options, key, mark)


def needs_a_task(ask: Any) -> bool:
    """True for a claim that waits, names its owner, or has a ledger: it cannot be an `Asked`."""
    return bool(ask.wait) or ask.owner is not None or ask.remember is not None


def options_of(ask: Any) -> ClaimOptions:
    """Return the options of a claim, or of a token to redeem, that a request states, without its wait."""
    owner = getattr(ask, "owner", None)  # a request over HTTP to redeem a token has none
    if owner is None and ask.lease is None and ask.ttl is None:
        return PLAIN  # it takes no memory while the claim waits
    return ClaimOptions(owner, seconds(ask.lease), seconds(ask.ttl))


def op_of(dedup: Dedup, key: bytes, mark: bytes | None, ask: Any) -> ClaimOp:
    """Return the operation of a claim that neither waits nor has a ledger, with the options that a request states."""
    owner = draw_owner() if ask.owner is None else owner_field(ask.owner)
    op = ClaimOp(dedup.gate.claims.wire_of(key), dedup.gate.terms_ms(ask.lease, ask.ttl), owner, mark)
    op.named = ask.owner is not None
    return op


# What an owner does to its claim


def home_of(namespaces: Namespaces, ask: Any, *, creates: bool = False) -> Home:
    """Return the home of the claim that a request is about: the ledger that it names, or else its namespace.

    `creates`: it may be the namespace's first claim; see `Namespaces.passing`.

    Raises:
        ConfigError: this socket serves no such namespace or ledger.
    """
    if ask.remember is None:
        return namespaces.dedup(ask.namespace) if creates else namespaces.passing(ask.namespace)
    namespaces.passing(ask.namespace)  # if this socket refuses the namespace, a ledger is not what is wrong
    return namespaces.ledgers.find(ask.remember, ask.namespace)


def change(verb: WireVerb, namespaces: Namespaces, ask: Any, peer: Any) -> Begun:
    """Begin what an owner does to its claim; the work returns the operation that did it.

    Args:
        verb: one of an owner.
        namespaces: the client's.
        ask: the request.
        peer: the client's process.

    Raises:
        ConfigError: this socket serves no such namespace or ledger; or a token and a ledger are named.
        InvalidKeyError: no claim can have this key or this owner.
        ResultTooLargeError: the result is larger than the namespace allows.
    """
    home = home_of(namespaces, ask)
    if ask.token and ask.remember is not None:
        raise ConfigError(ask.both)
    assert verb.change is not None
    fence, ephemeral = ask.fence or 0, namespaces.ephemeral
    work: Callable[[], Coroutine[Any, Any, OwnerOp]]
    if isinstance(home, Dedup):
        wire, field = held(home, ask.key, ask.owner, token=ask.token)
        work = OneChange(ephemeral, home, verb.change(home.gate, ask)((wire, field, fence), None))
    else:
        field, make = owner_field(ask.owner), verb.change(home.dedup.gate, ask)
        work = partial(home.change, ephemeral, ask.key, lambda wire, at: make((wire, field, fence), at))
    renews = verb.name == "renew" and ask.lease is None
    return home, OneRenewal(verb, namespaces, ask) if renews else work


class OneRenewal:
    """Renews a claim whose owner names no lease: for the namespace's, and never for less than is left of it.

    A shorter lease would let another owner in, while this one relies on the lease that its claim has named. It is a
    class for the reason of `OneChange`.
    """

    __slots__ = ("_ask", "_namespaces", "_verb")

    def __init__(self, verb: WireVerb, namespaces: Namespaces, ask: Any) -> None:
        self._verb = verb
        self._namespaces = namespaces
        self._ask = ask

    async def __call__(self) -> OwnerOp:
        """Make the change; return the operation that did."""
        namespaces, ask = self._namespaces, self._ask
        dedup, wire, _ = await held_in(home_of(namespaces, ask), ask.key, ask.owner, token=ask.token)
        found = await dedup.gate.run(ReadOp(wire))
        left_ms = found.left_ms if isinstance(found, Stored) else 0
        ask.lease = max(dedup.gate.claim_terms.lease_ms, left_ms)
        renewed: OwnerOp = await change(self._verb, namespaces, ask, None)[1]()
        return renewed


class OneChange:
    """Changes a claim. A client may have 1,000 of these, and a `partial` in its place takes 150 bytes more."""

    __slots__ = ("_dedup", "_ephemeral", "_op")

    def __init__(self, ephemeral: EphemeralClaims, dedup: Dedup, op: OwnerOp) -> None:
        self._ephemeral = ephemeral
        self._dedup = dedup
        self._op = op

    async def __call__(self) -> OwnerOp:
        """Make the change; return the operation that did."""
        try:
            await self._dedup.gate.change(self._op)
        except ShortfallError:  # it was done
            self._ephemeral.changed(self._dedup, self._op)
            raise
        return self._op


def held(dedup: Dedup, key: str, owner: str, *, token: bool = False) -> tuple[bytes, bytes]:
    """Return the store key and the owner field for the key and the owner that a client names.

    Raises:
        InvalidKeyError: no claim can have this key or this owner.
    """
    wire = dedup.tokens.wire(key) if token else dedup.gate.claims.wire_of(key.encode())
    return wire, owner_field(owner)


async def held_in(home: Home, key: str, owner: str, *, token: bool = False) -> Holding:
    """Return what `held` returns, also for a claim that a ledger remembers, and its namespace."""
    if isinstance(home, ServedLedger):
        return await home.held(key, owner)
    return home, *held(home, key, owner, token=token)


# Tokens


async def issue(namespaces: Namespaces, dedup: Dedup, ask: Any, peer: Any) -> dict[str, Any]:
    """Make a token; return it, and its time to live."""
    token = await dedup.tokens.issue(ask.subject, seconds(ask.ttl))
    return {"token": token, "ttl": round(dedup.settings.token_ttl * 1000) if ask.ttl is None else ask.ttl}


async def consume(namespaces: Namespaces, dedup: Dedup, ask: Any, peer: Any) -> Undoable:
    """Use a token up; return the verdict."""
    op = token_op(dedup.gate, PLAIN, ask.token, ask.subject, Mode.CONSUME)
    verdict = await dedup.gate.use(op)
    undo = partial(dedup.gate.release_later, op.wire, op.owner, consumed=True)
    return Undoable(verdict, (undo,) if verdict.outcome is _ACQUIRED else ())


# Showing, forgetting


LISTED: Final = "records"
"""The kind by which an audit tells a list from a key that was forgotten."""


async def get(namespaces: Namespaces, dedup: Dedup, ask: Any, peer: Any) -> dict[str, Any] | None:
    """Look for a record; return it for JSON, or None."""
    record = await dedup.get(ask.key, _kind(ask), digest=ask.digest)
    return None if record is None else record_facts(namespaces, record)


def _kind(ask: Any) -> RecordKind:
    """Return the kind of the record that is meant. Empty text is a mistake: it must not forget a claim."""
    return "claim" if ask.kind is None else ask.kind


async def forget(namespaces: Namespaces, dedup: Dedup, ask: Any, peer: Any) -> bool:
    """Remove a record, and report that; return False if there was no record."""
    name, why = dedup.settings.namespace, check_reason(ask.reason)
    kind = _kind(ask)
    # The report names the key like a list does: a long key by its digest, however the client has named it.
    listed = names_of(inspection.wire_of(dedup.gate, ask.key, kind, digest=ask.digest))[1]
    heard = forgotten_audit(namespaces, name, peer, why, kind=kind, listed=listed)
    return await inspection.forget(dedup.gate, ask.key, kind, digest=ask.digest, reason=why, heard=heard)


def forgotten_audit(
    namespaces: Namespaces, name: str, peer: Any, why: str, *, kind: str, listed: str | None = None
) -> Callable[[str, bool | None], None]:
    """Return what reports each key, or id of a ledger, that the client `peer` has forgotten, and why.

    The report names the key or id that was forgotten, or `listed` if that is given.
    """

    def heard(told: str, found: bool | None) -> None:
        result = "unknown" if found is None else "forgotten" if found else "absent"
        namespaces.audit(name, told if listed is None else listed, result, peer, kind=kind, reason=why)

    return heard


def ledger(verb: str, namespaces: Namespaces, ask: Any, peer: Any) -> Begun:
    """Begin a ledger's verb: first, seen, forget_id, or ledger, which shows it.

    Raises:
        UnknownLedgerError: this socket serves no such ledger.
        ConfigError: the reason is too long.
    """
    served = namespaces.ledgers.find(ask.ledger, ask.namespace)
    if verb == "first":
        namespaces.access.charge(verb, len(ask.ids) - 1)
        return served, partial(served.first, ask.ids, ask.owner)
    if verb == "seen":
        return served, partial(served.seen, ask.ids)
    if verb == "forget_id":
        why = check_reason(ask.reason)
        heard = forgotten_audit(namespaces, served.namespace, peer, why, kind="id")
        return served, partial(served.forget, ask.ids, heard)
    return served, partial(_ledger_facts, namespaces, served, peer)


async def _ledger_facts(namespaces: Namespaces, served: ServedLedger, peer: Any) -> dict[str, Any]:
    async with namespaces.turns.reads.turn(namespaces.access.path, peer):
        return await served.facts()


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


async def list_records(namespaces: Namespaces, dedup: Dedup, ask: Any, peer: Any) -> dict[str, Any]:
    """Return records for JSON, and report that. Times in milliseconds."""
    why, prefix = check_reason(ask.reason), ask.prefix or ""
    with list_audit(namespaces, dedup.settings.namespace, prefix, peer, why) as told:
        async with namespaces.turns.reads.turn(namespaces.access.path, peer):
            found = await inspection.listing(
                dedup.gate,
                kind=ask.kind,
                prefix=prefix,
                state=None if ask.state is None else inspection.state_of(ask.state),
                older=(ask.older or 0) / 1000,
                limit=min(ask.limit or 100, MOST_LISTED),
                within=min(ask.within or MOST_LISTING_MS, MOST_LISTING_MS) / 1000,
                cursor=ask.cursor,
                reason=why,
            )
        told(len(found.records))
    return {
        "records": [record_facts(namespaces, record) for record in found.records],
        "cursor": found.cursor,
        "looked_at": found.looked_at,
    }


def in_namespace(
    work: Callable[[Namespaces, Dedup, Any, Any], Coroutine[Any, Any, Any]], *, creates: bool = False
) -> Begin:
    """Return what begins a verb's work in a request's namespace; `creates`: see `Namespaces.passing`."""

    def begin(namespaces: Namespaces, ask: Any, peer: Any) -> Begun:
        dedup = namespaces.dedup(ask.namespace) if creates else namespaces.passing(ask.namespace)
        return dedup, partial(work, namespaces, dedup, ask, peer)

    return begin


BEGIN: Final[dict[str, Begin]] = {
    **{verb.name: partial(change, verb) for verb in VERBS if verb.of_owner},
    "issue": in_namespace(issue, creates=True),
    "consume": in_namespace(consume, creates=True),
    "get": in_namespace(get),
    "forget": in_namespace(forget),
    "list": in_namespace(list_records),
    **{verb.name: partial(ledger, verb.name) for verb in VERBS if verb.of_ledger},
}
"""What begins each verb's work, by the verb's name; each wire begins `claim` and `redeem` in its own way."""


# Records and results


def record_facts(namespaces: Namespaces, record: Record) -> dict[str, Any]:
    """Return a record for JSON, times in milliseconds. A result that is JSON is embedded; any other is text.

    The owner is null on a socket that hides owners: a client that knows it may settle the claim of another socket's
    client.
    """
    facts = facts_of(record)
    if not namespaces.access.show_owners:
        facts["owner"] = None
    if record.kind != "machine":
        facts["result"] = as_json(record.result)
    facts["error"] = as_json(record.error)
    return facts


def as_json(payload: bytes | None) -> Any:
    """Return a payload for embedding in JSON: unchanged if it is JSON, else converted to text."""
    if not payload:
        return None
    try:
        orjson.loads(payload)
    except ValueError:
        return payload.decode(errors="replace")
    return orjson.Fragment(payload)
