"""A gate in a test renews, loses and counts as one in life does."""

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

from fastdedup import ClaimLostError, Dedup, LocalLRU, UsageError
from fastdedup.errors import UnavailableError
from fastdedup.integrations.prometheus import watch
from fastdedup.kernel.operations import Op, RenewOp, Reply
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.testing import FakeStore, assert_claimed_once, claims_of, fake_dedup, fake_sync_dedup, swapped

from ..otel import Otel, values
from ..sidecar.running import figure
from ..waiting import wait_until

# A gate in a test renews and loses leases as one in life does.


# A lease of which a third is over in real time is renewed when a test moves the clock, as any other is. The
# gate of a test looked for renewals only where they wait for that third. Who was at work for longer lost
# the key.


async def test_a_lease_is_renewed_also_after_its_first_third(store: FakeStore) -> None:
    async with fake_dedup(store, lease=1.5) as dedup, dedup.claim("k", renew=True) as claim:
        await wait_until(
            lambda: hasattr(claim.settlement, "_ends"), description="its own task has renewed it"
        )
        store.clock.advance(3_600)
        assert not (await dedup.claim("k")).acquired
        assert not claim.lost


# In a test as in life `LocalLRU` renews what it has answered, however long the outage lasts. The gate of a
# test looked for the lease in the store, where a claim of the policy has none: the first move of the clock
# stopped its body.


class Unrenewing(LocalLRU):
    """A policy that renews no claim."""

    def answer(self, op: Op, error: UnavailableError) -> Reply:
        if isinstance(op, RenewOp):
            raise error
        return super().answer(op, error)


async def _work_until_the_lease_is_over(dedup: Dedup, store: FakeStore) -> None:
    async with dedup.claim("k", renew=True) as claim:
        store.clock.advance(29.9)
        assert not claim.lost
        store.clock.advance(0.1)
        await asyncio.Event().wait()


async def test_a_local_claim_is_renewed_while_the_outage_lasts(store: FakeStore) -> None:
    async with fake_dedup(store, lease=30.0, on_unavailable=LocalLRU()) as dedup:
        with store.outage():
            async with dedup.claim("k", renew=True) as claim:
                for seconds in (0.001, 10, 90):
                    store.clock.advance(seconds)
                    await asyncio.sleep(0)
                    assert not (await dedup.claim("k")).acquired, "it is still held"
                assert (claim.degraded, claim.lost) == (True, False)
            assert_claimed_once(dedup, "k", end="completed")


async def test_a_local_claim_is_renewed_until_the_store_has_it(store: FakeStore) -> None:
    """The outage has ended, and the policy keeps the record still."""
    async with fake_dedup(store, lease=30.0, on_unavailable=LocalLRU()) as dedup:
        store.outage.start()
        async with dedup.claim("k", renew=True) as claim:
            store.outage.stop()
            store.clock.advance(90)
            assert not (await dedup.claim("k")).acquired
            await wait_until(lambda: len(store) == 1, description="the store has it")
            store.clock.advance(90)
            assert not (await dedup.claim("k")).acquired
            await claim.complete("done")
        assert (await dedup.claim("k")).result == "done"


async def test_where_the_policy_does_not_renew_it_the_end_of_the_lease_stops_the_body() -> None:
    store = FakeStore()
    async with fake_dedup(store, lease=30.0, on_unavailable=Unrenewing()) as dedup:
        with store.outage(), pytest.raises(ClaimLostError, match="was lost while its body ran") as lost:
            await _work_until_the_lease_is_over(dedup, store)
        assert lost.value.outage


def test_a_synchronous_one_is_renewed(store: FakeStore) -> None:
    dedup = fake_sync_dedup(store, lease=30.0, on_unavailable=LocalLRU())
    with store.outage():
        with dedup.claim("k", renew=True) as claim:
            store.clock.advance(90)
            assert not dedup.claim("k").acquired
        assert not claim.lost
    dedup.close()


# In a test as in life an owner that renews finds out that it has its key no longer, and its body is
# stopped. The gate of a test renewed the lease and threw the answer away, so that two owners could work for
# hours.


Passes = Callable[[], object]


async def _work_without_the_key(dedup: Dedup, passes: Passes, *, is_taken: bool) -> None:
    async with dedup.claim("k", renew=True):
        await dedup.forget("k")
        if is_taken:
            assert (await dedup.claim("k", lease=6_000.0)).acquired
        passes()
        await asyncio.Event().wait()


async def _loses(dedup: Dedup, passes: Passes, *, is_taken: bool) -> None:
    with pytest.raises(ClaimLostError, match="was lost while its body ran") as lost:
        await _work_without_the_key(dedup, passes, is_taken=is_taken)
    assert not lost.value.outage


@pytest.mark.parametrize("is_taken", [False, True], ids=["forgotten", "another owner's"])
async def test_the_body_is_stopped_on_redis_as_in_a_test(redis_url: str, is_taken: bool) -> None:
    async with Dedup(redis_url, lease=1.5) as dedup:
        await _loses(dedup, lambda: None, is_taken=is_taken)
    store = FakeStore()
    async with fake_dedup(store, lease=3_000.0) as dedup:  # no renewal in real time
        await _loses(dedup, lambda: store.clock.advance(1_000), is_taken=is_taken)


async def test_an_owner_finds_its_loss_out_at_a_third_of_the_lease(store: FakeStore) -> None:
    dedup = fake_dedup(store, lease=30.0)
    claim = await dedup.claim("k", renew=True)
    await dedup.forget("k")
    for seconds, lost in ((4.0, False), (5.9, False), (0.1, True)):
        store.clock.advance(seconds)
        assert claim.lost is lost
    with pytest.raises(ClaimLostError):
        await claim.complete()


async def test_the_owner_after_a_loss_keeps_the_key(store: FakeStore) -> None:
    dedup = fake_dedup(store, lease=30.0)
    former = await dedup.claim("k", renew=True)
    await dedup.forget("k")
    async with dedup.claim("k", renew=True) as present:
        for _ in range(10):
            store.clock.advance(3_600)
        assert (former.lost, present.lost) == (True, False)
        with pytest.raises(ClaimLostError):
            await former.complete()
    assert claims_of(dedup, "k").acquisitions[-1].end == "completed"


async def test_what_was_settled_meanwhile_is_not_lost(store: FakeStore) -> None:
    dedup = fake_dedup(store, lease=30.0)
    claim = await dedup.claim("k", renew=True)
    await claim.complete()
    await dedup.forget("k")
    store.clock.advance(60)
    assert not claim.lost


def test_a_synchronous_owner_is_told_at_once(store: FakeStore) -> None:
    dedup: Any = fake_sync_dedup(store, lease=30.0)
    claim = dedup.claim("k", renew=True)
    dedup.forget("k")
    store.clock.advance(10)
    assert claim.lost
    with pytest.raises(ClaimLostError):
        claim.complete()
    dedup.close()


# A gate that is swapped in a test shows the test's figures meanwhile, and afterwards its own. The gate of a
# test refused to be counted, as it was open: so /metrics raised a UsageError for the whole registry, and so
# did `watch` in a lifespan. What the test claimed was counted for the application's own gate.


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    warnings.simplefilter("ignore", UserWarning)  # newer ones ask for another httpx
    from fastapi.testclient import TestClient

NOWHERE = "redis://localhost:1/0"
TOTAL = "fastdedup_operations_total"


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


async def test_figures_of_an_outage_are_those_of_all_event_loops() -> None:
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
        assert dedup.gate.observers.tracing is not None
    assert dedup.gate.observers.tracing is None
    assert otel.points("fastdedup.operations"), "its metrics are asked for still"
