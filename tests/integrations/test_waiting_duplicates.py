"""A duplicate that waits for the first is counted once, by what came of it, whichever integration waits.

It was counted as `in_progress` at its first look, and again at its end: "duplicates a minute" was twice the truth.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import anyio
import httpx
import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy.ext.asyncio import create_async_engine

from fastdedup import Dedup
from fastdedup.integrations.prometheus import watch
from fastdedup.messages.deliveries import Deliveries
from fastdedup.messages.rules import MessageRules
from fastdedup.sql import Inbox
from fastdedup.sql.once import claim_at
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.sync.sql import Inbox as SyncInbox
from fastdedup.testing import inbox_database

from .desk import behind
from .shops import until
from .wsgi_apps import Call, Reply, Shop

HEADERS = {"Idempotency-Key": "k"}


def counted(registry: CollectorRegistry, verb: str = "claim") -> dict[str, float]:
    """The outcomes of calls that were counted."""
    return {
        sample.labels["outcome"]: sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "fastdedup_operations_total" and sample.labels["verb"] == verb and sample.value
    }


def latencies(registry: CollectorRegistry) -> float | None:
    return registry.get_sample_value("fastdedup_operation_seconds_count", {"verb": "claim"})


@asynccontextmanager
async def asking(
    registry: CollectorRegistry, asked: anyio.Event, go_on: anyio.Event, *, wait: float
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an endpoint that says when it was asked, and answers when it may."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.set()
        await go_on.wait()
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    dedup = Dedup("memory://", namespace="shop", known_duplicates=0)
    watch(dedup, registry=registry)
    async with behind(dedup, app, wait=wait) as client:
        yield client


async def test_of_a_web_request() -> None:
    registry, asked, go_on = CollectorRegistry(), anyio.Event(), anyio.Event()

    async with asking(registry, asked, go_on, wait=10.0) as client:
        first = asyncio.create_task(client.post("/", headers=HEADERS))
        await asked.wait()
        second = asyncio.create_task(client.post("/", headers=HEADERS))
        await asyncio.wait([second], timeout=0.05)
        go_on.set()
        assert (await first).content == (await second).content == b"done"
    assert counted(registry) == {"acquired": 1, "succeeded": 1}
    assert latencies(registry) == 2


@pytest.mark.parametrize("wait", [0.0, 0.05])
async def test_of_a_web_request_that_waits_in_vain_or_not_at_all(wait: float) -> None:
    registry, asked, go_on = CollectorRegistry(), anyio.Event(), anyio.Event()

    async with asking(registry, asked, go_on, wait=wait) as client:
        first = asyncio.create_task(client.post("/", headers=HEADERS))
        await asked.wait()
        assert (await client.post("/", headers=HEADERS)).status_code == 409
        go_on.set()
        await first
    assert counted(registry) == {"acquired": 1, "in_progress": 1}


def test_of_a_request_of_wsgi() -> None:
    registry, asked, go_on = CollectorRegistry(), threading.Event(), threading.Event()
    dedup = SyncDedup("memory://", namespace="shop", known_duplicates=0)
    watch(dedup, registry=registry)
    with dedup:
        shop = Shop("bare", dedup, wait=10.0)

        def handler(call: Call) -> Reply:
            asked.set()
            assert go_on.wait(10.0)
            return Reply()

        shop.handler = handler
        answers: list[int] = []
        threads = [threading.Thread(target=lambda: answers.append(shop.post().status)) for _ in range(2)]
        threads[0].start()
        assert asked.wait(10.0)
        threads[1].start()
        threads[1].join(0.05)
        go_on.set()
        for thread in threads:
            thread.join(10.0)
        assert answers == [201, 201]
    assert counted(registry) == {"acquired": 1, "succeeded": 1}


async def test_of_a_message() -> None:
    registry, asked, go_on = CollectorRegistry(), anyio.Event(), anyio.Event()

    async def handler(message: str) -> None:
        asked.set()
        await go_on.wait()

    async def lay(message: Any, decision: Any) -> None:
        raise AssertionError("no dead letter")

    dedup = Dedup("memory://", namespace="shop", known_duplicates=0)
    watch(dedup, registry=registry)
    deliveries = Deliveries(MessageRules("billing", lambda message: message, wait=10.0), dedup)
    async with dedup:
        first = asyncio.create_task(deliveries.handle("m-1", handler, lay))
        await asked.wait()
        second = asyncio.create_task(deliveries.handle("m-1", handler, lay))
        await asyncio.wait([second], timeout=0.05)
        go_on.set()
        await first
        await second
    assert counted(registry) == {"acquired": 1, "succeeded": 1}


@pytest.mark.parametrize("wait", [0.0, 10.0])
async def test_of_calls_behind_a_call_of_their_process(wait: float, tmp_path: Path) -> None:
    """They do not ask the gate, and are counted as if they had."""
    registry = CollectorRegistry()
    dedup = Dedup("memory://", namespace="shop")
    watch(dedup, registry=registry)
    inbox, url = Inbox("billing", keep=86_400.0), f"sqlite+aiosqlite:///{tmp_path}/shop.db"
    engine = create_async_engine(url, connect_args={"isolation_level": "IMMEDIATE"})

    @inbox.once(key=lambda transaction, key: key, begin=engine.begin, gate=dedup, wait=wait)
    async def handle(transaction: Any, key: str) -> str:
        await asyncio.sleep(0)
        return "done"

    async with dedup:
        with inbox_database(inbox, path=tmp_path / "shop.db"):
            answers = await asyncio.gather(*(handle("m-1") for _ in range(10)), return_exceptions=True)
        await engine.dispose()
    assert answers.count("done") == (10 if wait else 1)
    assert counted(registry) == {"acquired": 1, "succeeded" if wait else "in_progress": 9}


def test_of_calls_behind_a_thread_of_their_process(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    inbox, all_here = SyncInbox("billing", keep=86_400.0), threading.Barrier(3)
    dedup = SyncDedup("memory://", namespace="shop")
    watch(dedup, registry=registry)
    with dedup, inbox_database(inbox, path=tmp_path / "shop.db"):

        @contextmanager
        def begin() -> Iterator[sqlite3.Connection]:
            with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
                yield connection

        @inbox.once(key=lambda transaction, key: key, begin=begin, gate=dedup, wait=10.0)
        def handle(transaction: Any, key: str) -> str:
            return "done"

        def call(_: int) -> str:
            all_here.wait(10.0)
            return handle("m-1")

        with ThreadPoolExecutor(3) as pool:
            assert [*pool.map(call, range(3))] == ["done"] * 3
        until(lambda: counted(registry) == {"acquired": 1, "succeeded": 2}, description="they are counted")


@pytest.mark.parametrize("wait", [0.0, 10.0])
async def test_of_a_call_before_an_inbox(wait: float) -> None:
    registry = CollectorRegistry()
    dedup = Dedup("memory://", namespace="shop", known_duplicates=0)
    watch(dedup, registry=registry)
    async with dedup:
        first = await claim_at(dedup, "m-1", monotonic(), None)
        second = asyncio.create_task(claim_at(dedup, "m-1", monotonic() + wait, None))
        await asyncio.wait([second], timeout=0.05)
        await first.complete("done")
        outcome = (await second).outcome
    assert outcome == ("succeeded" if wait else "in_progress")
    assert counted(registry) == {"acquired": 1, outcome: 1}
