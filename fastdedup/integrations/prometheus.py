"""Figures of gates, inboxes and consumers for `prometheus_client`; `pip install 'fastdedup[prometheus]'`.

    dedup = Dedup("redis://localhost:6379/0", namespace="shop")
    watch(dedup)                     # on prometheus_client's own registry, before the gate is opened

The figures have the names of the sidecar's: see `docs/watching.md`. They are read when Prometheus asks, so that a
claim only costs a counter more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from ..extras import needs

with needs(__name__, "prometheus_client", "'fastdedup[prometheus]'"):
    from prometheus_client.core import Metric
    from prometheus_client.registry import REGISTRY, CollectorRegistry
    from prometheus_client.registry import Collector as BaseCollector

from ..checks import named
from ..core.figures import FIGURES
from ..core.sums import Sums
from ..errors import ConfigError
from ..gateway import Dedup
from ..metrics import families
from ..sync.gateway import Dedup as SyncDedup
from .metrics.watched import WatchedMessages, is_watchable, watched_gate

_lock = Lock()
_collectors: WeakKeyDictionary[CollectorRegistry, FastdedupCollector] = WeakKeyDictionary()


class FastdedupCollector(BaseCollector):
    """Yields the figures of all watched objects on one registry; `watch` makes it."""

    def __init__(self) -> None:
        # Mutable: the watched objects. A gate of synchronous code is another one in each process.
        self._gates: dict[int, Callable[[], Dedup]] = {}
        self._messages = WatchedMessages()

    def add(self, watched: Any) -> None:
        """Show the figures of a gate, a consumer or an inbox too. Errors: see `watch`."""
        if isinstance(watched, Dedup):
            watched_gate(watched)
            self._gates[id(watched.gate.connections)] = lambda: watched
        elif isinstance(watched, SyncDedup):
            processes = watched.per_process
            processes.on_made(watched_gate)
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
            yield from families(FIGURES, Sums(gates, self._messages.names()).of)
        yield from families(self._messages.figures(), lambda figure: figure.read(self._messages))


def watch(*watched: Any, registry: CollectorRegistry = REGISTRY) -> FastdedupCollector:
    """Show the figures of gates, inboxes and consumers on a registry.

    Args:
        watched: gates of asyncio or of synchronous code, before they are opened; inboxes; consumers of messages. The
            scopes of a gate (`scoped`) are counted with it, by their namespaces.
        registry: a registry of prometheus_client.

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
