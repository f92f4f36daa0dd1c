"""The values in answers: outcomes, states, records and transitions."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

RecordKind = Literal["claim", "lock", "token", "machine"]
"""The kind of a record. The record of a web key is a claim's."""


class Outcome(StrEnum):
    """The answer to a claim."""

    ACQUIRED = "acquired"
    """You are the first: do the work, then settle the claim."""
    IN_PROGRESS = "in_progress"
    """Another owner is at work; `retry_after` is the time until its lease ends."""
    SUCCEEDED = "succeeded"
    """The work was done before; `result` is the first result."""
    FAILED = "failed"
    """The work failed before, for good; `error` is the recorded error."""
    MISMATCH = "mismatch"
    """The key was claimed before with another fingerprint."""
    UNKNOWN = "unknown"
    """The token was never issued, or has expired."""


class State(StrEnum):
    """The state of a stored record."""

    ISSUED = "issued"
    PROCESSING = "processing"
    RELEASED = "released"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    MACHINE = "machine"
    """The record of a state machine, whose own state is the record's `result`."""


class BreakerState(StrEnum):
    """The state of the breaker, which stops operations while a store does not answer."""

    CLOSED = "closed"
    """The store answers."""
    PARTLY_OPEN = "partly_open"
    """Some nodes of a Cluster do not answer."""
    OPEN = "open"
    """The store does not answer: the policy answers callers at once, and probes find out when the store is back."""


class Batching(StrEnum):
    """The way in which a batch of operations goes to the store."""

    WHOLE = "whole"
    """In one call; to a Cluster in one call for each node."""
    PARTLY_BY_SLOT = "partly_by_slot"
    """To some nodes of a Cluster in one call, to others by slot."""
    BY_SLOT = "by_slot"
    """To a Cluster in a call for each slot, because its servers, or a proxy before them, refuse a script that touches
    keys which its call does not declare. A claim then costs the servers twice as much.

    Servers that do this: Dragonfly without the flag `allow-undeclared-keys`, Kvrocks with `lua-strict-key-accessing`,
        and the
    cluster instances of Tair. Redis 6.2 to 8 and Valkey take batches whole."""


class TransitionOutcome(StrEnum):
    """The outcome of a requested transition."""

    CHANGED = "changed"
    """This call moved the machine."""
    ALREADY = "already"
    """The machine was in the wanted state already: the call is a duplicate."""
    ILLEGAL = "illegal"
    """The definition does not allow this move from the present state."""
    STALE = "stale"
    """The machine has moved on from the given version."""


@dataclass(frozen=True, slots=True)
class Record:
    """The store's record of a key, which `Dedup.get` and `Dedup.records` return.

    Attributes:
        key: the key; "#" and a digest if the store knows no more, for tokens and long keys.
        state: the record's state.
        owner: the owner's text, which repr() leaves out. Never show it to a claimant, because anyone who knows it
            can settle the claim.
        fence: a number that rises from owner to owner of the key.
        attempt: how often the key was acquired; 0 for a token that was not redeemed yet.
        lease: seconds until the lease ends (0 or less: it has ended); None unless the state is PROCESSING.
        ttl: seconds until the record expires.
        fingerprint: a `Fingerprint`, 16 bytes, or None; pass it to a claim as the fingerprint.
        result: the recorded result of a success; of a machine the name of its state.
        error: the recorded error of a failure.
        kind: "claim", "lock", "token" or "machine".
        age: seconds since the key was acquired, by the store's clock; None if that is not known.
        version: the number of a machine's changes; None for any other record.
        holder: the present or last holder, written by `Dedup(holder=…)`; None if the record does not have it.
        trace: the id of the trace in which it was claimed, 32 hexadecimal digits; None if the record has none.
    """

    key: str
    state: State
    owner: str = field(repr=False)
    fence: int
    attempt: int
    lease: float | None
    ttl: float
    fingerprint: bytes | None
    result: Any = None
    error: Any = None
    kind: RecordKind = "claim"
    age: float | None = None
    version: int | None = None
    holder: str | None = None
    trace: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """Some of a namespace's records, which `Dedup.records` found within its budget.

    Attributes:
        records: the records, without their results.
        cursor: pass it to the next call to go on; None if all keys were looked at.
        looked_at: about how many keys the store has looked at, those of others included, in whole steps of SCAN: 512
            for a store of four keys.
    """

    records: list[Record]
    cursor: str | None
    looked_at: int


@dataclass(frozen=True, slots=True)
class Transition:
    """The answer to one requested transition.

    Attributes:
        outcome: CHANGED, ALREADY, ILLEGAL or STALE.
        state: the machine's present state, also if this call did not change it.
        version: the number of the machine's changes.
        degraded: True if the fallback policy answered instead of the store.
        confirmed: False if too few replicas confirmed the change in time (`replicas=`): this call's change, or for
            ALREADY the former one.
    """

    outcome: TransitionOutcome
    state: str
    version: int
    degraded: bool = False
    confirmed: bool = True

    @property
    def changed(self) -> bool:
        """True if this call moved the machine."""
        return self.outcome is TransitionOutcome.CHANGED


@dataclass(frozen=True, slots=True)
class LedgerStats:
    """The content of a ledger, which `Ledger.stats` returns.

    Attributes:
        name: the ledger's name.
        ids: how many ids it remembers now. Estimated from some buckets if it has more than 1,000.
        capacity: ids in one window that it is planned for.
        fill: ids divided by capacity. Above 1 it still works, with more time and more risk of a false duplicate for
            each id.
        window: seconds for which an id is remembered.
        slots: parts of the window; an id is remembered for up to one part more.
        width: bytes of an id's digest; 0 of a dense ledger.
        bytes: memory of its buckets in the store, by the store's own figure. A dense ledger has up to 0.7 MB more.
        bytes_an_id: memory divided by ids; 0.0 for an empty ledger.
        false_duplicates: the expected number of new ids that count as duplicates, in a window as full as this one.
    """

    name: str
    ids: int
    capacity: int
    fill: float
    window: float
    slots: int
    width: int
    bytes: int
    bytes_an_id: float
    false_duplicates: float


@dataclass(frozen=True, slots=True)
class LedgerResize:
    """The progress of a ledger's resizing, which `Ledger.resize` returns.

    Attributes:
        name: the ledger's name.
        capacity: ids in one window that it is planned for from the switch on.
        former_capacity: the capacity before; 0 if that is over and forgotten.
        switch_in: seconds until ids are remembered by the new capacity; 0.0 afterwards.
        over_in: seconds until the last id of the former capacity has expired; 0.0 afterwards.
    """

    name: str
    capacity: int
    former_capacity: int
    switch_in: float
    over_in: float
