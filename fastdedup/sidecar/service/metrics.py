"""`/metrics`: counted in plain lists and dicts, turned into Prometheus' format when somebody looks.

Labels are bounded: namespaces by `Limits.namespaces`, everything else by what fastdedup knows. To add a figure:
count it in `Metrics`, name it in `Collector.collect`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector as BaseCollector

from ...errors import ClaimLostError, ShortfallError, UnavailableError
from ...events import BreakerOpened, Conflict, Degraded, Event, LeaseLost, Replayed, Shortfall, Unreplayed
from ...fallback.base import JournalledPolicy
from ...model import BreakerState

if TYPE_CHECKING:
    from ...gateway import Dedup
    from ...protocol.operations import Verdict
    from ..gate import Gate

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
Handler = Callable[["Gate", Any, Any], Awaitable[Any]]

Cells = list[float]
"""How many operations took up to each of `BOUNDS`, how many longer, and the sum of seconds."""


def _cells() -> Cells:
    return [0] * (len(BOUNDS) + 1) + [0.0]


def _by_outcome() -> defaultdict[str, Cells]:
    return defaultdict(_cells)


class Metrics:
    """What one sidecar counts. `observe` is for every operation that a client was answered."""

    def __init__(self) -> None:
        # Mutable: operations; those of the hot path by gate, to save the lookup by names.
        self.operations: defaultdict[tuple[str, str], defaultdict[str, Cells]] = defaultdict(_by_outcome)
        self._claims: dict[Dedup, defaultdict[str, Cells]] = {}
        # Mutable: the claims counted last, which have one verdict: whose, how long they took, how many.
        self._verdict: Verdict | None = None
        self._scope: Dedup | None = None
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
        self._registry = CollectorRegistry()

    def watch(self, gate: Gate) -> None:
        """Look at this gate when somebody looks at the figures."""
        self._registry.register(Collector(self, gate))
        ProcessCollector(registry=self._registry)

    def render(self) -> bytes:
        """Return everything, in Prometheus' text format."""
        self._fold()
        return generate_latest(self._registry)

    # What is counted

    def observe(self, namespace: str, verb: str, outcome: str, seconds: float) -> None:
        """A client was answered. For both wires."""
        cells = self.operations[namespace, verb][outcome]
        cells[bisect_left(BOUNDS, seconds)] += 1
        cells[-1] += seconds

    def claimed(self, scope: Dedup, outcome: str, since: float) -> None:
        """As `observe`, of a claim; `since` is a `perf_counter()`."""
        self.observe(scope.settings.namespace, "claim", outcome, perf_counter() - since)

    def judged(self, scope: Dedup, verdict: Verdict, since: float) -> None:
        """As `claimed`, on the hot path.

        Fresh claims of one batch share a verdict. They are answered together, and timed by the first of them,
        which waited longest.
        """
        if verdict is self._verdict and scope is self._scope:
            self._same += 1
        else:
            self._fold()
            self._verdict, self._scope, self._took = verdict, scope, perf_counter() - since
            self._same = 1

    def _fold(self) -> None:
        """Add the claims that were only counted so far."""
        scope, verdict, took = self._scope, self._verdict, self._took
        if scope is None or verdict is None:
            return
        by_outcome = self._claims.get(scope)
        if by_outcome is None:
            by_outcome = self._claims[scope] = self.operations[scope.settings.namespace, "claim"]
        cells = by_outcome[verdict.outcome]
        cells[bisect_left(BOUNDS, took)] += self._same
        cells[-1] += took * self._same
        self._same = 0

    def answered(self, scope: Dedup, verb: str, reply: bytes, since: float) -> None:
        """As `observe`, by a RESP reply."""
        self.observe(scope.settings.namespace, verb, outcome_of(verb, reply), perf_counter() - since)

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


def counted(verb: str, handler: Handler) -> Handler:
    """Return a handler of the HTTP wire that counts what it answers."""

    async def count(gate: Gate, ask: Any, client: Any) -> Any:
        since = perf_counter()
        scope = gate.scope(ask.namespace)
        try:
            answer = await handler(gate, ask, client)
        except Exception as fault:
            outcome = _FAULTS.get(type(fault), "error")
            gate.metrics.observe(scope.settings.namespace, verb, outcome, perf_counter() - since)
            raise
        outcome = answer.facts.get("outcome", "ok")
        gate.metrics.observe(scope.settings.namespace, verb, outcome, perf_counter() - since)
        return answer

    return count


class Collector(BaseCollector):
    """Turns `Metrics`, and what the gate is up to just now, into metric families."""

    def __init__(self, metrics: Metrics, gate: Gate) -> None:
        self._metrics = metrics
        self._gate = gate

    def collect(self) -> Iterator[Metric]:
        """Yield every family (prometheus_client calls this)."""
        yield from self._operations()
        yield from self._engine()
        yield from self._outage()
        yield from self._connections()

    def _operations(self) -> Iterator[Metric]:
        counts = CounterMetricFamily(
            "fastdedup_operations", "Operations answered.", labels=["namespace", "verb", "outcome"]
        )
        times = HistogramMetricFamily(
            "fastdedup_operation_seconds", "From reading a request to its answer.", labels=["verb"]
        )
        by_verb: defaultdict[str, Cells] = defaultdict(_cells)
        for (namespace, verb), outcomes in list(self._metrics.operations.items()):
            for outcome, cells in list(outcomes.items()):
                counts.add_metric([namespace, verb, outcome], sum(cells[:-1]))
                by_verb[verb] = [a + b for a, b in zip(by_verb[verb], cells, strict=True)]
        for verb, cells in by_verb.items():
            times.add_metric([verb], _buckets(BOUNDS, cells[:-1]), cells[-1])
        yield counts
        yield times

    def _engine(self) -> Iterator[Metric]:
        root = self._gate.root
        sizes = HistogramMetricFamily("fastdedup_batch_size", "Operations in one batch to the store.")
        sizes.add_metric([], _buckets(SIZES, self._metrics.batches), self._metrics.batched)
        yield sizes
        yield _gauge("pending_operations", "Waiting or under way.", root.pending)
        yield _gauge("batches_in_flight", "Batches under way.", root.in_flight)

    def _outage(self) -> Iterator[Metric]:
        metrics, now = self._metrics, self._gate.root.breaker
        states = {(state.value,): int(state is now) for state in BreakerState}
        yield _family(GaugeMetricFamily, "breaker_state", "1 for the state it is in.", ["state"], states)
        yield _counter("breaker_opened", "How often the breaker opened.", metrics.opened)
        labels = ["namespace", "verb", "answered"]
        lines = {(name,): count for name, count in journal_lines(self._gate).items()}
        yield _family(CounterMetricFamily, "degraded", "Asked the policy instead.", labels, metrics.degraded)
        yield _family(GaugeMetricFamily, "journal_records", "To be put into the store.", ["namespace"], lines)
        kept = {(name,): count for name, count in metrics.conflicts.items()}
        yield _family(CounterMetricFamily, "reconcile_conflicts", "Two owners of one key.", ["kept"], kept)
        yield _counter("reconciled", "Records put into the store after an outage.", metrics.adopted)
        yield _counter("unreplayed", "Records that never got into the store.", metrics.unreplayed)
        yield _counter("leases_lost", "Leases that could not be renewed.", metrics.leases_lost)
        short = {(name,): count for name, count in metrics.shortfalls.items()}
        yield _family(CounterMetricFamily, "shortfalls", "Too few replicas confirmed.", ["namespace"], short)

    def _connections(self) -> Iterator[Metric]:
        open_now: Counter[tuple[str, ...]] = Counter({("resp",): 0, ("http",): 0, ("unknown",): 0})
        for connection in list(self._metrics.connections()):
            open_now[(wire_of(connection),)] += 1
        yield _family(GaugeMetricFamily, "connections", "Open, by what they speak.", ["wire"], open_now)
        yield _counter("connections_refused", "Too many, or not allowed.", self._metrics.connections_refused)
        yield _counter("bad_requests", "RESP commands that could not be run.", self._metrics.bad_requests)


def journal_lines(gate: Gate) -> dict[str, int]:
    """Return how much is to be put into the store; each journal once, under the first namespace that uses it."""
    found: dict[int, tuple[str, int]] = {}
    for scope in gate.scopes():
        policy = scope.settings.on_unavailable
        if isinstance(policy, JournalledPolicy):
            found.setdefault(id(policy), (scope.settings.namespace, policy.lines))
    return dict(found.values())


def wire_of(connection: object) -> str:
    """Return which language a connection speaks; it has said nothing yet where that is unknown."""
    name = type(connection).__name__
    return "resp" if name == "RespConnection" else "unknown" if name == "Sniffer" else "http"


def _buckets(bounds: tuple[float, ...], cells: list[Any]) -> list[tuple[str, float]]:
    """Return Prometheus' buckets: each counts all that is up to its bound."""
    total, buckets = 0.0, []
    for bound, count in zip((*map(str, bounds), "+Inf"), cells, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"fastdedup_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"fastdedup_{name}", text, value=value)


def _family(kind: Any, name: str, text: str, labels: list[str], values: dict[Any, int]) -> Metric:
    family: Metric = kind(f"fastdedup_{name}", text, labels=labels)
    for key, value in list(values.items()):
        family.add_metric(list(key), value)  # type: ignore[attr-defined]
    return family
