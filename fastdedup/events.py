"""Events beside the answers, for logs and metrics: frozen facts that are handed to `Dedup(on_event=…)`."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

log = logging.getLogger("fastdedup")
_PACKAGE = __name__.partition(".")[0]

KEPT_LOCALLY = "this key was used while the store was unavailable, and the store does not know of it yet"
"""The reason of a `Degraded` event about a key that the policy still keeps: the store may be back by then."""


@dataclass(frozen=True, slots=True)
class Degraded:
    """The fallback policy answered, or refused, in place of the store.

    `verb` is the operation's: claim (also of locks and tokens), complete, fail, release, renew, …
    """

    namespace: str
    verb: str
    answered: bool
    reason: str


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """A claim's owner holds its key no longer: a renewal, or what was to settle the claim, has found so.

    It comes once a claim. Another owner may have the key by now, and the work may have been done twice.
    """

    namespace: str
    key: str
    owner: str = field(repr=False)
    """The owner's text. Anyone who knows it can settle the claim, so repr() does not show it."""
    fence: int
    outage: bool = False
    """True where the store did not answer until the lease was over: no other owner is known."""


@dataclass(frozen=True, slots=True)
class BreakerOpened:
    """The store does not answer: from now on the policy answers at once, and probes wait for the store's return."""

    store: str
    """The name of the store or node."""
    reason: str


@dataclass(frozen=True, slots=True)
class BreakerClosed:
    """The store answers again, or the node is gone, as after a failover. It follows each `BreakerOpened`.

    Closing the gate while its breaker is open is no such event.
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


@dataclass(frozen=True, slots=True)
class PrimarySwitched:
    """Sentinel made another server the primary, and the former primary still answers: a planned failover, or a split.

    The new primary lacks the writes that it had not copied, although the former one acknowledged them. Replicas may
    have confirmed some of them: only `replicas=` with the number of all replicas shows each such write, as a
    `Shortfall`. If the former primary does not answer, this event does not come: others tell of the outage.
    """

    store: str
    """The name of the store."""


@dataclass(frozen=True, slots=True)
class ClockSkew:
    """A server's clock differs from the other servers' by more than a tenth of the lease.

    On a Cluster all clocks are compared. Elsewhere the clock of the server at a new connection is compared with what
    the server before it showed, so a failover to a server whose clock is off is noticed.

    Leases end by the clock of the server that holds the key. So a server that is ahead ends them early when it gets
    keys of another server, by a failover or as slots move, and a server that is behind ends them late.
    """

    store: str
    """The name of the server; of the store where it is not a Cluster."""
    offset_seconds: float
    """By how much its clock is ahead; negative where it is behind."""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Too few replicas confirmed a write in time: if the primary is lost now, the write may be lost.

    `verb` as in `Degraded`.
    """

    namespace: str
    verb: str
    key: str
    """The key, or "#" and its digest where that is all that is known."""
    replicas: int
    """How many replicas had to confirm the write."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """After an outage a key has two owners, one in this process and one in the store. Both may have acted."""

    namespace: str
    key: str
    """The key, or "#" and its digest where that is all that is known; the ledger's name, "/" and the id for an id."""
    ours: str = field(repr=False)
    """The owner that the fallback policy let through; for an id, the nonce of its call in hexadecimal."""
    theirs: str = field(repr=False)
    """The owner that the store knows; empty for an id, of which the store knows none."""
    kept: str
    """The record that stands, "ours" or "theirs": ours where only ours is a success, else theirs."""


@dataclass(frozen=True, slots=True)
class Unreplayed:
    """An answer that was given in an outage could not be put into the store: it is forgotten."""

    namespace: str
    key: str
    owner: str = field(repr=False)
    reason: str


@dataclass(frozen=True, slots=True)
class Replayed:
    """The store, or one node of it, is back, and the answers that were given in the outage have been put there."""

    adopted: int
    """How many keys were put there."""
    conflicts: int
    """How many of these keys had another owner in the store: for each there is a `Conflict` event."""


@dataclass(frozen=True, slots=True)
class UndoOverflow:
    """Too many claims were given up at once: this key may stay held until its lease ends, without a caller."""

    namespace: str
    key: str
    """The key, or "#" and its digest where that is all that is known."""


@dataclass(frozen=True, slots=True)
class BatchedBySlot:
    """A node of a Cluster refuses scripts that touch undeclared keys: each slot of a batch costs it one call.

    Told once for each node. See `Batching`.
    """

    store: str
    """The name of the node."""
    reason: str


@dataclass(frozen=True, slots=True)
class KeyForgotten:
    """Somebody removed a record by hand, whoever owned it: its key is new again. For an audit."""

    namespace: str
    kind: str
    """"claim", "lock", "token", "machine", or "id" for an id of a ledger."""
    key: str
    """The key; for a token "#" and its digest, for an id the ledger's name, "/" and the id."""
    found: bool | None
    """False where there was no record; None where the answer was lost, so that it may have been removed."""
    by: str
    """Who: the user, host and process that asked."""
    reason: str
    """Why, in the words that it was given; empty where none were."""


@dataclass(frozen=True, slots=True)
class RecordsListed:
    """Somebody listed the records of a namespace. For an audit."""

    namespace: str
    prefix: str
    """How the listed keys begin; empty for all."""
    found: int
    """How many records were shown."""
    by: str
    """Who: the user, host and process that asked."""
    reason: str
    """Why, in the words that it was given; empty where none were."""


@dataclass(frozen=True, slots=True)
class GateBypassed:
    """The gate before an inbox did not answer, so the inbox decides alone: safe, but open to a storm."""

    namespace: str
    inbox: str
    """The name of the inbox."""
    reason: str


@dataclass(frozen=True, slots=True)
class LedgerFilling:
    """A ledger holds four fifths of the ids that it is planned for, or more. Told once an hour at most.

    A full ledger goes on: it takes more time for each id, and its chance of a false duplicate rises.
    """

    namespace: str
    ledger: str
    """The ledger's name."""
    fill: float
    """Ids by capacity."""


@dataclass(frozen=True, slots=True)
class ConsumerPaused:
    """A consumer of messages waits for a store, or for its broker: it holds what it has, and spends no attempt.

    NATS and Redis Streams tell of their brokers; the clients of RabbitMQ and Kafka connect again by themselves.
    """

    consumer: str
    """The consumer's name."""
    reason: str


@dataclass(frozen=True, slots=True)
class ConsumerResumed:
    """What a paused consumer waited for answers again. It follows each `ConsumerPaused`."""

    consumer: str
    """The consumer's name."""
    lasted: float
    """How many seconds it was paused."""


@dataclass(frozen=True, slots=True)
class ConsumerEnded:
    """`run` of a consumer of messages raises an error: it takes no more messages until somebody runs one again.

    After `stop()`, and where the task of `run` was cancelled, no such event comes.
    """

    consumer: str
    """The consumer's name."""
    reason: str
    """The type and the text of the error."""


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """A message lies where dead letters lie: no attempt at it succeeded, or it could not be attempted."""

    consumer: str
    """The consumer's name."""
    key: str | None
    """The message's key; None where it has none."""
    reason: str
    """Why, by the names of `fastdedup.messages.Reason`."""
    attempts: int
    """How often the handler was begun for it."""
    error: str
    """The type of the last error."""


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


def log_failure(event: Event, error: BaseException) -> None:
    """Log that the user's callback has raised an error on an event; `emit` says what the line shows."""
    log.error(
        "the on_event callback failed on %s in namespace %r: %s at %s",
        type(event).__name__,
        getattr(event, "namespace", ""),
        type(error).__name__,
        place_of(error),
    )


def log_batch_failure(error: BaseException) -> None:
    """Log that the user's callback for batches has raised an error."""
    log.error("the on_batch callback failed: %s at %s", type(error).__name__, place_of(error))


def place_of(error: BaseException) -> str:
    """Return where an error was raised: its last three calls, for a log line.

    Calls by which this package came to its user's code are left out.
    """
    called = error.__traceback__
    while called is not None and _is_ours(called):
        called = called.tb_next
    frames = traceback.extract_tb(called or error.__traceback__)[-3:]
    return " > ".join(f"{frame.name} ({frame.filename}:{frame.lineno})" for frame in frames)


def _is_ours(call: TracebackType) -> bool:
    return str(call.tb_frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE
