"""Guarantee 15: what an outage left behind is adopted. Its check in `conformance` and the model have the ranking."""

from __future__ import annotations

import asyncio

import pytest
from fakeredis import FakeRedis
from redis import Redis

from fastdedup import Claim, Dedup, ForeignRecordError, Outcome
from fastdedup.kernel.codes import Code
from fastdedup.kernel.keyspace import Keyspace, Kind
from fastdedup.kernel.operations import AdoptOp, ForgetOp, ReadOp
from fastdedup.kernel.owners import owner_field
from fastdedup.kernel.records import Holding, Stored
from fastdedup.kernel.replies import Adopted

from ..ops import stored
from ..stores import ALL_BUT_LOCAL, Backend, on_stores

# What a fallback answers from adopts nothing: it is what is adopted.
pytestmark = on_stores(*ALL_BUT_LOCAL)


WIRE = Keyspace("t", Kind.CLAIM).wire
HOUR = 3_600_000


def done_elsewhere(claim: Claim) -> Stored:
    """Return the record of a success that was made in an outage, after a claim of the store's."""
    facts = {"fence": claim.fence + 1, "attempt": 3, "left_ms": HOUR, "ttl_ms": HOUR}
    return stored("S", owner_field("ours"), payload=b'"ours"', **facts)


async def adopt(dedup: Dedup, ours: Stored, base: Holding | None = None) -> Adopted:
    engine = dedup.gate.connection.running_engine()
    reply = await engine.submit(AdoptOp(WIRE("k"), ours, base))
    assert isinstance(reply, Adopted)
    return reply


async def test_the_record_that_the_store_was_known_to_hold_gives_way(dedup: Dedup) -> None:
    """Its owner released it in the outage, and another took the key: all in one process."""
    theirs = await dedup.claim("k", owner="theirs")
    base = Holding(owner_field(theirs.owner), theirs.fence)
    assert (await adopt(dedup, done_elsewhere(theirs), base)).code is Code.OK
    found = await dedup.get("k")
    assert found is not None
    assert (found.owner, found.fence, found.attempt) == ("ours", theirs.fence + 1, 3)


async def test_an_adoption_does_not_bring_the_former_result(dedup: Dedup, backend: Backend) -> None:
    """Only who had the key: the reply to a batch of large results would have hundreds of megabytes."""
    theirs = await dedup.claim("k", owner="theirs")
    await theirs.complete("x" * 200_000)
    before = sent_by(backend)
    adopted = await adopt(dedup, done_elsewhere(theirs))
    assert sent_by(backend) - before < 100_000
    assert (adopted.code, adopted.settled) == (Code.THEIRS_STANDS, True)
    assert (adopted.owner, adopted.fence) == (owner_field("theirs"), theirs.fence)


def sent_by(backend: Backend) -> int:
    """Return the bytes that the server has sent; 0 for a Cluster, and if there is no server."""
    if isinstance(backend.raw, FakeRedis) or not isinstance(backend.raw, Redis):
        return 0
    return int(backend.raw.info("stats")["total_net_output_bytes"])


@pytest.mark.parametrize("later", [0, 1], ids=["the reply came", "the reply was lost"])
async def test_an_adopted_result_keeps_the_fingerprint_of_its_record(dedup: Dedup, later: int) -> None:
    """Its owner had taken the key over and named no fingerprint: then other requests got its result."""
    first = await dedup.claim("k", owner="ours", fingerprint="form")
    ours = done_elsewhere(first)
    ours.fence = first.fence + later
    assert (await adopt(dedup, ours)).code is Code.OK
    assert (await dedup.claim("k", fingerprint="another")).outcome is Outcome.MISMATCH
    assert (await dedup.claim("k", fingerprint="form")).result == "ours"


async def test_a_waiting_claimant_is_told_of_an_adopted_result(dedup: Dedup) -> None:
    theirs = await dedup.claim("k", owner="theirs")

    async def waits() -> Claim:
        return await dedup.claim("k", wait=30.0)

    async def adopts() -> None:
        while (await dedup.gate.connection.running_engine().submit(ReadOp(WIRE("k")))).state != "W":
            pass
        await adopt(dedup, done_elsewhere(theirs))

    claim, _ = await asyncio.gather(waits(), adopts())
    assert (claim.outcome, claim.result) == (Outcome.SUCCEEDED, "ours")


async def test_a_token_is_adopted_with_its_subject(dedup: Dedup) -> None:
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


async def test_a_foreign_value_is_left_alone(dedup: Dedup, backend: Backend) -> None:
    if backend.raw is None:
        return  # nobody else writes to a memory store
    claim = await dedup.claim("k")
    backend.raw.set("t:=k", "forever somebody else's", px=HOUR)
    assert (await adopt(dedup, done_elsewhere(claim))).code is Code.FOREIGN
    with pytest.raises(ForeignRecordError):
        await dedup.get("k")
