"""The matrix of stores: add a row here, and the contract suite runs on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import partial
from typing import Any

import fakeredis
import pytest
import redis

from fastdedup import Dedup, FallbackPolicy, LocalLRU, Reject, UnavailableError
from fastdedup.kernel.operations import Op, Reply
from fastdedup.kernel.verbs import Verb
from fastdedup.stores.base import Store
from fastdedup.stores.memory import MemoryStore
from fastdedup.stores.redis.cluster.node import Node
from fastdedup.stores.redis.cluster.store import ClusterStore
from fastdedup.stores.redis.url import ServerURL

from .faces import awaited_gate
from .fakes import fake_store
from .servers import RedisServer
from .sidecars import Sidecar
from .topologies import ClusterGroup, SentinelGroup

TIMEOUT = 5.0
"""Seconds: generous, as the tests share two cores; deadlines have tests of their own."""


class Backend:
    """A running store; `make` returns gates on it. `raw` is a client to look behind them, or None."""

    def __init__(
        self,
        name: str,
        store: Callable[[], str | Store],
        raw: redis.Redis | redis.RedisCluster | None,
        *,
        policy: Callable[[], FallbackPolicy] = Reject,
        timeout: float = TIMEOUT,
        gate: Callable[..., Any] = Dedup,
    ) -> None:
        self.name = name
        self._gate = gate
        self._timeout = timeout
        self.store = store
        # One for all gates of a test: unique within a process is what LocalLRU promises.
        self._make_policy = policy
        self._policy = policy()
        self.raw = raw

    def make(self, **options: object) -> Any:
        settings = {"namespace": "t", "timeout": self._timeout, "on_unavailable": self._policy, **options}
        return self._gate(self.store(), **settings)

    @property
    def only_the_store_knows(self) -> AbstractContextManager[object]:
        """Around what a fallback refuses to guess: there it is UnavailableError, elsewhere an answer."""
        return pytest.raises(UnavailableError) if self.name == "local" else nullcontext()

    def clear(self) -> None:
        self._policy = self._make_policy()
        if self.raw is not None:
            self.raw.flushdb()


@contextmanager
def memory() -> Iterator[Backend]:
    yield Backend("memory", lambda: "memory://", None)


@contextmanager
def fake() -> Iterator[Backend]:
    server = fakeredis.FakeServer()
    with fakeredis.FakeRedis(server=server) as raw:
        yield Backend("fakeredis", lambda: fake_store(server, TIMEOUT), raw)


@contextmanager
def real() -> Iterator[Backend]:
    with RedisServer() as server, server.client() as raw:
        yield Backend("redis", lambda: server.url, raw)


@contextmanager
def sentinel() -> Iterator[Backend]:
    """A primary with two replicas, behind three sentinels."""
    with SentinelGroup() as group, group.primary().client() as raw:
        yield Backend("sentinel", lambda: group.url, raw)


@contextmanager
def cluster() -> Iterator[Backend]:
    """Three primaries with a replica each."""
    with ClusterGroup() as group, closing(group.raw()) as raw:
        yield Backend("cluster", lambda: group.url, raw)


@contextmanager
def cluster_by_slot() -> Iterator[Backend]:
    """A Cluster whose servers refuse undeclared keys, so batches go by slot."""
    with ClusterGroup() as group, closing(group.raw()) as raw:
        yield Backend("cluster by slot", lambda: refusing_store(group.url), raw)


def refusing_store(url: str, *, timeout: float = TIMEOUT) -> ClusterStore:
    """Return the store of a Cluster, each node of which has refused undeclared keys."""
    store = ClusterStore(url, timeout=timeout)
    make_node = store.topology.make_node

    def refused(server: ServerURL) -> Node:
        node = make_node(server)
        node.batches_whole = False
        return node

    store.topology.make_node = refused
    return store


class DownStore(MemoryStore):
    """A store that never answers."""

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        raise UnavailableError("the store is down")

    async def listen(self, on_freed: Callable[[bytes | None], None]) -> None:
        raise UnavailableError("the store is down")


@contextmanager
def local() -> Iterator[Backend]:
    """LocalLRU in a long outage: the same contract, each answer marked as degraded."""
    # A short timeout: closing waits for it, as the store may come back.
    yield Backend("local", DownStore, None, policy=LocalLRU, timeout=0.2)


@contextmanager
def sidecar() -> Iterator[Backend]:
    """A sidecar over a server: what stands in Redis is the same as without it."""
    with (
        RedisServer() as server,
        Sidecar(server.url, timeout=TIMEOUT) as gate,
        server.client() as raw,
    ):
        yield Backend("sidecar", lambda: gate.url, raw)


STORES: dict[str, Callable[[], AbstractContextManager[Backend]]] = {
    "memory": memory,
    "local": local,
    "fakeredis": fake,
    "redis": real,
    "sentinel": sentinel,
    "cluster": cluster,
    "cluster by slot": cluster_by_slot,
    "sidecar": sidecar,
}


@contextmanager
def synchronous() -> Iterator[Backend]:
    """The gate of synchronous code over a server, for tests of what both gates promise."""
    with RedisServer() as server, server.client() as raw:
        yield Backend("synchronous", lambda: server.url, raw, gate=partial(awaited_gate, "synchronous"))


ROWS = {**STORES, "synchronous": synchronous}
ALL_BUT_LOCAL = tuple(name for name in STORES if name != "local")
"""The rows without LocalLRU, which stands for a store that is down."""


def on_stores(*names: str) -> pytest.MarkDecorator:
    """Return a mark: the test runs on these rows of the matrix only."""
    return pytest.mark.parametrize("running_store", names, indirect=True)


on_both_faces = on_stores(*ROWS)
"""A mark: the test runs on each store, and by synchronous code on one."""
