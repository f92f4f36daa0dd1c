"""Step 1: claim a key, do the work, settle; and what everybody else is told meanwhile and afterwards."""

from __future__ import annotations

import asyncio

import pytest

from fastdedup import Dedup, FailedError, InProgressError, Outcome


async def test_the_first_claim_is_acquired(url: str) -> None:
    """Whoever is the first for a key acquires it, and is the one who does the work."""
    async with Dedup(url) as dedup:
        claim = await dedup.claim("order:42")
        assert claim.acquired
        assert claim.outcome is Outcome.ACQUIRED


async def test_a_duplicate_is_told_that_work_is_in_progress(url: str) -> None:
    """While the first one works, a duplicate is told so, and when the lease ends at the latest."""
    async with Dedup(url, lease=30.0) as dedup:
        await dedup.claim("order:42")
        duplicate = await dedup.claim("order:42")
        assert duplicate.outcome is Outcome.IN_PROGRESS
        assert duplicate.retry_after is not None
        assert 0 < duplicate.retry_after <= 30.0


async def test_of_many_at_once_exactly_one_is_acquired(url: str) -> None:
    """The answer is atomic: of a hundred clicks at once one is the first."""
    async with Dedup(url) as dedup:
        claims = await asyncio.gather(*(dedup.claim("order:42") for _ in range(100)))
        assert sum(claim.acquired for claim in claims) == 1


async def test_a_duplicate_gets_the_first_result(url: str) -> None:
    """What the first one completes with is replayed to every later duplicate."""
    async with Dedup(url) as dedup:
        claim = await dedup.claim("order:42")
        await claim.complete({"order": 42, "charged": True})
        duplicate = await dedup.claim("order:42")
        assert duplicate.outcome is Outcome.SUCCEEDED
        assert duplicate.result == {"order": 42, "charged": True}


async def test_a_duplicate_can_wait_for_the_result(url: str) -> None:
    """With `wait` the duplicate is woken when the first one settles, and gets the result."""
    async with Dedup(url) as dedup:
        claim = await dedup.claim("order:42")
        duplicate = asyncio.ensure_future(dedup.claim("order:42", wait=5.0))
        await claim.complete("done")
        assert (await duplicate).result == "done"


async def test_a_failure_for_good_is_replayed_too(url: str) -> None:
    """`fail` records an error that no retry mends; duplicates are told the error."""
    async with Dedup(url) as dedup:
        claim = await dedup.claim("order:42")
        await claim.fail({"reason": "card declined"})
        duplicate = await dedup.claim("order:42")
        assert duplicate.outcome is Outcome.FAILED
        assert duplicate.error == {"reason": "card declined"}


async def test_replay_turns_an_outcome_into_what_the_first_call_gave(url: str) -> None:
    """`replay()` returns the result of a success, and raises for every other outcome."""
    async with Dedup(url) as dedup:
        paid, refused, running = await dedup.claim_many(["paid", "refused", "running"])
        await paid.complete("receipt 7")
        await refused.fail("card declined")
        assert (await dedup.claim("paid")).replay() == "receipt 7"
        with pytest.raises(FailedError, match="card declined"):
            (await dedup.claim("refused")).replay()
        with pytest.raises(InProgressError):
            (await dedup.claim("running")).replay()
        await running.release()


async def test_a_released_key_can_be_claimed_again(url: str) -> None:
    """`release` is for a failure that a retry may mend: the next one acquires the key, as attempt 2."""
    async with Dedup(url) as dedup:
        claim = await dedup.claim("order:42")
        await claim.release()
        again = await dedup.claim("order:42")
        assert again.acquired
        assert again.attempt == 2


async def test_leaving_the_block_settles_the_claim(url: str) -> None:
    """A body that ends has completed with None; a body that raises has not done the work, and frees the key."""
    async with Dedup(url) as dedup:
        with pytest.raises(ZeroDivisionError):
            async with dedup.claim("order:42"):
                1 / 0  # noqa: B018 -- any error
        async with dedup.claim("order:42") as claim:
            assert claim.acquired
        assert (await dedup.claim("order:42")).outcome is Outcome.SUCCEEDED


async def test_many_keys_are_claimed_in_one_call(url: str) -> None:
    """`claim_many` answers each key for itself, in the order of the keys."""
    async with Dedup(url) as dedup:
        await (await dedup.claim("order:2")).complete("done")
        claims = await dedup.claim_many(["order:1", "order:2", "order:3"])
        assert [claim.outcome for claim in claims] == ["acquired", "succeeded", "acquired"]
