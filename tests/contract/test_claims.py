"""Guarantees 1-4, 8, 9, 12 of the store protocol, through the public API, on every store."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from fastdedup import ClaimLostError, Dedup, Fingerprint, Outcome, State, UnavailableError

from ..stores import Backend, on_both_faces
from ..waiting import abandoned, wait_until

pytestmark = on_both_faces
LEASE = 0.02
"""Seconds: short enough to run out while a test waits for it."""


async def acquired_when_lease_ends(dedup: Any, key: str, **options: Any) -> Any:
    async def claimed() -> Any:
        try:
            claim = await dedup.claim(key, **options)
        except UnavailableError as error:
            if error.retry_after != 0.0:
                raise
            return None  # LocalLRU's record expired at this very moment: the next call is answered
        return claim if claim.acquired else None

    return await wait_until(claimed, description="the lease ends and the key can be taken over")


async def test_of_many_concurrent_claims_exactly_one_is_acquired(backend: Backend) -> None:
    """Guarantee 1, each claimant in a connection and an engine of its own where the store has such."""
    gates = [backend.make() for _ in range(4)] if backend.name != "memory" else [backend.make()]
    for gate in gates:
        await gate.open()
    for round_ in range(20):
        claims = await asyncio.gather(*(gate.claim(f"race-{round_}") for gate in gates for _ in range(50)))
        assert [claim.outcome for claim in claims].count(Outcome.ACQUIRED) == 1
        assert {claim.outcome for claim in claims} == {Outcome.ACQUIRED, Outcome.IN_PROGRESS}
        assert len({claim.fence for claim in claims}) == 1
    for gate in gates:
        await gate.aclose()


async def test_the_same_owner_gets_its_own_claim_back(dedup: Dedup) -> None:
    """Guarantee 2: what a caller does whose reply was lost."""
    first = await dedup.claim("key", owner="worker-1")
    again = await dedup.claim("key", owner="worker-1")
    assert again.acquired
    assert (again.fence, again.attempt, again.owner) == (first.fence, first.attempt, "worker-1")
    await again.complete("done")


async def test_another_owner_finds_in_progress_with_the_time_left(dedup: Dedup) -> None:
    """Guarantee 3."""
    mine = await dedup.claim("key", lease=30)
    other = await dedup.claim("key")
    assert other.outcome is Outcome.IN_PROGRESS
    assert other.retry_after is not None
    assert 25 < other.retry_after <= 30
    assert other.owner != mine.owner, "an owner's name is never shown to another claimant"
    assert other.result is None
    assert other.error is None
    assert other.lease is None


async def test_an_ended_lease_is_taken_over_with_a_higher_fence(dedup: Dedup) -> None:
    """Guarantee 4: attempts count, fences rise, the former owner has lost."""
    first = await dedup.claim("key", lease=LEASE)
    later = [await acquired_when_lease_ends(dedup, "key", lease=LEASE) for _ in range(3)]
    claims = [first, *later]
    assert [claim.attempt for claim in claims] == [1, 2, 3, 4]
    fences = [claim.fence for claim in claims]
    assert fences == sorted(set(fences))
    for stale in claims[:-1]:
        with pytest.raises(ClaimLostError):
            await stale.complete("too late")


@pytest.mark.parametrize("state", ["processing", "expired", "succeeded", "failed"])
async def test_another_fingerprint_is_a_mismatch_in_every_state(dedup: Dedup, state: str) -> None:
    """Guarantee 9, an ended lease among them: a different request never takes over."""
    begin = partial(abandoned, dedup, lease=LEASE) if state == "expired" else dedup.claim
    claim = await begin("key", fingerprint={"total": 1})
    if state == "succeeded":
        await claim.complete("r")
    elif state == "failed":
        await claim.fail("e")
    other = await dedup.claim("key", fingerprint={"total": 2})
    assert other.outcome is Outcome.MISMATCH
    assert other.result is None
    assert other.error is None
    without = await dedup.claim("key")
    assert without.outcome is not Outcome.MISMATCH, "only where both are given"


async def test_a_records_fingerprint_is_the_claims(dedup: Dedup) -> None:
    """As bytes it would be digested again: a claim with it would be a mismatch."""
    await dedup.claim("key", fingerprint={"a": 1})
    record = await dedup.get("key")
    assert record is not None
    assert repr(record.fingerprint).startswith("Fingerprint.fromhex(")
    assert (await dedup.claim("key", fingerprint=record.fingerprint)).outcome is Outcome.IN_PROGRESS


async def test_concurrent_claims_with_different_fingerprints_mismatch(dedup: Dedup) -> None:
    claims = await asyncio.gather(*(dedup.claim("key", fingerprint=f"body {n % 2}") for n in range(10)))
    outcomes = [claim.outcome for claim in claims]
    assert outcomes.count(Outcome.ACQUIRED) == 1
    assert outcomes.count(Outcome.MISMATCH) == 5
    assert outcomes.count(Outcome.IN_PROGRESS) == 4


async def test_every_record_expires_by_itself(dedup: Dedup) -> None:
    """Guarantee 12: a success is remembered for its ttl, then the key is new."""
    claim = await dedup.claim("key", ttl=LEASE)  # a short lease could end before the result is stored
    await claim.complete("r")
    fresh = await acquired_when_lease_ends(dedup, "key")
    assert fresh.attempt == 1
    assert fresh.fence > claim.fence


async def test_namespaces_and_scopes_do_not_meet(dedup: Dedup, backend: Backend) -> None:
    other = backend.make(namespace="other")
    scoped = dedup.scoped("sms", ttl=60.0)
    assert scoped.settings.namespace == "t:sms"
    assert scoped.settings.ttl == 60.0
    assert scoped.settings.lease == dedup.settings.lease
    async with other:
        for gate in (dedup, other, scoped):
            assert (await gate.claim("key")).acquired
    assert (await scoped.claim("key")).outcome is Outcome.IN_PROGRESS


async def test_claim_many_answers_each_key_in_order(dedup: Dedup) -> None:
    await dedup.claim("b")
    claims = await dedup.claim_many(["a", "b", "c", "a"], fingerprints=["1", "2", "3", "1"])
    outcomes = [claim.outcome for claim in claims]
    assert outcomes == [Outcome.ACQUIRED, Outcome.IN_PROGRESS, Outcome.ACQUIRED, Outcome.IN_PROGRESS]
    assert [claim.key for claim in claims] == ["a", "b", "c", "a"]
    assert (await dedup.claim("c", fingerprint="another")).outcome is Outcome.MISMATCH
    assert await dedup.claim_many([]) == []


async def test_claim_many_sends_a_long_list_in_parts(backend: Backend) -> None:
    """The parts behind the first do not wait for it within the store's deadline, and leave room for other callers."""
    async with backend.make(max_pending=2000) as dedup:
        claims = await dedup.claim_many([str(number // 2) for number in range(4200)])
        assert [claim.acquired for claim in claims] == [True, False] * 2100


MARK = Fingerprint(b"0123456789abcdef")


async def test_get_shows_the_record(dedup: Dedup, backend: Backend) -> None:
    with backend.only_the_store_knows:
        assert await dedup.get("key") is None
    claim = await dedup.claim("key", owner="worker-1", fingerprint=MARK, lease=10, ttl=100)
    record = await dedup.get("key")
    assert record is not None
    assert (record.key, record.state, record.owner) == ("key", State.PROCESSING, "worker-1")
    assert (record.fence, record.attempt) == (claim.fence, 1)
    assert record.fingerprint == MARK
    assert record.lease is not None
    assert 5 < record.lease <= 10
    assert 100 < record.ttl <= 110
    await claim.complete({"id": 7})
    record = await dedup.get("key")
    assert record is not None
    assert (record.state, record.result, record.lease) == (State.SUCCEEDED, {"id": 7}, None)
    assert 95 < record.ttl <= 100


async def test_forget_makes_a_key_new(dedup: Dedup, backend: Backend) -> None:
    claim = await dedup.claim("key")
    assert await dedup.forget("key") is True
    with backend.only_the_store_knows:
        assert await dedup.forget("key") is False
    assert (await dedup.claim("key")).attempt == 1
    with pytest.raises(ClaimLostError):
        await claim.complete()


@pytest.mark.parametrize("key", ["a", "x" * 16, "x" * 17, "x" * 1024, "Grüße 🎉", "a\0b", "\n", "{tag}", " "])
async def test_keys_may_be_any_text(dedup: Dedup, key: str) -> None:
    claim = await dedup.claim(key)
    assert claim.acquired
    assert claim.key == key
    assert (await dedup.claim(key)).outcome is Outcome.IN_PROGRESS
    await claim.complete(key)
    assert (await dedup.claim(key)).result == key


async def test_readable_keys_stand_in_redis_as_they_are(backend: Backend) -> None:
    async with backend.make(readable_keys=1024) as dedup:
        await dedup.claim("order:" + "7" * 40)
        if backend.raw is not None:
            assert backend.raw.keys("*") == [b"t:=order:" + b"7" * 40]
