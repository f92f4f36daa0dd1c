"""Figures of gates, inboxes and consumers for `prometheus_client`; `pip install 'fastdedup[prometheus]'`.

    dedup = Dedup("redis://localhost:6379/0", namespace="shop")
    watch(dedup)                     # on prometheus_client's own registry, before the gate is opened

The figures have the names of the sidecar's: see `docs/watching.md`. They are read when Prometheus asks, so that a
claim only costs a counter more.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from ..extras import needs

with needs(__name__, "prometheus_client", "'fastdedup[prometheus]'"):
    from prometheus_client.core import Metric
    from prometheus_client.registry import REGISTRY, CollectorRegistry
    from prometheus_client.registry import Collector as BaseCollector

from ..checks import named
from ..errors import ConfigError
from ..gateway import Dedup
from ..metrics import families
from ..sync.gateway import Dedup as SyncDedup
from .metrics.watched import Watched, is_watchable

_lock = Lock()
_collectors: WeakKeyDictionary[CollectorRegistry, FastdedupCollector] = WeakKeyDictionary()


class FastdedupCollector(BaseCollector):
    """Yields the figures of all watched objects on one registry; `watch` makes it."""

    def __init__(self) -> None:
        self._watched = Watched()

    def add(self, watched: Any) -> None:
        """Show the figures of a gate, a consumer or an inbox too. Errors: see `watch`."""
        if isinstance(watched, Dedup | SyncDedup):
            self._watched.add_gate(watched)
        elif is_watchable(watched):
            self._watched.add(watched)
        else:
            raise ConfigError(f"watch() takes a Dedup, an Inbox or a consumer, got {named(watched)}")

    def describe(self) -> list[Metric]:
        """Return no family: prometheus_client need not read the figures to register this."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every family (prometheus_client calls this)."""
        yield from families(self._watched.figures(), self._watched.of)


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
