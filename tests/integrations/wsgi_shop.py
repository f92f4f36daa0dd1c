"""A handler behind the WSGI middleware, in each framework: what it was asked, and what clients were answered."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from fastdedup.integrations.wsgi import IdempotencyMiddleware, Route, by_header
from fastdedup.sync import Dedup

from ..stores import TIMEOUT
from .wsgi_apps import KINDS, Answer, App, Call, Handler, Reply, call

DEADLINE = 20.0
STORES = ("memory", "redis")


def gate(request: pytest.FixtureRequest, **settings: Any) -> Dedup:
    """Return a gate on the store that a fixture is asked for."""
    url = "memory://" if request.param == "memory" else request.getfixturevalue("redis_url")
    return Dedup(url, **{"namespace": "t", "timeout": TIMEOUT, **settings})


class Shop:
    """An application that counts its runs; `answers` says what it replies, a `Reply` for each run."""

    def __init__(self, kind: str, dedup: Dedup, **settings: Any) -> None:
        self.kind = kind
        self.dedup = dedup
        self.calls: list[Call] = []
        self.handler: Handler = self.numbered
        settings = {"principal": by_header("x-api-key"), **settings}
        self.app: App = IdempotencyMiddleware(KINDS[kind](self._handle), dedup, **settings)

    @property
    def runs(self) -> int:
        return len(self.calls)

    def _handle(self, call: Call) -> Reply:
        self.calls.append(call)
        return self.handler(call)

    def numbered(self, call: Call) -> Reply:
        """Tell runs apart."""
        return Reply(body=b'{"order": %d}' % self.runs)

    def replies(self, *replies: Reply) -> None:
        """Let the next runs reply this."""
        rest = iter(replies)
        self.handler = lambda call: next(rest)

    def post(self, body: bytes = b"", key: str | None = "k", **more: Any) -> Answer:
        return call(self.app, more.pop("path", "/orders"), body, key=key, **more)

    @contextmanager
    def at_work(self, **more: Any) -> Iterator[tuple[threading.Event, Future[Answer]]]:
        """Around what happens while the first run is at work; setting the event lets it go on."""
        working, go = threading.Event(), threading.Event()

        def handler(call: Call) -> Reply:
            working.set()
            assert go.wait(DEADLINE)
            return self.numbered(call)

        self.handler = handler
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(self.post, **more)
            try:
                assert working.wait(DEADLINE)
                yield go, first
            finally:
                go.set()


__all__ = ["DEADLINE", "STORES", "Route", "Shop", "gate"]
