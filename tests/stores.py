"""The matrix of stores: add a row here, and the contract suite runs on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import fakeredis
import redis

from fastdedup import Dedup
from fastdedup.stores.base import Store

from .fakes import fake_store
from .servers import RedisServer

TIMEOUT = 5.0
"""Seconds: generous, as the tests share two cores; deadlines have tests of their own."""


class Backend:
    """A running store; `make` returns gates on it. `raw` is a client to look behind them, or None."""

    def __init__(self, name: str, store: Callable[[], str | Store], raw: redis.Redis | None) -> None:
        self.name = name
        self._store = store
        self.raw = raw

    def make(self, **options: object) -> Dedup:
        settings = {"namespace": "t", "timeout": TIMEOUT, **options}
        return Dedup(self._store(), **settings)  # type: ignore[arg-type]

    def clear(self) -> None:
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
    server = RedisServer().start()
    try:
        with server.client() as raw:
            yield Backend("redis", lambda: server.url, raw)
    finally:
        server.stop()


STORES: dict[str, Callable[[], AbstractContextManager[Backend]]] = {
    "memory": memory,
    "fakeredis": fake,
    "redis": real,
}
