"""Known duplicates: what may be told again from memory, for how long, and how much of it is kept.

Shown by a store that is down meanwhile: whoever is answered then was answered from memory.
"""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import pytest

from fastdedup import BreakerState, ConfigError, Dedup, LocalLRU, Outcome, UnavailableError
from fastdedup.kernel.operations import ForgetOp
from fastdedup.testing import Clock

from ..codecs import CodecOf
from ..virtual import virtual
from ..waiting import wait_until
from .test_fallback import FlakyStore


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(1000.0)
    monkeypatch.setattr("fastdedup.core.recent.monotonic", clock)
    monkeypatch.setattr("fastdedup.core.gate.monotonic", clock)
    return clock


@asynccontextmanager
async def gate(**options: Any) -> AsyncIterator[tuple[Dedup, FlakyStore]]:
    store = FlakyStore()
    # On a busy machine half of the usual timeout goes by between two claims that fail, and opens the breaker.
    async with Dedup(store, **{"timeout": 30.0, **options}) as dedup:
        yield dedup, store


async def succeed(dedup: Dedup, key: str = "k", result: Any = None, **options: Any) -> None:
    """Complete a key and hear of it from the store."""
    claim = await dedup.claim(key, **options)
    await claim.complete(result)
    assert (await dedup.claim(key, **options)).outcome is Outcome.SUCCEEDED


async def told_from_memory(store: FlakyStore, dedup: Dedup, key: str = "k", **options: Any) -> bool:
    store.down = True
    try:
        claim = await dedup.claim(key, **options)
    except UnavailableError:
        return False
    finally:
        store.down = False
    assert (claim.outcome, claim.degraded) == (Outcome.SUCCEEDED, False)
    return True


async def test_a_success_is_told_again_without_asking_the_store(clock: Clock) -> None:
    """As the store told it, and a fresh copy for each: nobody's changes are another's."""
    async with gate() as (dedup, store):
        await succeed(dedup, result=[1])
        store.down = True
        (await dedup.claim("k")).result.append(2)
        again = await dedup.claim("k")
        assert (again.key, again.outcome, again.result) == ("k", Outcome.SUCCEEDED, [1])


async def test_claims_of_each_type_share_a_success(clock: Clock) -> None:
    """Also one that a claim with a declared type has heard of."""
    async with gate() as (dedup, store):
        for key, heard in ("plain", {}), ("typed", {"returns": Decimal}):
            await succeed(dedup, key, Decimal("1.10"), **heard)
            store.down = True
            for declared, found in (None, "1.10"), (Decimal, Decimal("1.10")), (str, "1.10"):
                alone, (listed,) = (
                    await dedup.claim(key, returns=declared),
                    await dedup.claim_many([key], returns=declared),
                )
                assert [*map(repr, (alone.replay(), listed.replay(), alone.result))] == [
                    *map(repr, (found, found, "1.10"))
                ]
            with pytest.raises(ConfigError, match="cannot come back"):
                dedup.claim(key, returns=object.__new__)
            store.down = False


async def test_a_list_with_a_ledger_asks_for_its_own_records(clock: Clock) -> None:
    """The same key without a ledger has another record."""
    async with gate() as (dedup, _):
        await succeed(dedup, result="first")
        ledger = dedup.ledger("seen", capacity=100, window=60.0)
        (claim,) = await dedup.claim_many(["k"], remember=ledger)
        assert claim.acquired


CENTS = CodecOf(lambda amount: b"%d" % (amount * 100), lambda data: int(data) / 100)


@pytest.mark.parametrize("age", [1.0, 0.0], ids=["from memory", "in one batch"])
async def test_each_gate_reads_a_result_with_its_own_codec(age: float) -> None:
    """Two gates of one namespace share the store's answer. The second read 150 for 1.5."""
    async with gate(known_duplicates=age) as (dedup, _):
        plain, cents = dedup, dedup.scoped(codec=CENTS)
        await (await cents.claim("k")).complete(1.5)
        for _ in range(2):
            claims = await asyncio.gather(
                plain.claim("k"), cents.claim("k"), plain.claim("k"), cents.claim("k")
            )
            assert [claim.result for claim in claims] == [150, 1.5, 150, 1.5]
            assert [claim.result for claim in await cents.claim_many(["k"])] == [1.5]


async def test_every_way_of_asking_gets_it(clock: Clock) -> None:
    """await, async with, as a task, among many, and from a waiting caller."""
    async with gate() as (dedup, store):
        await succeed(dedup, result="first")
        store.down = True
        async with dedup.claim("k") as entered:
            assert entered.result == "first"
        (among,) = await dedup.claim_many(["k"])
        assert among.result == "first"
        assert (await dedup.claim("k", wait=1.0)).result == "first"

        @dedup.once(lambda: "k")
        async def work() -> str:
            raise AssertionError("it was done before")

        assert await work() == "first"


@pytest.mark.parametrize(("ttl", "ends"), [(60.0, 1.0), (0.5, 0.5)])
async def test_it_is_known_for_its_age_and_no_longer_than_its_record(
    ttl: float, ends: float, clock: Clock
) -> None:
    """Whichever ends first."""
    async with gate(known_duplicates=1.0) as (dedup, store):
        await succeed(dedup, ttl=ttl)
        clock.advance(ends - 0.1)
        assert await told_from_memory(store, dedup)
        clock.advance(0.1)
        assert not await told_from_memory(store, dedup)


async def test_the_age_runs_from_the_stores_answer(clock: Clock) -> None:
    """However often it was told meanwhile: in a storm the store is asked again every second."""
    async with gate(known_duplicates=1.0) as (dedup, store):
        await succeed(dedup)
        for _ in range(3):
            clock.advance(0.4)
            await dedup.claim("k")
            told = await told_from_memory(store, dedup)
        assert told  # asked again at 1.2 s
        clock.advance(1.0)
        assert not await told_from_memory(store, dedup)


async def test_another_fingerprint_is_the_stores_to_judge(clock: Clock) -> None:
    """Also none at all where there was one."""
    async with gate() as (dedup, store):
        await succeed(dedup, fingerprint="one")
        assert await told_from_memory(store, dedup, fingerprint="one")
        assert not await told_from_memory(store, dedup, fingerprint="other")
        assert not await told_from_memory(store, dedup)
        assert (await dedup.claim("k", fingerprint="other")).outcome is Outcome.MISMATCH


async def test_only_a_success_is_kept(clock: Clock) -> None:
    """What is in progress or failed may change."""
    async with gate() as (dedup, store):
        claim = await dedup.claim("k")
        await dedup.claim("k")
        assert not await told_from_memory(store, dedup)
        await claim.fail()
        await dedup.claim("k")
        assert not await told_from_memory(store, dedup)


async def test_a_fallbacks_answer_is_not_kept(clock: Clock) -> None:
    """Only what the store itself told is told again as its own."""
    async with gate(on_unavailable=LocalLRU()) as (dedup, store):
        store.down = True
        claim = await dedup.claim("k")
        await claim.complete()
        assert [(await dedup.claim("k")).degraded for _ in range(2)] == [True, True]


@virtual
async def test_a_token_is_always_the_stores_to_judge(clock: Clock) -> None:
    """Each use of one counts."""
    async with gate(timeout=0.25) as (dedup, store):
        token = await dedup.tokens.issue()
        for expected in (Outcome.ACQUIRED, Outcome.SUCCEEDED, Outcome.SUCCEEDED):
            assert await dedup.tokens.consume(token) is expected
        store.down = True
        with pytest.raises(UnavailableError):
            await dedup.tokens.consume(token)


async def test_namespaces_do_not_answer_for_each_other(clock: Clock) -> None:
    """The same key elsewhere is another key."""
    async with gate() as (dedup, store):
        await succeed(dedup, result="parent's")
        scope = dedup.scoped("sms")
        assert (await scope.claim("k")).acquired
        assert not await told_from_memory(store, scope)


async def test_a_scope_that_is_made_again_knows_them_and_one_that_is_gone_leaves_nothing(
    clock: Clock,
) -> None:
    """A program may make a scope for each request, of as many tenants as it has."""
    async with gate() as (dedup, store):
        await succeed(dedup.scoped("tenant-7"))
        assert await told_from_memory(store, dedup.scoped("tenant-7"))
        clock.advance(1.5)
        for number in range(100):
            await succeed(dedup.scoped(f"other-{number}"))
        clock.advance(1.5)
        await succeed(dedup.scoped("last"))
        gc.collect()
        assert len(dedup.gate.connections.common.recent.namespaces()) <= 3


async def test_forgetting_takes_effect_at_once(clock: Clock) -> None:
    """Only another process's forgetting is seen late."""
    async with gate() as (dedup, _):
        await succeed(dedup)
        assert await dedup.forget("k")
        assert (await dedup.claim("k")).acquired


@pytest.mark.parametrize("key", ["k", "k" * 41], ids=["short", "long"])
async def test_what_is_forgotten_by_its_store_key_is_not_known(clock: Clock, key: str) -> None:
    """As a sidecar's clients of its store protocol do. The store key of a long key has only a digest."""
    async with gate() as (dedup, store):
        await succeed(dedup, key)
        dedup.gate.forgot(ForgetOp(dedup.gate.claims.wire(key), ""))
        assert not await told_from_memory(store, dedup, key)


async def test_the_oldest_go_first_when_there_are_too_many(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounded by count."""
    monkeypatch.setattr("fastdedup.core.recent.MAX_ENTRIES", 3)
    async with gate() as (dedup, store):
        for key in "abcd":
            await succeed(dedup, key)
        assert [await told_from_memory(store, dedup, key) for key in "abcd"] == [False, True, True, True]


async def test_results_are_bounded_in_bytes(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen of the largest, and none that is larger; what went makes room."""
    monkeypatch.setattr("fastdedup.core.recent.MAX_BYTES", 16 * 100)
    keys = [str(number) for number in range(20)]
    async with gate() as (dedup, store):
        await succeed(dedup, "too large", "x" * 99)
        assert not await told_from_memory(store, dedup, "too large")
        for key in keys:
            await succeed(dedup, key, "x" * 98)
        told = [await told_from_memory(store, dedup, key) for key in keys]
        assert told == [False] * 4 + [True] * 16
        clock.advance(1.0)
        for key in keys:
            assert not await told_from_memory(store, dedup, key)
        await wait_until(lambda: dedup.breaker is BreakerState.CLOSED, description="the store is back")
        await dedup.claim("0")
        assert await told_from_memory(store, dedup, "0")


async def test_it_can_be_turned_off() -> None:
    """Then every claim is the store's."""
    async with gate(known_duplicates=0) as (dedup, store):
        await succeed(dedup)
        assert not await told_from_memory(store, dedup)


@pytest.mark.parametrize("age", [-1.0, True, "1", float("nan"), float("inf"), None])
def test_an_age_that_is_no_time_is_refused(age: float) -> None:
    """0 turns it off; anything else is a time."""
    with pytest.raises(ConfigError, match="known_duplicates"):
        Dedup("memory://", known_duplicates=age)
