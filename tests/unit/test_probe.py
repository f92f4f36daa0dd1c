"""`fastdedup.testing.probe`: what a gate has still to do."""

from __future__ import annotations

import asyncio

import pytest

from fastdedup import BreakerState, ConfigError, Dedup, LocalLRU, UnavailableError
from fastdedup.testing import FakeStore, fake_dedup, fake_sync_dedup, probe

from ..waiting import wait_until


async def test_a_gate_without_work_is_idle() -> None:
    async with Dedup("memory://") as dedup:
        await dedup.claim("key")
        assert probe(dedup).is_idle
        assert probe(dedup).breaker is BreakerState.CLOSED
    assert probe(dedup).is_idle, "a closed gate can be asked, too"


async def test_a_claim_that_waits_is_counted() -> None:
    async with Dedup("memory://") as dedup:
        claim = await dedup.claim("key", renew=True)
        waiter = asyncio.ensure_future(dedup.claim("key", wait=60.0))
        await wait_until(lambda: probe(dedup).waiting == 1, description="it waits")
        assert probe(dedup).renewals == 1
        await claim.complete()
        await waiter
        assert (probe(dedup).waiting, probe(dedup).renewals) == (0, 0)


async def test_an_orphan_is_shown_by_its_key(store: FakeStore) -> None:
    dedup = fake_dedup(store, timeout=0.05)
    async with dedup:
        with store.outage("frozen"):
            with pytest.raises(UnavailableError):
                await dedup.claim("lost")
            assert probe(dedup).orphans == ("lost",)
            assert not probe(dedup).is_idle
        await wait_until(lambda: probe(dedup).is_idle, description="it is freed")


async def test_a_record_for_the_store_is_counted(store: FakeStore) -> None:
    dedup = fake_dedup(store, on_unavailable=LocalLRU())
    async with dedup:
        with store.outage("refused"):
            for number in range(3):
                await (await dedup.claim(f"key {number}")).complete()
            assert probe(dedup).journal == 3
            assert probe(dedup).breaker is BreakerState.OPEN
        await wait_until(lambda: probe(dedup).is_idle, description="the store has them")
        assert probe(dedup).breaker is BreakerState.CLOSED


def test_a_synchronous_gate_is_looked_at_in_its_thread(store: FakeStore) -> None:
    dedup = fake_sync_dedup(store, timeout=0.05)
    assert probe(dedup).is_idle, "it need not be open"
    with dedup:
        with store.outage("frozen"):
            with pytest.raises(UnavailableError):
                dedup.claim("lost")
            assert probe(dedup).orphans == ("lost",)
        dedup.claim("another").release()
        assert probe(dedup).pending == 0


def test_only_a_gate_is_probed() -> None:
    with pytest.raises(ConfigError, match="probe"):
        probe("dedup")  # type: ignore[arg-type]
