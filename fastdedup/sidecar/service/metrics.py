"""`/metrics`: the sidecar's counters in Prometheus' format.

`core/figures.py` has the figures of every gate; here are the rows that only a sidecar has. Labels are bounded:
namespaces by `Limits.namespaces`, all others by fastdedup's own names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from platform import python_version
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector as BaseCollector

from ... import __version__
from ...compiled import build
from ...core.figures import FIGURES
from ...core.sums import Sums, WatchedGate
from ...declarations import Figure, Labels
from ...fallback.base import JournalledPolicy
from ...metrics import families
from ..namespaces import Namespaces

OWN: Final = (
    Figure(
        "build_info",
        "This build.",
        ("version", "python", "build"),
        "gauge",
        source=lambda namespaces: {(__version__, python_version(), build()): 1},
    ),
    Figure(
        "connections",
        "Open, by their protocol.",
        ("wire",),
        "gauge",
        source=lambda namespaces: open_connections(namespaces),
    ),
    Figure(
        "connections_refused",
        "Too many, or not allowed.",
        source=lambda namespaces: namespaces.counters.connections_refused,
    ),
    Figure(
        "quota_refusals",
        "Over a socket's quota.",
        ("socket",),
        source=lambda namespaces: {
            (path,): access.refused for path, access in namespaces.behind_sockets.items()
        },
    ),
    Figure(
        "connections_cut",
        "Clients that did not read, and were hung up on.",
        source=lambda namespaces: namespaces.memory.cut,
    ),
    Figure(
        "reply_bytes_reserved",
        "Large replies that wait for their turn.",
        kind="gauge",
        source=lambda namespaces: namespaces.memory.reserved,
    ),
    Figure(
        "ephemeral_claims",
        "EPHEMERAL claims that clients hold.",
        kind="gauge",
        source=lambda namespaces: namespaces.ephemeral.count,
    ),
    Figure(
        "releases_waiting",
        "Claims of clients that have gone.",
        kind="gauge",
        source=lambda namespaces: len(namespaces.ephemeral.releases),
    ),
    Figure(
        "bad_requests",
        "Requests of either wire that could not be run.",
        source=lambda namespaces: namespaces.counters.bad_requests,
    ),
)
"""The figures that only a sidecar has."""


class Exposition(BaseCollector):
    """Renders `/metrics` for one sidecar: its counters, and its present state."""

    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces
        for dedup in namespaces.dedups():
            namespaces.counters.expect(dedup.settings.namespace)
        connections = namespaces.root.gate.connections
        self._gate = WatchedGate(connections, namespaces.counters, lambda: journal_lines(namespaces))
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def render(self) -> bytes:
        """Return every figure, in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield every family (prometheus_client calls this)."""
        yield from families(FIGURES, Sums([self._gate]).of)
        yield from families(OWN, lambda figure: figure.read(self._namespaces))


def open_connections(namespaces: Namespaces) -> Counter[Labels]:
    """Return the number of open connections by their protocol."""
    open_now: Counter[Labels] = Counter({("resp",): 0, ("http",): 0, ("unknown",): 0})
    for connection in list(namespaces.counters.connections()):
        open_now[(wire_of(connection),)] += 1
    return open_now


def journal_lines(namespaces: Namespaces) -> dict[str, int]:
    """Return how many records each journal has for the store, under the first namespace that uses the journal."""
    found: dict[int, tuple[str, int]] = {}
    for dedup in namespaces.dedups():
        policy = dedup.settings.on_unavailable
        if isinstance(policy, JournalledPolicy):
            found.setdefault(id(policy), (dedup.settings.namespace, policy.lines))
    return dict(found.values())


def wire_of(connection: object) -> str:
    """Return the protocol of a connection, or "unknown" if it has not sent anything yet."""
    name = type(connection).__name__
    return "resp" if name == "RespConnection" else "unknown" if name == "Sniffer" else "http"
