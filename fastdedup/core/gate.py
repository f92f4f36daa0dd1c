"""One namespace over one connection: its keys, the terms of its claims, and its way to the verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any, Final

from .. import codec
from ..checks import milliseconds
from ..errors import ClaimLostError, UnavailableError, foreign
from ..events import LeaseLost
from ..kernel.codes import Code
from ..kernel.granted import note_use
from ..kernel.keyspace import Keyspace, Kind, names_of
from ..kernel.operations import ClaimOp, Op, OwnerOp, ReleaseOp, Reply, SettleOp, Verdict
from ..kernel.owners import (
    Noted,
    draw_owner,
    next_drawn,
    notes_of,
    owner_field,
    owner_text,
    trace_of,
)
from ..kernel.records import Stored
from ..kernel.terms import Mode, Terms, terms
from ..keys import Fingerprint
from ..model import Record, RecordKind, State
from .connections import Connections
from .executor import Executor
from .holder import HolderName
from .options import PLAIN, ClaimOptions
from .recent import SharedTable
from .settings import Settings

_CLAIM: Final = Mode.CLAIM  # naming an enum's member through its class costs 50 ns on Python 3.11
_STATES: Final = {
    "I": State.ISSUED,
    "P": State.PROCESSING,
    "W": State.PROCESSING,
    "R": State.RELEASED,
    "S": State.SUCCEEDED,
    "F": State.FAILED,
}


def lost_error(key: str, op: OwnerOp) -> ClaimLostError:
    """Return the error for an owner that keeps no `Claim`, and whose operation did not find the key in its hands.

    If the reply to the first sending was lost, that one may have settled the claim or freed the key.
    """
    unsure = isinstance(op, ReleaseOp | SettleOp) and op.resent
    effect = "a reply was lost, so whether this changed it is not known" if unsure else "nothing was changed"
    return ClaimLostError(f"{key!r} is not held by this owner; {effect}", outage=unsure)


class Gate(Executor):
    """The core of a `Dedup` and of all that it makes: claims, tokens, locks and machines. Integrations call it.

    Args:
        connections: the gate's.
        settings: its settings.
        passing: it shares no recent successes with other gates of its name.

    Raises:
        ConfigError: `on_unavailable` is not a policy.
    """

    def __init__(self, connections: Connections, settings: Settings, *, passing: bool = False) -> None:
        super().__init__(connections, settings)
        connections.keep_records_of(settings.max_result)
        self.claims = self.keyspace(Kind.CLAIM)
        self.locks = self.keyspace(Kind.LOCK)
        self.tokens = self.keyspace(Kind.TOKEN)
        # Generates the owners of claims and locks: with notes if records name their holders. See `owners.py`.
        self.draw_owner: Callable[[], bytes] = draw_owner
        self.next_drawn: Callable[[], bytes] = next_drawn
        if settings.holder is not None:
            self.draw_owner = self.next_drawn = Noted(HolderName(settings.holder)).draw
        self.claim_terms = self.terms(Mode.CLAIM, settings.lease, settings.ttl)
        self._shared = SharedTable() if passing else connections.common.recent.shared(settings.namespace)
        if not passing:
            connections.common.expect(settings.namespace)
        self.recent = self._shared.table
        """Recent successes by key; it is empty, except in a storm."""

    def keyspace(self, kind: Kind) -> Keyspace:
        """Return the form of this namespace's keys of a kind in the store."""
        return Keyspace(self.settings.namespace, kind, readable=self.settings.readable_keys)

    def with_settings(self, settings: Settings, *, passing: bool = False) -> Gate:
        """Return a gate with other settings over the same connection.

        A `passing` gate, for only a few operations, leaves nothing behind at its end.
        """
        return Gate(self.connections, settings, passing=passing)

    def owners_of(self, options: ClaimOptions) -> Callable[[], bytes]:
        """Return what gives the owner field of each claim with these options. InvalidKeyError: it cannot be used."""
        return self.draw_owner if options.owner is None else partial(bytes, owner_field(options.owner))

    # Terms, in milliseconds

    def terms(self, mode: Mode, lease: Any, ttl: Any, *, remembered: bool = False) -> Terms:
        """Return the shared terms of claims with this lease and ttl, in seconds; None is the namespace's.

        `remembered`: a ledger remembers their success.
        """
        lease_ms = milliseconds(self.settings.lease if lease is None else lease, "lease")
        ttl_ms = milliseconds(self.settings.ttl if ttl is None else ttl, "ttl")
        return terms(mode, lease_ms, ttl_ms if mode is Mode.CONSUME else lease_ms + ttl_ms, False, remembered)

    def terms_of(self, options: ClaimOptions, mode: Mode = Mode.CLAIM) -> Terms:
        """Return the shared terms of claims with these options. Raises ConfigError: a time is not valid."""
        if mode is _CLAIM and options.lease is None and options.ttl is None and options.remember is None:
            return self.claim_terms
        return self.terms(mode, options.lease, options.ttl, remembered=options.remember is not None)

    def terms_ms(self, lease_ms: int | None, ttl_ms: int | None) -> Terms:
        """Return the terms of claims like `terms`, from milliseconds."""
        if lease_ms is None and ttl_ms is None:
            return self.claim_terms
        default = self.claim_terms
        lease = default.lease_ms if lease_ms is None else lease_ms
        ttl = default.ttl_ms if ttl_ms is None else ttl_ms
        return terms(Mode.CLAIM, lease, lease + ttl, False)

    def keep_ms(self, *, succeeded: bool) -> int:
        """Return for how many milliseconds an outcome is remembered by default."""
        return milliseconds(self.settings.ttl if succeeded else self.settings.failure_ttl, "ttl")

    # For callers that keep no `Claim`

    async def change(self, op: OwnerOp) -> None:
        """Send what an owner does to its claim, on behalf of an owner that keeps no `Claim`.

        Raises:
            ClaimLostError: it is not, or no longer, the owner's; see `lost_error`.
            ForeignRecordError: the key holds a value that fastdedup did not write.
            UnavailableError: neither the store nor the policy answered; repeating is safe.
        """
        key = names_of(op.wire)[1]
        if await self.run(op) != Code.OK:
            raise lost_error(key, op)
        if isinstance(op, SettleOp) and self.tokens.has(op.wire):
            note_use(op)
        self.recent.pop(key, None)

    async def find_again(self, op: ClaimOp, code: Code | None, *, moves: bool) -> bool:
        """Let a claim use the present form of its ledger, after STALE or a full bucket. True if the id has moved.

        Args:
            op: the claim.
            code: the store's answer, if it was asked.
            moves: move to the id's place in the ledger's present form. This is right for a claim that is not made
                yet, and for one from a policy: if the policy had created the ledger itself, and the store has
                another form, it moves its records there.

        Raises:
            UnavailableError: the store does not answer, or the id has moved and the claim may not.
            LedgerFullError: the bucket has no room.
        """
        former = op.unless
        if former is None:
            return False
        place = await former.find_again(code)
        moved = place.name != former.name
        if moved and not moves:
            raise UnavailableError(f"the ledger of {op.key!r} was created anew meanwhile; claim it again")
        op.wire = place.bucket + op.wire[len(former.bucket) :]
        op.unless = place
        return moved

    def forgot(self, op: Op) -> None:
        """Drop the cached success of a key that was forgotten; all of them if its store key has only a digest."""
        key = names_of(op.wire)[1]
        if key[:1] == "#":
            self.recent.clear()
        else:
            self.recent.pop(key, None)

    def record(
        self, key: str, stored: Reply, kind: RecordKind = "claim", now_us: int | None = None
    ) -> Record:
        """Return the record of a key.

        `now_us`: the time by the store's clock; by default the time that the store has given.

        Raises:
            ForeignRecordError: it is not a record of this kind.
            ResultError: the codec cannot read the result.
        """
        if isinstance(stored, Stored) and stored.state == "M" and kind == "machine":
            return machine_record(key, stored)
        if not isinstance(stored, Stored) or stored.state not in _STATES:
            raise foreign(key)
        state = _STATES[stored.state]
        decode = codec.decode_error if state is State.FAILED else codec.decode
        value = decode(self.settings.codec, stored.payload, key)
        owner, now = owner_text(stored.owner), self.connection.store_time_us if now_us is None else now_us
        return Record(
            key=key,
            state=state,
            owner=owner,
            fence=stored.fence,
            attempt=stored.attempt,
            lease=stored.left_ms / 1000 if state is State.PROCESSING else None,
            ttl=stored.ttl_ms / 1000,
            fingerprint=None if stored.fingerprint is None else Fingerprint(stored.fingerprint),
            result=value if state is State.SUCCEEDED else None,
            error=value if state is State.FAILED else None,
            kind=kind,
            # A fence is the store's time at the acquisition, or was raised above an earlier fence, by a microsecond
            # for each one before. So milliseconds are as exact as this can be.
            age=max(round((now - stored.fence) / 1000) / 1000, 0.0) if now else None,
            holder=notes_of(owner).get("holder"),
            trace=trace_of(stored.owner)[:16].hex() or None,
        )

    # For claims

    def known_success(self, options: ClaimOptions, key: Any, mark: bytes | None) -> Any:
        """Return the answer that `learn` got for this key a moment ago, if it answers this claim; else None.

        Only the store can judge a claim with another fingerprint, because it knows the record's own.
        """
        if options is not PLAIN and (
            options.owner is not None
            or options.lease is not None
            or options.ttl is not None
            or options.remember is not None
        ):
            return None
        known = self.recent.get(key) if isinstance(key, str) else None
        if (
            known is None
            or known.mark != mark
            or known.codec is not self.settings.codec
            or monotonic() >= known.until
            or self.connections.engine is None
        ):
            return None
        return known.answer

    def recent_for(self, op: ClaimOp, verdict: Verdict) -> float:
        """Return the seconds for which a success may be cached; 0 for a token's, which is not a key's."""
        if not op.terms.shared or verdict.degraded:
            return 0.0
        # Counted from the question, so certainly not past the record's expiry.
        left = verdict.left_ms / 1000 - (asyncio.get_running_loop().time() - op.at)
        return self.connections.common.recent.age_for(self.recent, op.key, len(verdict.payload), left)

    def learn(self, op: ClaimOp, answer: object, verdict: Verdict, age: float) -> None:
        """Give `answer` to later duplicates, for the `age` seconds that `recent_for` has returned."""
        self.connections.common.recent.learn(
            self.recent, op.key, answer, op.fingerprint, self.settings.codec, len(verdict.payload), age
        )

    def lease_lost(self, key: str, owner: str, fence: int, *, outage: bool) -> None:
        """Report a lease that is lost; `outage`: the store did not answer until it was over."""
        self.connection.report(LeaseLost(self.settings.namespace, key, owner, fence, outage))


def machine_record(key: str, stored: Stored) -> Record:
    """Return the record of a state machine."""
    return Record(
        key=key,
        state=State.MACHINE,
        owner="",
        fence=0,
        attempt=0,
        lease=None,
        ttl=stored.ttl_ms / 1000,
        fingerprint=None,
        result=stored.payload.decode(errors="replace"),
        kind="machine",
        version=stored.fence,
    )
