"""Guarantee 15: what an outage left behind is adopted, unless something that outranks it stands there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fastdedup import Claim, ClaimLostError, Dedup, ForeignRecordError, Outcome
from fastdedup.protocol.keyspace import Keyspace, Kind
from fastdedup.protocol.operations import Adopted, AdoptOp, Code, ForgetOp, ReadOp, Stored
from fastdedup.protocol.owners import owner_field

from ..stores import STORES, Backend

# What a fallback answers from adopts nothing: it is what is adopted.
pytestmark = pytest.mark.parametrize("backend", [name for name in STORES if name != "local"], indirect=True)

WaitUntil = Callable[..., Any]

WIRE = Keyspace("t", Kind.CLAIM).wire
HOUR = 3_600_000
FAR = 2**52
"""A fence above all that a store gives today."""


def record(
    state: str, owner: str, *, fence: int = FAR, left: int = HOUR, payload: bytes = b'"ours"'
) -> Stored:
    return Stored(
        state,
        owner=owner_field(owner),
        fence=fence,
        attempt=3,
        left_ms=left,
        ttl_ms=HOUR,
        fingerprint=None,
        payload=payload if state in "SF" else b"",
    )


async def adopt(dedup: Dedup, ours: Stored, base: str | None = None) -> Adopted:
    engine = dedup._namespace.connection.running_engine()
    reply = await engine.submit(AdoptOp(WIRE("k"), ours, owner_field(base) if base else None))
    assert isinstance(reply, Adopted)
    return reply


async def live(dedup: Dedup) -> Claim:
    return await dedup.claim("k", owner="theirs")


async def ended(dedup: Dedup) -> Claim:
    """A claim whose owner is dead: the lease is over."""
    claim = await dedup.claim("k", owner="theirs", lease=0.001)
    while (await dedup.get("k")).lease > 0:  # type: ignore[union-attr, operator]
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
        assert (found.owner, found.fence, found.attempt) == ("ours", FAR, 3)
        again = await dedup.claim("k", owner="next")
        if state in ("ended", "released"):
            assert (again.acquired, again.attempt) == (True, 4)
            assert again.fence > FAR
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


async def test_an_older_success_is_adopted_under_the_later_fence(backend: Backend) -> None:
    async with backend.make() as dedup:
        theirs = await released(dedup)
        assert (await adopt(dedup, record("S", "ours", fence=1))).code is Code.OK
        found = await dedup.get("k")
        assert found is not None
        assert (found.result, found.fence) == ("ours", theirs.fence)


@pytest.mark.parametrize("state", ["succeeded", "failed"])
async def test_an_owners_own_claim_is_settled(backend: Backend, state: str) -> None:
    """Acquired here, settled in the outage."""
    async with backend.make() as dedup:
        claim = await dedup.claim("k", owner="ours")
        assert (await adopt(dedup, OURS[state])).code is Code.OK
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


@pytest.mark.parametrize("state", OURS)
async def test_the_record_that_the_store_was_known_to_hold_gives_way(backend: Backend, state: str) -> None:
    """Its owner released it in the outage, and another took the key: all in one process."""
    async with backend.make() as dedup:
        await live(dedup)
        assert (await adopt(dedup, OURS[state], base="theirs")).code is Code.OK
        assert (await dedup.get("k")).owner == "ours"  # type: ignore[union-attr]


async def test_what_was_settled_here_meanwhile_does_not_give_way(backend: Backend) -> None:
    async with backend.make() as dedup:
        await succeeded(dedup)
        assert (await adopt(dedup, OURS["live"], base="theirs")).code is Code.OUTRANKED
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
        assert (await engine.submit(AdoptOp(wire, ours, last.owner))).code is Code.OK
        assert await orders.get("1") == ("sent", 2)


async def test_a_foreign_value_is_left_alone(backend: Backend) -> None:
    if backend.raw is None:
        return  # nobody else writes to a memory store
    backend.raw.set("t:=k", "forever somebody else's", px=HOUR)
    async with backend.make() as dedup:
        assert (await adopt(dedup, OURS["succeeded"])).code is Code.FOREIGN
        with pytest.raises(ForeignRecordError):
            await dedup.get("k")
