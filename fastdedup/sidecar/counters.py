"""What one sidecar counts, in plain lists and dicts. `service/metrics.py` shows it.

To add a figure: count it in `Counters`, name it in `service/metrics.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any

from ..errors import ClaimLostError, ShortfallError, UnavailableError
from ..events import BreakerOpened, Conflict, Degraded, Event, LeaseLost, Replayed, Shortfall, Unreplayed
from ..gateway import Dedup
from ..protocol.operations import Verdict

BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Seconds: the upper ends of the latency histogram's cells."""
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Operations: the upper ends of the batch histogram's cells."""
_ERRORS = {b"-UNAVAILABLE": "unavailable", b"-CLAIMLOST": "claim_lost"}

_FAULTS: dict[type[Exception], str] = {
    UnavailableError: "unavailable",
    ShortfallError: "unavailable",
    ClaimLostError: "claim_lost",
}
Cells = list[float]
"""How many operations took up to each of `BOUNDS`, how many longer, and the sum of seconds."""


def empty_cells() -> Cells:
    """Return cells in which nothing is counted yet."""
    return [0] * (len(BOUNDS) + 1) + [0.0]


def _by_outcome() -> defaultdict[str, Cells]:
    return defaultdict(empty_cells)


class Counters:
    """What one sidecar counts. `observe` is for every operation that a client was answered."""

    def __init__(self) -> None:
        # Mutable: operations; those of the hot path by gate, to save the lookup by names.
        self.operations: defaultdict[tuple[str, str], defaultdict[str, Cells]] = defaultdict(_by_outcome)
        self._claims: dict[Dedup, defaultdict[str, Cells]] = {}
        # Mutable: the claims counted last, which have one verdict: whose, how long they took, how many.
        self._verdict: Verdict | None = None
        self._dedup: Dedup | None = None
        self._took = 0.0
        self._same = 0
        # Mutable: batches by size, and the sum of sizes.
        self.batches = [0] * (len(SIZES) + 1)
        self.batched = 0
        # Mutable: what events told; connections and requests that were turned away.
        self.degraded: Counter[tuple[str, str, str]] = Counter()
        self.conflicts: Counter[str] = Counter({"ours": 0, "theirs": 0})
        self.shortfalls: Counter[str] = Counter()
        self.opened = self.adopted = self.unreplayed = self.leases_lost = 0
        self.connections_refused = 0
        self.bad_requests = 0
        self.connections: Callable[[], Iterable[Any]] = tuple

    def observe(self, namespace: str, verb: str, outcome: str, seconds: float) -> None:
        """A client was answered. For both wires."""
        cells = self.operations[namespace, verb][outcome]
        cells[bisect_left(BOUNDS, seconds)] += 1
        cells[-1] += seconds

    def claimed(self, dedup: Dedup, outcome: str, since: float) -> None:
        """As `observe`, of a claim; `since` is a `perf_counter()`."""
        self.observe(dedup.settings.namespace, "claim", outcome, perf_counter() - since)

    def judged(self, dedup: Dedup, verdict: Verdict, since: float) -> None:
        """As `claimed`, on the hot path.

        Fresh claims of one batch share a verdict. They are answered together, and timed by the first of them,
        which waited longest.
        """
        if verdict is self._verdict and dedup is self._dedup:
            self._same += 1
        else:
            self.fold()
            self._verdict, self._dedup, self._took = verdict, dedup, perf_counter() - since
            self._same = 1

    def fold(self) -> None:
        """Add the claims that were only counted so far."""
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
        """As `observe`, by a RESP reply."""
        self.observe(dedup.settings.namespace, verb, outcome_of(verb, reply), perf_counter() - since)

    def on_batch(self, size: int) -> None:
        """Count a batch, for `Dedup.on_batch`."""
        self.batches[bisect_left(SIZES, size)] += 1
        self.batched += size

    def on_event(self, event: Event) -> None:
        """Count an event of the gate."""
        match event:
            case Degraded():
                self.degraded[event.namespace, event.verb, "yes" if event.answered else "no"] += 1
            case Conflict():
                self.conflicts[event.kept] += 1
            case Shortfall():
                self.shortfalls[event.namespace] += 1
            case BreakerOpened():
                self.opened += 1
            case Replayed():
                self.adopted += event.adopted
            case Unreplayed():
                self.unreplayed += 1
            case LeaseLost():
                self.leases_lost += 1


def outcome_of(verb: str, reply: bytes) -> str:
    """Return what a RESP reply says, in a word: `[outcome, …]`, an outcome, OK, a number, null, an error."""
    first = reply[:1]
    if first == b"-":
        return _ERRORS.get(reply[: reply.find(b" ")], "error")
    if verb == "consume":
        return reply.split(b"\r\n", 2)[1].decode()
    if first == b"*":
        return reply.split(b"\r\n", 3)[2].decode()
    return "absent" if reply in (b"$-1\r\n", b"_\r\n", b":0\r\n") else "ok"


def outcome_of_fault(fault: Exception) -> str:
    """Return what an exception says, in a word."""
    return _FAULTS.get(type(fault), "error")
