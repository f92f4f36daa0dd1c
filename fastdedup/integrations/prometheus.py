"""Figures of gates, inboxes and consumers for `prometheus_client`; `pip install 'fastdedup[prometheus]'`.

    dedup = Dedup("redis://localhost:6379/0", namespace="shop")
    watch(dedup)                     # on prometheus_client's own registry, before the gate is opened

The figures have the names of the sidecar's: see `docs/watching.md`. They are read when Prometheus asks, so that they
cost a claim a counter only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import REGISTRY, CollectorRegistry
    from prometheus_client.registry import Collector as BaseCollector
except ImportError as error:
    raise ImportError(
        "fastdedup.integrations.prometheus needs prometheus_client: pip install 'fastdedup[prometheus]'"
    ) from error

from ..checks import named
from ..errors import ConfigError
from ..gateway import Dedup
from ..metrics import GateFamilies, WatchedGate, family
from ..sync.gateway import Dedup as SyncDedup
from .watched import WatchedMessages, is_watchable

_lock = Lock()
_collectors: WeakKeyDictionary[CollectorRegistry, FastdedupCollector] = WeakKeyDictionary()


class FastdedupCollector(BaseCollector):
    """Yields the figures of all that is watched on one registry; `watch` makes it."""

    def __init__(self) -> None:
        # Mutable: what is watched. A gate of synchronous code is another one in each process.
        self._gates: dict[int, Callable[[], Dedup]] = {}
        self._messages = WatchedMessages()

    def add(self, watched: Any) -> None:
        """Show the figures of a gate, a consumer or an inbox as well; errors as for `watch`."""
        if isinstance(watched, Dedup):
            count(watched)
            self._gates[id(watched.gate.connections)] = lambda: watched
        elif isinstance(watched, SyncDedup):
            processes = watched.per_process
            processes.on_made(count)
            self._gates[id(processes)] = lambda: processes.present
        elif is_watchable(watched):
            self._messages.add(watched)
        else:
            raise ConfigError(f"watch() takes a Dedup, an Inbox or a consumer, got {named(watched)}")

    def describe(self) -> list[Metric]:
        """Return no family: prometheus_client need not read the figures to register this."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every family (prometheus_client calls this)."""
        gates = [watched_gate(find()) for find in self._gates.values()]
        if gates:
            yield from GateFamilies(gates, self._messages.names())
        for figure in self._messages.figures():
            if figure.is_watched:
                kind = GaugeMetricFamily if figure.is_gauge else CounterMetricFamily
                yield family(kind, figure.name, figure.text, figure.labels, figure.present())


def watch(*watched: Any, registry: CollectorRegistry = REGISTRY) -> FastdedupCollector:
    """Show the figures of gates, inboxes and consumers on a registry.

    Args:
        watched: gates of asyncio or of synchronous code, before they are opened; inboxes; consumers of messages. The
            scopes of a gate (`scoped`) are counted with it, by their namespaces.
        registry: of prometheus_client.

    Raises:
        UsageError: a gate is open already.
        ConfigError: the object has no figures.
    """
    with _lock:
        collector = _collectors.get(registry)
        if collector is None:
            collector = _collectors[registry] = FastdedupCollector()
            registry.register(collector)
    for each in watched:
        collector.add(each)
    return collector


def count(dedup: Dedup) -> None:
    """Count what a gate does from now on."""
    dedup.gate.connections.count()


def watched_gate(dedup: Dedup) -> WatchedGate:
    """Return a gate's figures, of this moment."""
    connections = dedup.gate.connections
    return WatchedGate(connections.count(), dedup, connections.journals, connections.undo_counts)
