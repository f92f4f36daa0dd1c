"""A long list of claims goes to the store in parts, and so does all that follows from it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from fastdedup import Claim, ConfigError, Dedup, Outcome, ShortfallError
from fastdedup.core.connection import LOOKS_AT_ONCE
from fastdedup.core.many import ClaimList, ListedClaim
from fastdedup.core.together import AT_ONCE
from fastdedup.kernel.operations import ClaimOp, Op, Reply, Verdict
from fastdedup.stores.memory import MemoryStore

from ..waiting import wait_until

KEYS = [str(number) for number in range(2_100)]


class LastFails(MemoryStore):
    """Too few replicas confirm the claim of one key."""

    def apply(self, op: Op) -> Reply:
        reply = super().apply(op)
        if isinstance(op, ClaimOp) and getattr(op, "key", "") == "last" and isinstance(reply, Verdict):
            reply.underreplicated = True
        return reply


@pytest.mark.parametrize("ledger", [None, "seen"])
async def test_a_long_list_that_fails_gives_all_its_keys_back(ledger: str | None) -> None:
    """All at once they would miss the deadline, and those that nothing takes back would stay held."""
    async with Dedup(LastFails(), on_shortfall="raise", max_pending=2050) as dedup:
        options: dict[str, Any] = {"remember": ledger and dedup.ledger(ledger, capacity=10_000, window=60.0)}
        with pytest.raises(ShortfallError):
            await dedup.claim_many([*KEYS, "last"], **options)
        assert all(claim.acquired for claim in await dedup.claim_many(KEYS, **options))


@pytest.mark.parametrize("ledger", [None, "seen"])
async def test_a_long_list_waits_in_parts(ledger: str | None) -> None:
    """A part that waits for other owners all the time leaves each key behind it one look."""
    async with Dedup(MemoryStore(), max_pending=2050) as dedup:
        options: dict[str, Any] = {"remember": ledger and dedup.ledger(ledger, capacity=10_000, window=60.0)}
        owned = await dedup.claim_many(KEYS, **options)
        claims = await dedup.claim_many(KEYS, wait=0.01, **options)
        assert {claim.outcome for claim in claims} == {Outcome.IN_PROGRESS}
        for claim in owned[-10:]:
            await claim.complete("done")
        last = (await dedup.claim_many(KEYS, wait=0.01, **options))[-10:]
        assert [claim.result for claim in last] == ["done"] * 10


class Counting(MemoryStore):
    """Counts the claims that it is asked for."""

    asked = 0

    def apply(self, op: Op) -> Reply:
        self.asked += isinstance(op, ClaimOp)
        return super().apply(op)


@pytest.mark.parametrize("ledger", [None, "seen"])
async def test_a_long_list_waits_for_all_its_keys_at_a_time(ledger: str | None) -> None:
    """The keys behind the first 2,000 were not waited for before the whole wait was over."""
    async with Dedup(MemoryStore()) as dedup:
        options: dict[str, Any] = {"remember": ledger and dedup.ledger(ledger, capacity=10_000, window=60.0)}
        owned = await dedup.claim_many(KEYS, **options)
        listed = asyncio.ensure_future(dedup.claim_many(KEYS, wait=60.0, **options))
        waiting = dedup.gate.connection.wakeups.waiting
        await wait_until(lambda: len(waiting) == len(KEYS), description="all keys are waited for")
        for claim in owned:
            await claim.complete("done")
        assert [claim.result for claim in await listed] == ["done"] * len(KEYS)


async def test_a_long_list_reads_a_stale_form_of_its_ledger_once() -> None:
    """All parts were sent with the outdated form, and then each key was looked at again in a task of its own."""
    store = Counting()
    async with Dedup(store) as dedup:
        ledger = dedup.ledger("seen", capacity=10_000, window=60.0)
        assert (await dedup.claim("other", remember=ledger)).acquired
        assert ledger.view is not None
        ledger.view.terms.until_ms = 1
        store.asked = 0
        claims = await dedup.claim_many(KEYS, remember=ledger)
        assert {claim.outcome for claim in claims} == {Outcome.ACQUIRED}
        assert store.asked == len(KEYS) + 2 * AT_ONCE


async def test_a_long_list_that_outlasts_its_leases_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It said "acquired" for a key of its first part that another owner had by the time its last part was sent."""
    taken: list[Claim] = []
    async with Dedup(MemoryStore()) as dedup:

        async def prepare(claims: ClaimList, part: Sequence[ListedClaim]) -> None:
            if part[0].key == KEYS[AT_ONCE]:
                taken.append(await dedup.claim("0", lease=60.0, wait=60.0))

        monkeypatch.setattr(ClaimList, "prepare", prepare)
        claims = await dedup.claim_many(KEYS, lease=0.3)
        assert [claim.outcome for claim in taken] == [Outcome.ACQUIRED]
        assert claims[0].outcome is Outcome.IN_PROGRESS
        assert {claim.outcome for claim in claims[1:]} == {Outcome.ACQUIRED}
        await taken[0].complete()


async def test_a_long_list_answers_as_last_seen_once_its_wait_is_over() -> None:
    """A wait of 1 s for 16,000 keys took 5 to 7 s, because each key was looked at again after it."""
    store = Counting()
    async with Dedup(store) as dedup:
        await dedup.claim_many(KEYS)
        store.asked = 0
        claims = await dedup.claim_many([*KEYS, *KEYS], wait=0.001)
        assert {claim.outcome for claim in claims} == {Outcome.IN_PROGRESS}
        assert store.asked <= 2 * len(KEYS) + LOOKS_AT_ONCE


async def test_many_waiting_claims_look_in_turns() -> None:
    """Of 8,000 at once 5,000 were UnavailableError: the looks kept the loop busy beyond their own deadline."""
    async with Dedup(Counting()) as dedup:
        await dedup.claim_many(KEYS)
        store = dedup.gate.connection.store
        assert isinstance(store, Counting)
        store.asked, most, former = 0, 0, 0
        calls = [asyncio.ensure_future(dedup.claim(key, wait=0.05)) for key in KEYS]
        while not all(call.done() for call in calls):
            await asyncio.sleep(0)
            most, former = max(most, store.asked - former), store.asked
        assert {call.result().outcome for call in calls} == {Outcome.IN_PROGRESS}
        assert most <= LOOKS_AT_ONCE


@pytest.mark.parametrize(
    "fingerprints", ["ab", b"ab", 7, {"a", "b"}, {"a": 1, "b": 2}], ids=lambda given: type(given).__name__
)
async def test_fingerprints_that_are_no_list_are_refused(fingerprints: Any) -> None:
    """The characters of a text would be the fingerprints."""
    async with Dedup("memory://") as dedup:
        with pytest.raises(ConfigError, match="fingerprints must be a list with one for each key, got"):
            await dedup.claim_many(["a", "b"], fingerprints=fingerprints)
