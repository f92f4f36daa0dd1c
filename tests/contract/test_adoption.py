"""Guarantee 15: what an outage left behind is adopted, unless something that outranks it stands there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from fastdedup import Claim, Dedup, ForeignRecordError, Outcome
from fastdedup.kernel.codes import Code
from fastdedup.kernel.keyspace import Keyspace, Kind
from fastdedup.kernel.operations import Adopted, AdoptOp, ForgetOp, ReadOp
from fastdedup.kernel.owners import owner_field
from fastdedup.kernel.records import Holding, Stored

from ..stores import ALL_BUT_LOCAL, Backend, on_stores

# What a fallback answers from adopts nothing: it is what is adopted.
pytestmark = on_stores(*ALL_BUT_LOCAL)

WaitUntil = Callable[..., Any]

WIRE = Keyspace("t", Kind.CLAIM).wire
HOUR = 3_600_000
RISING = count((int(time.time()) + 3600) * 1_000_000, 1_000_000)
"""Fences above all that a store has given; too far ahead of its clock, none is adopted."""
far = [next(RISING)]
"""This test's own: a store gives no fence below one that it has seen, and tests share a store."""


@pytest.fixture(autouse=True)
def a_fence_above_all() -> None:
    far[0] = next(RISING)
    for ours in OURS.values():
        ours.fence = far[0]


def record(
    state: str, owner: str, *, fence: int | None = None, left: int = HOUR, payload: bytes = b'"ours"'
) -> Stored:
    return Stored(
        state,
        owner=owner_field(owner),
        fence=far[0] if fence is None else fence,
        attempt=3,
        left_ms=left,
        ttl_ms=HOUR,
        fingerprint=None,
        payload=payload if state in "SF" else b"",
    )


async def adopt(dedup: Dedup, ours: Stored, base: Holding | None = None) -> Adopted:
    engine = dedup.gate.connection.running_engine()
    reply = await engine.submit(AdoptOp(WIRE("k"), ours, base))
    assert isinstance(reply, Adopted)
    return reply


def holding(claim: Claim) -> Holding:
    return Holding(owner_field(claim.owner), claim.fence)


async def live(dedup: Dedup) -> Claim:
    return await dedup.claim("k", owner="theirs")


async def ended(dedup: Dedup) -> Claim:
    """A claim whose owner is dead: the lease is over."""
    claim = await dedup.claim("k", owner="theirs", lease=0.001)
    while (await dedup.get("k")).lease >= 0:  # rounded down: at 0 the last millisecond is under way  # type: ignore[union-attr, operator]
        pass
    return claim


async def released(dedup: Dedup) -> Claim:
    claim = await live(dedup)
    await claim.release()
    return claim


async def succeeded(dedup: Dedup) -> Claim:
    claim = await live(dedup)
    await claim.complete("theirs")
    return claim


async def failed(dedup: Dedup) -> Claim:
    claim = await live(dedup)
    await claim.fail("theirs")
    return claim


Former = Callable[[Dedup], Any]

OURS = {
    "live": record("P", "ours"),
    "ended": record("P", "ours", left=-1000),
    "released": record("R", "ours", left=0),
    "succeeded": record("S", "ours"),
    "failed": record("F", "ours"),
}

# What stands there by another owner -> what becomes of each of ours, in the order of OURS.
RANKING: dict[Former, str] = {
    live: "THEIRS_STANDS OK OK OURS_STANDS THEIRS_STANDS",
    ended: "OK OK OK OK OK",
    released: "OK OK OK OK OK",
    succeeded: "THEIRS_STANDS THEIRS_STANDS THEIRS_STANDS THEIRS_STANDS THEIRS_STANDS",
    failed: "THEIRS_STANDS THEIRS_STANDS THEIRS_STANDS OURS_STANDS THEIRS_STANDS",
}
# Another's, and yet it gives way or is left alone without a loss.
KEPT = {(live, "ended"), (live, "released")}


@pytest.mark.parametrize("state", OURS)
async def test_where_nothing_stands_it_is_adopted_as_it_is(backend: Backend, state: str) -> None:
    async with backend.make() as dedup:
        assert (await adopt(dedup, OURS[state])).code is Code.OK
        found = await dedup.get("k")
        assert found is not None
        assert (found.owner, found.fence, found.attempt) == ("ours", OURS[state].fence, 3)
        again = await dedup.claim("k", owner="next")
        if state in ("ended", "released"):
            assert (again.acquired, again.attempt) == (True, 4)
            assert again.fence > OURS[state].fence
        else:
            assert again.outcome == {"live": "in_progress"}.get(state, state)


@pytest.mark.parametrize("former", RANKING)
@pytest.mark.parametrize("state", OURS)
async def test_against_another_owners_record_the_higher_rank_stands(
    backend: Backend, former: Former, state: str
) -> None:
    """A success outranks all but another success; else what stands does. Both owners are named."""
    async with backend.make() as dedup:
        theirs = await former(dedup)
        expected = Code[RANKING[former].split()[list(OURS).index(state)]]
        adopted = await adopt(dedup, OURS[state])
        assert adopted.code is expected
        assert adopted.owner == owner_field("theirs")
        assert adopted.fence == theirs.fence
        stays = expected is Code.THEIRS_STANDS or (former, state) in KEPT
        found = await dedup.get("k")
        assert found is not None
        assert found.owner == ("theirs" if stays else "ours")
        assert found.fence >= theirs.fence


@pytest.mark.parametrize("state", OURS)
async def test_the_record_that_the_store_was_known_to_hold_gives_way(backend: Backend, state: str) -> None:
    """Its owner released it in the outage, and another took the key: all in one process."""
    async with backend.make() as dedup:
        theirs = holding(await live(dedup))
        assert (await adopt(dedup, OURS[state], theirs)).code is Code.OK
        assert (await dedup.get("k")).owner == "ours"  # type: ignore[union-attr]


async def test_a_waiting_claimant_is_told_of_an_adopted_result(backend: Backend) -> None:
    async with backend.make() as dedup:
        await live(dedup)

        async def waits() -> Claim:
            return await dedup.claim("k", wait=30.0)

        async def adopts() -> None:
            while (await dedup.gate.connection.running_engine().submit(ReadOp(WIRE("k")))).state != "W":
                pass
            await adopt(dedup, OURS["succeeded"])

        claim, _ = await asyncio.gather(waits(), adopts())
        assert (claim.outcome, claim.result) == (Outcome.SUCCEEDED, "ours")


async def test_a_token_is_adopted_with_its_subject(backend: Backend) -> None:
    async with backend.make() as dedup:
        token = await dedup.tokens.issue("user:7")
        wire = dedup.tokens.wire(token)
        engine = dedup.gate.connection.running_engine()
        issued = await engine.submit(ReadOp(wire))
        assert issued.token
        await engine.submit(ForgetOp(wire))
        assert await dedup.tokens.consume(token, "user:7") is Outcome.UNKNOWN
        assert (await engine.submit(AdoptOp(wire, issued, None))).code is Code.OK
        assert await dedup.tokens.consume(token, "user:8") is Outcome.MISMATCH
        assert await dedup.tokens.consume(token, "user:7") is Outcome.ACQUIRED
        assert await dedup.tokens.consume(token, "user:7") is Outcome.SUCCEEDED


async def test_a_foreign_value_is_left_alone(backend: Backend) -> None:
    if backend.raw is None:
        return  # nobody else writes to a memory store
    backend.raw.set("t:=k", "forever somebody else's", px=HOUR)
    async with backend.make() as dedup:
        assert (await adopt(dedup, OURS["succeeded"])).code is Code.FOREIGN
        with pytest.raises(ForeignRecordError):
            await dedup.get("k")
