"""`/metrics`: the sidecar's counters in Prometheus' format.

`fastdedup/metrics.py` names what every gate has; here stands what only a sidecar has. Labels are bounded: namespaces
by `Limits.namespaces`, all others by fastdedup's own names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from platform import python_version

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector as BaseCollector

from ... import __version__
from ...compiled import build
from ...fallback.base import JournalledPolicy
from ...metrics import GateFamilies, WatchedGate, counter, family, gauge
from ..namespaces import Namespaces


class Exposition:
    """Renders `/metrics` for one sidecar."""

    def __init__(self, namespaces: Namespaces) -> None:
        self._counters = namespaces.counters
        self._registry = CollectorRegistry()
        self._registry.register(Collector(namespaces))
        ProcessCollector(registry=self._registry)

    def render(self) -> bytes:
        """Return every figure, in Prometheus' text format."""
        return generate_latest(self._registry)


class Collector(BaseCollector):
    """Turns the sidecar's counters and its present state into metric families."""

    def __init__(self, namespaces: Namespaces) -> None:
        self._counters = namespaces.counters
        self._namespaces = namespaces
        for dedup in namespaces.dedups():
            self._counters.expect(dedup.settings.namespace)
        undo = namespaces.root.gate.connections.undo_counts
        self._gate = WatchedGate(
            namespaces.counters, namespaces.root, lambda: journal_lines(namespaces), undo
        )

    def collect(self) -> Iterator[Metric]:
        """Yield every family (prometheus_client calls this)."""
        yield build_info()
        yield from GateFamilies([self._gate])
        yield from self._connections()

    def _connections(self) -> Iterator[Metric]:
        open_now: Counter[tuple[str, ...]] = Counter({("resp",): 0, ("http",): 0, ("unknown",): 0})
        for connection in list(self._counters.connections()):
            open_now[(wire_of(connection),)] += 1
        yield family(GaugeMetricFamily, "connections", "Open, by their protocol.", ["wire"], open_now)
        yield counter("connections_refused", "Too many, or not allowed.", self._counters.connections_refused)
        memory, ephemeral = self._namespaces.memory, self._namespaces.ephemeral
        refused = {(path,): access.refused for path, access in self._namespaces.behind_sockets.items()}
        yield family(CounterMetricFamily, "quota_refusals", "Over a socket's quota.", ["socket"], refused)
        yield counter("connections_cut", "Clients that did not read, and were hung up on.", memory.cut)
        yield gauge("reply_bytes_reserved", "Large replies that wait for their turn.", memory.reserved)
        yield gauge("ephemeral_claims", "EPHEMERAL claims that clients hold.", ephemeral.count)
        yield gauge("releases_waiting", "Claims of clients that have gone.", len(ephemeral.releases))
        yield counter(
            "bad_requests", "Requests of either wire that could not be run.", self._counters.bad_requests
        )


def build_info() -> Metric:
    """Return the figure that tells this build, to compare sidecars: always 1."""
    labels = {"version": __version__, "python": python_version(), "build": build()}
    return family(GaugeMetricFamily, "build_info", "This build.", list(labels), {tuple(labels.values()): 1})


def journal_lines(namespaces: Namespaces) -> dict[str, int]:
    """Return how many records each journal has for the store, under the first namespace that uses the journal."""
    found: dict[int, tuple[str, int]] = {}
    for dedup in namespaces.dedups():
        policy = dedup.settings.on_unavailable
        if isinstance(policy, JournalledPolicy):
            found.setdefault(id(policy), (dedup.settings.namespace, policy.lines))
    return dict(found.values())


def wire_of(connection: object) -> str:
    """Return the protocol of a connection, or "unknown" where it has not sent anything yet."""
    name = type(connection).__name__
    return "resp" if name == "RespConnection" else "unknown" if name == "Sniffer" else "http"
