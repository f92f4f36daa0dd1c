"""The counters of one sidecar, in plain lists and dicts. `service/metrics.py` renders them.

To add a figure: count it in `Counters`, and name it in `service/metrics.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any

from ..errors import (
    ClaimLostError,
    ConfigError,
    InvalidKeyError,
    ResultError,
    ResultTooLargeError,
    ShortfallError,
    UnavailableError,
)
from ..events import (
    BreakerOpened,
    ClockSkew,
    Conflict,
    Degraded,
    Event,
    LeaseLost,
    PrimaryRestarted,
    Replayed,
    Shortfall,
    Unreplayed,
)
from ..gateway import Dedup
from ..protocol.operations import Verdict

BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""The upper bounds of the latency histogram's cells, in seconds."""
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""The upper bounds of the batch histogram's cells, in operations."""
_ERRORS = {b"-UNAVAILABLE": "unavailable", b"-CLAIMLOST": "claim_lost"}

_FAULTS: dict[type[Exception], str] = {
    UnavailableError: "unavailable",
    ShortfallError: "unavailable",
    ClaimLostError: "claim_lost",
}
OTHERS = "(others)"
"""The label of namespaces that clients have only looked at: made-up ones must not make the metrics grow."""
Cells = list[float]
"""How many operations took up to each of `BOUNDS`, how many took longer, and the sum of their seconds."""


def empty_cells() -> Cells:
    """Return cells in which nothing is counted yet."""
    return [0] * (len(BOUNDS) + 1) + [0.0]


def _by_outcome() -> defaultdict[str, Cells]:
    return defaultdict(empty_cells)


class Counters:
    """Counts what one sidecar does: its answers, its batches, and the events of its `Dedup`s."""

    def __init__(self) -> None:
        # Mutable: operations by namespace and verb; the same cells of claims by `Dedup`, which saves that lookup.
        self.operations: defaultdict[tuple[str, str], defaultdict[str, Cells]] = defaultdict(_by_outcome)
        self._claims: dict[Dedup, defaultdict[str, Cells]] = {}
        # Mutable: the latest claims, which share one verdict: the verdict, its `Dedup`, the seconds, the count.
        self._verdict: Verdict | None = None
        self._dedup: Dedup | None = None
        self._took = 0.0
        self._same = 0
        # Mutable: batches by size, and the sum of sizes.
        self.batches = [0] * (len(SIZES) + 1)
        self.batched = 0
        # Mutable: events; connections and requests that were refused.
        self.degraded: Counter[tuple[str, str, str]] = Counter()
        self.conflicts: Counter[str] = Counter({"ours": 0, "theirs": 0})
        self.shortfalls: Counter[str] = Counter()
        # Mutable: the answers to ids, by namespace, ledger, and "first" or "duplicate".
        self.ledger_ids: Counter[tuple[str, str, str]] = Counter()
        self.opened = self.restarted = self.adopted = self.unreplayed = self.leases_lost = (
            self.clock_skews
        ) = 0
        self.connections_refused = 0
        self.bad_requests = 0
        self.connections: Callable[[], Iterable[Any]] = tuple
        self.is_known: Callable[[str], bool] = bool

    def outcomes(self, namespace: str, verb: str) -> defaultdict[str, Cells]:
        """Return the cells of a namespace's operations by their outcome."""
        return self.operations[namespace if self.is_known(namespace) else OTHERS, verb]

    def observe(self, namespace: str, verb: str, outcome: str, seconds: float) -> None:
        """Count an answer to a client, of either wire."""
        cells = self.outcomes(namespace, verb)[outcome]
        cells[bisect_left(BOUNDS, seconds)] += 1
        cells[-1] += seconds

    def claimed(self, dedup: Dedup, outcome: str, since: float) -> None:
        """Count the answer to a claim that began at `since`, a `perf_counter()`."""
        self.observe(dedup.settings.namespace, "claim", outcome, perf_counter() - since)

    def judged(self, dedup: Dedup, verdict: Verdict, since: float) -> None:
        """Count a verdict, as `claimed` does; this is the hot path.

        Fresh claims of one batch share a verdict and are answered together, so they are counted together: all get
        the seconds of the first, which waited longest. That saves 26 % of the instructions of a claim in a batch.
        """
        if verdict is self._verdict and dedup is self._dedup:
            self._same += 1
        else:
            self.fold()
            self._verdict, self._dedup, self._took = verdict, dedup, perf_counter() - since
            self._same = 1

    def fold(self) -> None:
        """Move the latest claims into their cells."""
        dedup, verdict, took = self._dedup, self._verdict, self._took
        if dedup is None or verdict is None:
            return
        by_outcome = self._claims.get(dedup)
        if by_outcome is None:
            by_outcome = self._claims[dedup] = self.operations[dedup.settings.namespace, "claim"]
        cells = by_outcome[verdict.outcome]
        cells[bisect_left(BOUNDS, took)] += self._same
        cells[-1] += took * self._same
        self._same = 0

    def answered(self, dedup: Dedup, verb: str, reply: bytes, since: float) -> None:
        """Count an answer by its RESP reply."""
        self.observe(dedup.settings.namespace, verb, outcome_of(verb, reply), perf_counter() - since)

    def asked_ledger(self, namespace: str, ledger: str, answers: list[bool]) -> None:
        """Count the answers to ids of a ledger."""
        firsts = sum(answers)
        self.ledger_ids[namespace, ledger, "first"] += firsts
        self.ledger_ids[namespace, ledger, "duplicate"] += len(answers) - firsts

    def on_batch(self, size: int) -> None:
        """Count a batch; a callback for `Dedup.on_batch`."""
        self.batches[bisect_left(SIZES, size)] += 1
        self.batched += size

    def on_event(self, event: Event) -> None:
        """Count an event; a callback for `Dedup(on_event=...)`."""
        match event:
            case Degraded():
                self.degraded[event.namespace, event.verb, "yes" if event.answered else "no"] += 1
            case Conflict():
                self.conflicts[event.kept] += 1
            case Shortfall():
                self.shortfalls[event.namespace] += 1
            case BreakerOpened():
                self.opened += 1
            case PrimaryRestarted():
                self.restarted += 1
            case Replayed():
                self.adopted += event.adopted
            case Unreplayed():
                self.unreplayed += 1
            case LeaseLost():
                self.leases_lost += 1
            case ClockSkew():
                self.clock_skews += 1


def outcome_of(verb: str, reply: bytes) -> str:
    """Return a RESP reply's outcome as one word; the reply is `[outcome, …]`, OK, a number, null or an error."""
    first = reply[:1]
    if first == b"-":
        return _ERRORS.get(reply[: reply.find(b" ")], "error")
    if verb == "consume":
        return reply.split(b"\r\n", 2)[1].decode()
    if first == b"*":
        parts = reply.split(b"\r\n", 3)
        return (
            "ok" if parts[1][:1] in (b":", b"") else parts[2].decode()
        )  # an array of numbers has no outcome
    return "absent" if reply in (b"$-1\r\n", b"_\r\n", b":0\r\n") else "ok"


def is_bad(fault: Exception) -> bool:
    """True for the exception of a request that could not be run, as what the client sent makes no sense."""
    return isinstance(fault, ConfigError | InvalidKeyError | ResultError | ResultTooLargeError)


def outcome_of_fault(fault: Exception) -> str:
    """Return an exception's outcome as one word."""
    return _FAULTS.get(type(fault), "error")
