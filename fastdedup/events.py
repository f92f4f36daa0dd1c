"""Events beside the answers, for logs and metrics: frozen facts that are passed to `Dedup(on_event=…)`.

To add an event: write its class, add the class to `Event`, and report it. `figure` is the figure that the event feeds
with `amount` (1 by default, or the name of a field); the figure names the fields that are its labels. `line` is its
line in the log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .declarations import Figure, LogLine
from .failures import log_failure

KEPT_LOCALLY = "this key was used while the store was unavailable, and the store does not know of it yet"
"""The reason of a `Degraded` event about a key that the policy still keeps: the store may be back by then."""


@dataclass(frozen=True, slots=True)
class Degraded:
    """The fallback policy answered or refused in place of the store.

    `verb` is the operation's: claim (also of locks and tokens), complete, fail, release, renew, …
    """

    namespace: str
    verb: str
    answered: bool
    reason: str

    figure = Figure(
        "degraded",
        "Asked the policy instead.",
        ("namespace", "verb", "answered"),
        unit="{operation}",
        values={"answered": ("yes", "no")},
    )


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """A claim's owner no longer holds its key: a renewal or a settlement has found that out.

    It comes once for each claim. Another owner may have the key by now, and the work may have been done twice.
    """

    namespace: str
    key: str
    owner: str = field(repr=False)
    """The owner's text. Anyone who knows it can settle the claim, so repr() does not show it."""
    fence: int
    outage: bool = False
    """True if the store did not answer until the lease was over: no other owner is known."""

    figure = Figure("leases_lost", "Claims whose owner held them no longer.", unit="{lease}")
    line = LogLine(
        "the lease of %(key)r in namespace %(namespace)r is lost (fence %(fence)d): %(outage)s",
        "claims",
        words={
            "outage": {
                False: "it ended, the key was forgotten or settled elsewhere, or the store lost its data; "
                "another owner may have the key by now",
                True: "the store did not answer until it was over; another owner may get the key",
            }
        },
    )


@dataclass(frozen=True, slots=True)
class BreakerOpened:
    """The store does not answer: from now on the policy answers at once, and probes wait for the store's return."""

    store: str
    """The name of the store or node."""
    reason: str

    figure = Figure("breaker_opened", "How often the breaker opened.", unit="{time}", meter="breaker.opened")


@dataclass(frozen=True, slots=True)
class BreakerClosed:
    """The store answers again, or the node is gone, for example after a failover. It follows each `BreakerOpened`.

    If the gate is closed while its breaker is open, this event does not come.
    """

    store: str
    lasted: float
    """How many seconds the breaker was open."""


@dataclass(frozen=True, slots=True)
class PrimaryRestarted:
    """The server at a primary's address is another process than before: it was restarted, or replaced by another.

    It may have lost writes that it had acknowledged, also writes that replicas had confirmed: replicas copy a primary
    that comes back empty. The primary's persistence says how many writes may be lost: all of them without a file,
    those of the last second with `appendfsync everysec`. For a failover to another address see `PrimarySwitched`.
    """

    store: str
    """The name of the store or node."""

    figure = Figure(
        "primary_restarts",
        "Primaries that came back as another process.",
        unit="{time}",
        meter_text="Primaries that came back as another.",
    )
    line = LogLine("%(store)s came back as another process: it may have lost writes that it had acknowledged")


@dataclass(frozen=True, slots=True)
class PrimarySwitched:
    """Sentinel made another server the primary, and the former primary still answers: a planned failover, or a split.

    The new primary lacks the writes that it had not copied, although the former one acknowledged them. Replicas may
    have confirmed some of them: only `replicas=` with the number of all replicas shows each such write, in a
    `Shortfall`. If the former primary does not answer, this event does not come: other events report the outage.
    """

    store: str
    """The name of the store."""

    figure = Figure(
        "primary_switches",
        "Failovers that left a primary that still answered.",
        unit="{time}",
        meter_text="Primaries left though they answered.",
    )
    line = LogLine(
        "%(store)s has another primary, though the former one answers: the last acknowledged writes may be lost"
    )


@dataclass(frozen=True, slots=True)
class ClockSkew:
    """A server's clock differs from the other servers' by more than a tenth of the lease.

    On a Cluster all clocks are compared. Elsewhere the clock of the server at a new connection is compared with the
    clock of the server before it, so a failover to a server whose clock is off is noticed.

    Leases end by the clock of the server that holds the key. So a server that is ahead ends them early when it gets
    keys of another server, by a failover or as slots move, and a server that is behind ends them late.
    """

    store: str
    """The name of the server; of the store if it is not a Cluster."""
    offset_seconds: float
    """By how much its clock is ahead; negative if it is behind."""

    figure = Figure(
        "clock_skews",
        "How often a Redis node's clock was off.",
        unit="{time}",
        meter_text="How often a node's clock was off.",
    )
    line = LogLine("the clock of %(store)s is off by %(offset_seconds).3f s: leases end early or late")


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Too few replicas confirmed a write in time: if the primary is lost now, the write may be lost.

    `verb`: see `Degraded`.
    """

    namespace: str
    verb: str
    key: str
    """The key, or "#" and its digest if only that is known."""
    replicas: int
    """How many replicas had to confirm the write."""

    figure = Figure("shortfalls", "Too few replicas confirmed.", ("namespace",), unit="{operation}")
    line = LogLine(
        "fewer than %(replicas)d replicas confirmed a %(verb)s of %(key)r in namespace %(namespace)r in time"
    )


@dataclass(frozen=True, slots=True)
class Conflict:
    """After an outage a key has two owners, one in this process and one in the store. Both may have acted."""

    namespace: str
    key: str
    """The key, or "#" and its digest if only that is known; the ledger's name, "/" and the id for an id."""
    ours: str = field(repr=False)
    """The owner that the fallback policy let through; for an id, the nonce of its call in hexadecimal."""
    theirs: str = field(repr=False)
    """The owner that the store knows; empty for an id, because the store knows no owner of it. It is `ours` if one
    claim was ended in two ways."""
    kept: str
    """The record that remains, "ours" or "theirs": ours if only ours is a success, else theirs."""

    figure = Figure(
        "reconcile_conflicts",
        "Two owners of one key.",
        ("kept",),
        unit="{key}",
        meter="conflicts",
        meter_text="Keys with two owners after an outage.",
        values={"kept": ("ours", "theirs")},
    )
    line = LogLine(
        "%(key)r in namespace %(namespace)r had two owners in an outage, and both may have acted: the record that "
        "stands is %(kept)s",
        "claims",
    )


@dataclass(frozen=True, slots=True)
class Unreplayed:
    """An answer that was given in an outage could not be put into the store: it is forgotten."""

    namespace: str
    key: str
    owner: str = field(repr=False)
    reason: str

    figure = Figure("unreplayed", "Records that never got into the store.", unit="{key}")
    line = LogLine(
        "what was answered about %(key)r in namespace %(namespace)r in an outage could not be put into the store: "
        "%(reason)s",
        "claims",
    )


@dataclass(frozen=True, slots=True)
class Replayed:
    """The store, or one node of it, is back, and the answers of the outage have been written there."""

    adopted: int
    """How many keys were written."""
    conflicts: int
    """How many of these keys had another owner in the store: for each there is a `Conflict` event."""

    figure = Figure("reconciled", "Records put into the store after an outage.", unit="{key}")
    amount = "adopted"


@dataclass(frozen=True, slots=True)
class UndoOverflow:
    """Too many claims were given up at once: this key may stay held until its lease ends, without a caller."""

    namespace: str
    key: str
    """The key, or "#" and its digest if only that is known."""

    figure = Figure(
        "undo_overflows",
        "Given-up claims that are left to the end of their leases.",
        unit="{key}",
        meter="undo.overflows",
        meter_text="Given-up claims that are left to their leases.",
    )
    line = LogLine(
        "too many claims were given up at once: %(key)r in namespace %(namespace)r may stay held until its lease "
        "ends",
        "claims",
    )


@dataclass(frozen=True, slots=True)
class BatchedBySlot:
    """A node of a Cluster refuses scripts that touch undeclared keys: each slot of a batch costs it one call.

    It comes once for each node. See `Batching`.
    """

    store: str
    """The name of the node."""
    reason: str

    line = LogLine(
        "%(store)s refuses scripts with undeclared keys, so each slot of a batch costs it a call: %(reason)s"
    )


@dataclass(frozen=True, slots=True)
class KeyForgotten:
    """A record was removed by hand, without its owner: its key is new again. For an audit."""

    namespace: str
    kind: str
    """"claim", "lock", "token", "machine", or "id" for an id of a ledger."""
    key: str
    """The key; for a token "#" and its digest, for an id the ledger's name, "/" and the id."""
    found: bool | None
    """False if there was no record; None if the answer was lost, so that it may have been removed."""
    by: str
    """The user, host and process that asked."""
    reason: str
    """The reason that was given; empty if none was."""


@dataclass(frozen=True, slots=True)
class RecordsListed:
    """The records of a namespace were listed. For an audit."""

    namespace: str
    prefix: str
    """The beginning of the listed keys; empty for all."""
    found: int
    """How many records were shown."""
    by: str
    """The user, host and process that asked."""
    reason: str
    """The reason that was given; empty if none was."""


@dataclass(frozen=True, slots=True)
class GateBypassed:
    """The gate before an inbox did not answer, so the inbox decides alone: safe, but open to a storm."""

    namespace: str
    inbox: str
    """The name of the inbox."""
    reason: str

    figure = Figure(
        "gate_bypassed", "Calls of an inbox whose gate did not answer.", ("namespace", "inbox"), unit="{call}"
    )
    line = LogLine(
        "the gate in namespace %(namespace)r does not answer, so the inbox %(inbox)r decides alone: %(reason)s",
        at_once=1,  # it comes with each operation
    )


@dataclass(frozen=True, slots=True)
class LedgerFilling:
    """A ledger holds four fifths of the ids that it is planned for, or more. It comes at most once an hour.

    A full ledger goes on: it takes more time for each id, and its chance of a false duplicate rises.
    """

    namespace: str
    ledger: str
    """The ledger's name."""
    fill: float
    """Ids divided by capacity."""

    line = LogLine(
        "the ledger %(ledger)r in namespace %(namespace)r is nearly full: it holds %(fill).2f of its capacity"
    )


@dataclass(frozen=True, slots=True)
class ConsumerPaused:
    """A consumer of messages waits for a store, or for its broker: it holds its messages, and spends no attempt.

    NATS and Redis Streams report their brokers; the clients of RabbitMQ and Kafka connect again by themselves.
    """

    consumer: str
    """The consumer's name."""
    reason: str

    figure = Figure(
        "consumer_paused",
        "1 while a consumer waits for a store, or for its broker.",
        ("consumer",),
        "gauge",
        meter="consumer.paused",
        meter_text="1 while a consumer waits for a store or its broker.",
    )


@dataclass(frozen=True, slots=True)
class ConsumerResumed:
    """The store or broker that a paused consumer waited for answers again. It follows each `ConsumerPaused`."""

    consumer: str
    """The consumer's name."""
    lasted: float
    """How many seconds it was paused."""

    figure = ConsumerPaused.figure
    amount = 0


@dataclass(frozen=True, slots=True)
class ConsumerEnded:
    """`run` of a consumer of messages raises an error: it takes no more messages until it is run again.

    This event does not come after `stop()`, or if the task of `run` was cancelled.
    """

    consumer: str
    """The consumer's name."""
    reason: str
    """The type and the text of the error."""


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """A message was published as a dead letter: no attempt at it succeeded, or it could not be attempted."""

    consumer: str
    """The consumer's name."""
    key: str | None
    """The message's key; None if it has none."""
    reason: str
    """The reason, one of `fastdedup.messages.Reason`."""
    attempts: int
    """How often the handler was begun for it."""
    error: str
    """The type of the last error."""

    figure = Figure(
        "dead_letters",
        "Messages published as dead letters.",
        ("consumer", "reason"),
        unit="{message}",
        values={"reason": ("failed", "exhausted", "mismatch", "no_key")},
    )


Event = (
    Degraded
    | LeaseLost
    | BreakerOpened
    | BreakerClosed
    | PrimaryRestarted
    | PrimarySwitched
    | ClockSkew
    | Shortfall
    | Conflict
    | Unreplayed
    | Replayed
    | UndoOverflow
    | BatchedBySlot
    | KeyForgotten
    | RecordsListed
    | GateBypassed
    | LedgerFilling
    | ConsumerPaused
    | ConsumerResumed
    | ConsumerEnded
    | DeadLettered
)
OnEvent = Callable[[Event], None]


def name_of(kind: type) -> str:
    """Return an event's name in a log: `BreakerOpened` is `breaker opened`."""
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in kind.__name__).strip()


def emit(on_event: OnEvent | None, event: Event) -> None:
    """Call the user's callback with an event. An error of the callback is logged, and changes no answer.

    The log gets the type of the event, its namespace, the type of the error, and the place that raised it. It gets no
    key, no owner and no text of the error, which may repeat them.
    """
    if on_event is None:
        return
    try:
        on_event(event)
    except Exception as error:  # noqa: BLE001 -- no error of a callback may stop a claim
        log_failure(event, error)
