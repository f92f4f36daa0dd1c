"""Guarantees 5-7 of the store protocol: settling, by the present owner alone, once, and remembered."""

from __future__ import annotations

from typing import Any

import pytest

from fastdedup import ClaimLostError, Dedup, FailedError, InProgressError, Outcome

from ..stores import Backend, on_both_faces
from ..waiting import acquired, cancel, in_its_body

pytestmark = on_both_faces
LEASE = 0.02


@pytest.mark.parametrize(
    "result", [None, True, 0, "", "text", [], {"nested": [1, {"a": None}]}, "x" * 262_142]
)
async def test_a_success_answers_every_claimant_with_the_first_result(dedup: Dedup, result: Any) -> None:
    """Guarantee 7, from nothing to the size limit."""
    claim = await dedup.claim("key")
    await claim.complete(result)
    for _ in range(2):
        again = await dedup.claim("key")
        assert again.outcome is Outcome.SUCCEEDED
        assert again.result == result
        assert again.fence == claim.fence


async def test_a_failure_answers_with_its_error_for_failure_ttl(backend: Backend) -> None:
    async with backend.make(failure_ttl=LEASE) as dedup:
        claim = await dedup.claim("key")
        await claim.fail(ValueError("card declined"))
        record = await dedup.get("key")
        if record is not None:
            assert record.error == {"type": "ValueError", "message": "card declined"}
        await acquired(dedup, "key", is_away=True)  # a policy's record may expire as it is asked
        long_ = await dedup.claim("other")
        await long_.fail("declined", ttl=60)
        again = await dedup.claim("other")
        assert (again.outcome, again.error, again.result) == (Outcome.FAILED, "declined", None)


@pytest.mark.parametrize(("error", "said"), [(None, "failed$"), ("declined", "failed: 'declined'$")])
async def test_a_replayed_failure_says_what_was_recorded(dedup: Dedup, error: object, said: str) -> None:
    await (await dedup.claim("k")).fail(error)
    with pytest.raises(FailedError, match=said) as caught:
        (await dedup.claim("k")).replay()
    assert caught.value.error == error


async def test_a_replay_while_the_owner_works_says_what_to_do(dedup: Dedup) -> None:
    await dedup.claim("k")
    with pytest.raises(InProgressError, match=r"another owner works on 'k', for at most .* pass wait="):
        (await dedup.claim("k")).replay()


async def ttl_of(dedup: Dedup, key: str) -> float:
    record = await dedup.get(key)
    assert record is not None
    return record.ttl


async def test_a_touched_record_lives_longer_and_its_lease_does_not(backend: Backend) -> None:
    """A renewal, a shorter touch and a repeated claim do not shorten that; a release keeps it."""
    async with backend.make(lease=20.0, ttl=20.0) as dedup:
        claim = await dedup.claim("key", owner="me")
        await claim.touch(1000)
        record = await dedup.get("key")
        assert record is not None
        assert record.lease is not None
        assert record.lease <= 20
        assert record.ttl > 900
        await claim.renew()
        await claim.touch(1)
        await claim.touch()
        assert (await dedup.claim("key", owner="me")).acquired
        assert await ttl_of(dedup, "key") > 900
        await claim.release()
        assert await ttl_of(dedup, "key") > 900


async def test_a_settled_record_lives_as_its_settling_says(backend: Backend) -> None:
    async with backend.make(lease=20.0, ttl=20.0) as dedup:
        claim = await dedup.claim("key")
        await claim.touch(1000)
        await claim.complete(1)
        assert await ttl_of(dedup, "key") <= 20


async def test_a_stale_owner_touches_nothing(dedup: Dedup) -> None:
    stale = await dedup.claim("key", lease=LEASE)
    present = await dedup.claim("key", lease=20.0, ttl=20.0, wait=5.0)
    with pytest.raises(ClaimLostError):
        await stale.touch(1000)
    assert stale.lost
    assert await ttl_of(dedup, "key") <= 40
    await present.complete(1)


async def test_the_body_of_async_with_settles(dedup: Dedup) -> None:
    async with dedup.claim("done") as claim:
        assert claim.acquired
    async with dedup.claim("done") as claim:
        assert claim.outcome is Outcome.SUCCEEDED
        assert claim.result is None
    async with dedup.claim("own") as claim:
        await claim.complete("by the body")
    assert (await dedup.claim("own")).result == "by the body"
    with pytest.raises(ZeroDivisionError):
        async with dedup.claim("broken"):
            raise ZeroDivisionError
    assert (await dedup.claim("broken")).attempt == 2


async def test_a_cancelled_body_frees_the_key(dedup: Dedup) -> None:
    await cancel(await in_its_body(dedup, "key"))
    await acquired(dedup, "key")


async def test_a_result_for_a_record_that_has_none_is_refused(dedup: Dedup) -> None:
    """Guarantee 6: a result that no duplicate would get is never called recorded."""
    first, again = [await dedup.claim("key", owner="me") for _ in range(2)]
    await first.complete()
    with pytest.raises(ClaimLostError):
        await again.complete("result")
    assert (await dedup.claim("key")).result is None


async def test_a_result_for_a_token_that_its_owner_has_consumed_is_refused(dedup: Dedup) -> None:
    token = await dedup.tokens.issue()
    with_result, without = [await dedup.tokens.redeem(token, owner="me") for _ in range(2)]
    assert await dedup.tokens.consume(token, owner="me") is Outcome.ACQUIRED
    with pytest.raises(ClaimLostError):
        await with_result.complete("result")
    await without.complete()
    assert (await dedup.tokens.redeem(token)).result is None
