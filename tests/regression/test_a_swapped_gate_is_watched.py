"""A gate that is swapped in a test shows the test's figures meanwhile, and afterwards its own.

The gate of a test refused to be counted, as it was open: so /metrics raised a UsageError for the whole registry, and
so did `watch` in a lifespan. What the test claimed was counted for the application's own gate.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, generate_latest, make_asgi_app

from fastdedup import Dedup, LocalLRU, UnavailableError, UsageError
from fastdedup.integrations.prometheus import watch
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.testing import FakeStore, fake_dedup, fake_sync_dedup, swapped

from ..otel import Otel, values
from ..sidecar.running import figure

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    warnings.simplefilter("ignore", UserWarning)  # newer ones ask for another httpx
    from fastapi.testclient import TestClient

NOWHERE = "redis://localhost:1/0"
TOTAL = "fastdedup_operations_total"
Watch = Callable[[], object]


class Shop:
    """An application that claims, with its figures at /metrics."""

    def __init__(self, *, at_start: bool = False) -> None:
        self.registry = CollectorRegistry()
        self.dedup = Dedup(NOWHERE, namespace="shop")
        self.app = FastAPI(lifespan=self._watching if at_start else None)
        self.app.mount("/metrics", make_asgi_app(self.registry))
        self.app.get("/orders/{number}")(self._order)
        if not at_start:
            watch(self.dedup, registry=self.registry)

    @asynccontextmanager
    async def _watching(self, app: FastAPI) -> AsyncIterator[None]:
        watch(self.dedup, registry=self.registry)
        async with self.dedup:
            yield

    async def _order(self, number: int) -> bool:
        return (await self.dedup.claim(f"order:{number}")).acquired

    def shown(self, name: str = TOTAL, **labels: str) -> float:
        """The figure that Prometheus reads, outside of any event loop."""
        return figure(generate_latest(self.registry).decode(), name, **labels)


@pytest.mark.parametrize("at_start", [False, True], ids=["at import", "in a lifespan"])
def test_the_metrics_of_a_swapped_gate_are_the_test_s(at_start: bool) -> None:
    shop = Shop(at_start=at_start)
    for _ in range(2):  # two tests
        with swapped(shop.dedup), TestClient(shop.app) as client:
            client.get("/orders/7")
            client.get("/orders/7")
            metrics = client.get("/metrics/")
            assert metrics.status_code == 200
            assert figure(metrics.text, TOTAL, namespace="shop", outcome="acquired") == 1
            assert figure(metrics.text, TOTAL, namespace="shop", outcome="in_progress") == 1
            assert figure(metrics.text, "fastdedup_batch_size_count") == 2
        assert shop.shown() == 0
        assert (
            f'{TOTAL}{{namespace="shop",outcome="unavailable",verb="claim"}} 0.0'
            in generate_latest(shop.registry).decode()
        )


async def test_afterwards_the_figures_are_as_before(redis_url: str) -> None:
    registry = CollectorRegistry()
    dedup = Dedup(redis_url, namespace="figures")
    watch(dedup, registry=registry)
    async with dedup:
        await (await dedup.claim("k")).complete()
    before = generate_latest(registry)
    with swapped(dedup) as store:
        with store.outage(), pytest.raises(UnavailableError):
            await dedup.claim("other")
        await dedup.scoped("scope").claim("other")
        assert figure(generate_latest(registry).decode(), "fastdedup_degraded_total") == 1
    assert generate_latest(registry) == before
    async with dedup:
        await (await dedup.claim("k2")).complete()
    assert figure(generate_latest(registry).decode(), TOTAL, verb="complete") == 2


def test_a_synchronous_gate_is_watched_before_and_within_a_swap() -> None:
    for within in (False, True):
        registry, dedup = CollectorRegistry(), SyncDedup(NOWHERE, namespace="shop")
        if not within:
            watch(dedup, registry=registry)
        for _ in range(2):
            with swapped(dedup):
                if within:
                    watch(dedup, registry=registry)
                dedup.claim("k").complete(1)
                assert figure(generate_latest(registry).decode(), TOTAL, outcome="acquired") == 1
            assert figure(generate_latest(registry).decode(), TOTAL) == 0


@pytest.mark.parametrize("make", [fake_dedup, fake_sync_dedup])
def test_a_gate_that_was_made_for_a_test_is_watched(make: Callable[..., Any]) -> None:
    registry, dedup = CollectorRegistry(), make()
    watch(dedup, registry=registry)
    if isinstance(dedup, SyncDedup):
        dedup.claim("k")
        dedup.close()
    else:
        asyncio.run(dedup.claim("k").__aenter__())
    assert figure(generate_latest(registry).decode(), TOTAL, outcome="acquired") == 1


async def test_a_gate_that_the_application_has_opened_is_refused_as_in_life() -> None:
    async with fake_dedup() as dedup:
        with pytest.raises(UsageError, match="before you open it"):
            watch(dedup, registry=CollectorRegistry())
    watch(dedup, registry=CollectorRegistry())


async def test_swaps_within_each_other_count_each_for_itself() -> None:
    shop = Shop()
    with swapped(shop.dedup):
        await shop.dedup.claim("outer")
        with swapped(shop.dedup):
            await shop.dedup.claim("inner")
            await shop.dedup.claim("another")
            assert shop.shown(outcome="acquired") == 2
        assert shop.shown(outcome="acquired") == 1


async def test_figures_of_an_outage_are_those_of_all_event_loops(wait_until: Callable[..., Any]) -> None:
    store, registry = FakeStore(), CollectorRegistry()
    dedup = fake_dedup(store, namespace="shop", on_unavailable=LocalLRU())
    watch(dedup, registry=registry)
    with store.outage():
        await dedup.scoped("web").claim("k")

        def shown() -> float:
            return figure(generate_latest(registry).decode(), "fastdedup_journal_records", namespace="shop")

        assert shown() == await asyncio.to_thread(shown) == 1
    await wait_until(lambda: not shown(), description="the record is in the store")


async def test_opentelemetry_shows_the_test_s_figures_and_spans(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "opentelemetry")
    otel, dedup = Otel(), Dedup(NOWHERE, namespace="shop")
    otel.instrument(dedup, histograms=True)
    with swapped(dedup):
        with otel.tracer.start_as_current_span("test"):
            await (await dedup.claim("k")).complete(1)
        shown = values(otel.points("fastdedup.operations"), "verb", "outcome")
        assert shown == {("claim", "acquired"): 1, ("complete", "ok"): 1}
        assert otel.names() == ["claim shop", "complete shop", "test"]
        assert sum(point.count for point in otel.points("fastdedup.operation.duration")) == 2
    assert not values(otel.points("fastdedup.operations"), "verb", "outcome")
    assert not caplog.records


async def test_what_a_test_instruments_makes_no_spans_after_it() -> None:
    otel, dedup = Otel(), Dedup(NOWHERE, namespace="shop")
    with swapped(dedup):
        otel.instrument(dedup)
        assert dedup._namespace.watchers.tracing is not None
    assert dedup._namespace.watchers.tracing is None
    assert otel.points("fastdedup.operations"), "its metrics are asked for still"
