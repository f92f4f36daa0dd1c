"""Guarantee 15: what an outage left behind is adopted, unless something that outranks it stands there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from fastdedup import Claim, ClaimLostError, Dedup, ForeignRecordError, Outcome
from fastdedup.protocol.keyspace import Keyspace, Kind
from fastdedup.protocol.operations import Adopted, AdoptOp, Code, ForgetOp, Holding, ReadOp, Stored
from fastdedup.protocol.owners import owner_field

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
    engine = dedup._namespace.connection.running_engine()
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
    live: "OUTRANKED OK OK OVERRULED OUTRANKED",
    ended: "OK OK OK OK OK",
    released: "OK OK OK OK OK",
    succeeded: "OUTRANKED OUTRANKED OUTRANKED OUTRANKED OUTRANKED",
    failed: "OUTRANKED OUTRANKED OUTRANKED OVERRULED OUTRANKED",
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
        stays = expected is Code.OUTRANKED or (former, state) in KEPT
        found = await dedup.get("k")
        assert found is not None
        assert found.owner == ("theirs" if stays else "ours")
        assert found.fence >= theirs.fence


@pytest.mark.parametrize("state", ["live", "ended", "released"])
async def test_an_older_claim_does_not_replace_a_later_idle_one(backend: Backend, state: str) -> None:
    """The fence must not fall: of two that nobody works on, the later stands; a live older one has lost."""
    async with backend.make() as dedup:
        theirs = await released(dedup)
        ours = record(
            "R" if state == "released" else "P", "ours", fence=1, left=HOUR if state == "live" else 0
        )
        code = Code.OUTRANKED if state == "live" else Code.OK
        assert (await adopt(dedup, ours)).code is code
        assert (await dedup.get("k")).owner == "theirs"  # type: ignore[union-attr]
        assert (await dedup.claim("k")).fence > theirs.fence


async def test_an_older_success_keeps_the_fence_that_its_owner_was_told(backend: Backend) -> None:
    """Its owner and fence say whose success it is, also when it is adopted a second time."""
    async with backend.make() as dedup:
        theirs = await released(dedup)
        for _ in range(2):
            assert (await adopt(dedup, record("S", "ours", fence=1))).code is Code.OK
        found = await dedup.get("k")
        assert found is not None
        assert (found.result, found.fence) == ("ours", 1)
        await dedup.forget("k")
        assert (await dedup.claim("k")).fence > theirs.fence


@pytest.mark.parametrize("state", ["succeeded", "failed"])
async def test_an_owners_own_claim_is_settled(backend: Backend, state: str) -> None:
    """Acquired here, settled in the outage."""
    async with backend.make() as dedup:
        claim = await dedup.claim("k", owner="ours")
        ours = record(state[0].upper(), "ours", fence=claim.fence)
        assert (await adopt(dedup, ours, holding(claim))).code is Code.OK
        again = await dedup.claim("k")
        assert again.outcome == state
        assert (again.result or again.error) == "ours"
        with pytest.raises(ClaimLostError):
            await claim.release()


async def test_adopting_again_is_answered_as_the_first_time(backend: Backend) -> None:
    """The reply to the first try was lost."""
    async with backend.make() as dedup:
        for ours in (OURS["live"], OURS["succeeded"], OURS["succeeded"]):
            assert (await adopt(dedup, ours)).code is Code.OK
        assert (await dedup.claim("k")).result == "ours"


async def test_a_claim_whose_reply_was_lost_keeps_the_fence_that_its_owner_was_told(backend: Backend) -> None:
    """The store gave it one fence, the fallback another, and told it: that one it shows when it settles."""
    async with backend.make() as dedup:
        await dedup.claim("k", owner="ours")
        assert (await adopt(dedup, record("P", "ours", fence=5))).code is Code.OK
        found = await dedup.get("k")
        assert found is not None
        assert found.fence == 5


# An owner and a fence together are one acquisition. What stands there was made by the same *name*, under
# another fence, of which this process never heard -> what becomes of each of ours, in the order of OURS.
SAME_NAME: dict[Former, str] = {
    live: "OK OK OK OK OK",
    ended: "OK OK OK OK OK",
    released: "OK OK OK OK OK",
    succeeded: "OUTRANKED OUTRANKED OUTRANKED OUTRANKED OUTRANKED",
    failed: "OUTRANKED OUTRANKED OUTRANKED OVERRULED OUTRANKED",
}


@pytest.mark.parametrize("former", SAME_NAME)
@pytest.mark.parametrize("state", OURS)
async def test_a_result_under_the_same_name_and_another_fence_is_a_rivals(
    backend: Backend, former: Former, state: str
) -> None:
    """What is only at work is the owner's own claim, whose reply was lost: it gets that back."""
    async with backend.make() as dedup:
        await former(dedup)
        ours = record(OURS[state].state, "theirs", left=OURS[state].left_ms, payload=b'"ours"')
        expected = Code[SAME_NAME[former].split()[list(OURS).index(state)]]
        assert (await adopt(dedup, ours)).code is expected
        found = await dedup.get("k")
        assert found is not None
        assert (found.fence == far[0]) == (expected is not Code.OUTRANKED)


@pytest.mark.parametrize("state", ["live", "succeeded", "failed"])
async def test_a_name_that_acquired_again_elsewhere_is_a_rival(backend: Backend, state: str) -> None:
    """The store gave ours, so its present claim by the same name is a later one."""
    async with backend.make() as dedup:
        first = await ended(dedup)
        await live(dedup)
        ours = record(OURS[state].state, "theirs", fence=first.fence)
        expected = Code.OVERRULED if state == "succeeded" else Code.OUTRANKED
        assert (await adopt(dedup, ours, holding(first))).code is expected


@pytest.mark.parametrize("state", ["live", "succeeded", "failed"])
async def test_the_base_gives_way_under_its_own_fence_only(backend: Backend, state: str) -> None:
    """Its owner may have come back in another process, under a higher fence."""
    async with backend.make() as dedup:
        theirs = holding(await live(dedup))
        earlier = Holding(theirs.owner, theirs.fence - 1)
        expected = Code.OVERRULED if state == "succeeded" else Code.OUTRANKED
        assert (await adopt(dedup, OURS[state], earlier)).code is expected


@pytest.mark.parametrize(("owner", "expected"), [(None, Code.OK), ("ann", Code.OUTRANKED)])
async def test_a_consumption_whose_reply_was_lost_is_the_same_use(
    backend: Backend, owner: str | None, expected: Code
) -> None:
    """Of an owner that was drawn; two processes may use the same name."""
    async with backend.make() as dedup:
        token = await dedup.tokens.issue()
        assert await dedup.tokens.consume(token) is Outcome.ACQUIRED
        wire, engine = dedup.tokens.wire(token), dedup._namespace.connection.running_engine()
        ours = await engine.submit(ReadOp(wire))
        ours.fence += 1
        if owner is not None:
            await engine.submit(ForgetOp(wire))
            ours.owner = owner_field(owner)
            assert (await engine.submit(AdoptOp(wire, ours, None))).code is Code.OK
            ours.fence += 1
        assert (await engine.submit(AdoptOp(wire, ours, None))).code is expected


@pytest.mark.parametrize("state", OURS)
async def test_the_record_that_the_store_was_known_to_hold_gives_way(backend: Backend, state: str) -> None:
    """Its owner released it in the outage, and another took the key: all in one process."""
    async with backend.make() as dedup:
        theirs = holding(await live(dedup))
        assert (await adopt(dedup, OURS[state], theirs)).code is Code.OK
        assert (await dedup.get("k")).owner == "ours"  # type: ignore[union-attr]


async def test_what_was_settled_here_meanwhile_does_not_give_way(backend: Backend) -> None:
    async with backend.make() as dedup:
        theirs = holding(await succeeded(dedup))
        assert (await adopt(dedup, OURS["live"], theirs)).code is Code.OUTRANKED
        assert (await dedup.claim("k")).result == "theirs"


async def test_a_waiting_claimant_is_told_of_an_adopted_result(backend: Backend) -> None:
    async with backend.make() as dedup:
        await live(dedup)

        async def waits() -> Claim:
            return await dedup.claim("k", wait=30.0)

        async def adopts() -> None:
            while (await dedup._namespace.connection.running_engine().submit(ReadOp(WIRE("k")))).state != "W":
                pass
            await adopt(dedup, OURS["succeeded"])

        claim, _ = await asyncio.gather(waits(), adopts())
        assert (claim.outcome, claim.result) == (Outcome.SUCCEEDED, "ours")


async def test_a_token_is_adopted_with_its_subject(backend: Backend) -> None:
    async with backend.make() as dedup:
        token = await dedup.tokens.issue("user:7")
        wire = dedup.tokens.wire(token)
        engine = dedup._namespace.connection.running_engine()
        issued = await engine.submit(ReadOp(wire))
        assert issued.token
        await engine.submit(ForgetOp(wire))
        assert await dedup.tokens.consume(token, "user:7") is Outcome.UNKNOWN
        assert (await engine.submit(AdoptOp(wire, issued, None))).code is Code.OK
        assert await dedup.tokens.consume(token, "user:8") is Outcome.MISMATCH
        assert await dedup.tokens.consume(token, "user:7") is Outcome.ACQUIRED
        assert await dedup.tokens.consume(token, "user:7") is Outcome.SUCCEEDED


async def test_a_machine_is_adopted_where_none_stands_or_its_own_last_change(backend: Backend) -> None:
    async with backend.make() as dedup:
        orders = dedup.machine(
            "o", initial="new", transitions={"new": ("paid",), "paid": ("sent",), "sent": ()}
        )
        wire = orders._wire("1")
        engine = dedup._namespace.connection.running_engine()
        ours = Stored(
            "M",
            owner=b"c" * 10,
            fence=2,
            attempt=0,
            left_ms=0,
            ttl_ms=HOUR,
            fingerprint=None,
            payload=b"sent",
        )
        assert (await engine.submit(AdoptOp(wire, ours, None))).code is Code.OK
        assert await orders.get("1") == ("sent", 2)
        await engine.submit(ForgetOp(wire))
        await orders.transition("1", to="paid")
        assert (await engine.submit(AdoptOp(wire, ours, None))).code is Code.OUTRANKED
        assert await orders.get("1") == ("paid", 1)
        last = await engine.submit(ReadOp(wire))
        assert (await engine.submit(AdoptOp(wire, ours, Holding(last.owner, last.fence)))).code is Code.OK
        assert await orders.get("1") == ("sent", 2)


async def test_a_foreign_value_is_left_alone(backend: Backend) -> None:
    if backend.raw is None:
        return  # nobody else writes to a memory store
    backend.raw.set("t:=k", "forever somebody else's", px=HOUR)
    async with backend.make() as dedup:
        assert (await adopt(dedup, OURS["succeeded"])).code is Code.FOREIGN
        with pytest.raises(ForeignRecordError):
            await dedup.get("k")
