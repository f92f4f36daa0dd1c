"""Guarantee 20: claims whose success a ledger remembers."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from fastdedup import (
    Claim,
    ConfigError,
    Dedup,
    InvalidKeyError,
    Ledger,
    Outcome,
    Resolution,
    ResultError,
    Takeover,
)
from fastdedup.kernel.keyspace import names_of
from fastdedup.kernel.operations import ForgetOp, ReadOp
from fastdedup.kernel.records import Stored

from ..stores import Backend, on_both_faces
from ..waiting import wait_until


def ledger_of(dedup: Dedup) -> Ledger:
    return dedup.ledger("orders", window=3600.0, capacity=10_000)


async def end_echo(dedup: Dedup, claim: Claim) -> None:
    """Do what the end of the echo's minute does."""
    await dedup.gate.run(ForgetOp(claim.settlement.held_key[0]))


async def is_watched(dedup: Dedup, claim: Claim) -> bool:
    record = await dedup.gate.run(ReadOp(claim.settlement.held_key[0]))
    return isinstance(record, Stored) and record.state == "W"


async def abandoned(dedup: Dedup, key: str, **options: Any) -> Claim:
    """Return the claim of an owner that died: its lease has ended."""
    claim = await dedup.claim(key, lease=0.02, **options)

    async def is_over() -> bool:
        record = await dedup.gate.run(ReadOp(claim.settlement.held_key[0]))
        return isinstance(record, Stored) and record.left_ms < -2

    await wait_until(is_over, description="the lease ends")
    return claim


@on_both_faces
async def test_of_many_claims_one_is_acquired(dedup: Dedup) -> None:
    ledgers = [ledger_of(dedup), ledger_of(dedup)]
    names = [*map(str, range(20)), *[None] * 60]
    asked = [dedup.claim("k", remember=ledgers[n % 2], owner=name) for n, name in enumerate(names)]
    found = Counter([claim.outcome.value for claim in await asyncio.gather(*asked)])
    assert found == {"acquired": 1, "in_progress": 79}


async def test_a_success_is_remembered_without_its_result(dedup: Dedup) -> None:
    """The result is kept as long as the echo; then the ledger alone knows the key."""
    ledger = ledger_of(dedup)
    claim = await dedup.claim("k", remember=ledger)
    assert claim.acquired
    assert claim.attempt == 1
    assert not claim.remembered
    assert await ledger.seen("k") is False
    await claim.complete({"n": 1})
    assert await ledger.seen("k") is True
    echo = await dedup.claim("k", remember=ledger)
    assert (echo.outcome, echo.result, echo.remembered) == (Outcome.SUCCEEDED, {"n": 1}, False)
    await end_echo(dedup, claim)
    later = await dedup.claim("k", remember=ledger)
    assert (later.outcome, later.result, later.remembered) == (Outcome.SUCCEEDED, None, True)
    assert later.replay() is None
    with pytest.raises(ResultError, match=r"'k' is not kept any more.*claim\.remembered"):
        (await dedup.claim("k", remember=ledger, returns=dict)).replay()
    assert (await dedup.claim("k", remember=ledger, owner="me", wait=1.0)).remembered
    assert await ledger.forget("k") is True
    again = await dedup.claim("k", remember=ledger)
    assert again.acquired
    assert again.fence > claim.fence


async def test_a_waiter_gets_the_result(dedup: Dedup) -> None:
    ledger = ledger_of(dedup)
    claim = await dedup.claim("k", remember=ledger)
    waiting = asyncio.create_task(dedup.claim("k", remember=ledger, wait=5.0))
    await wait_until(lambda: is_watched(dedup, claim), description="the store knows of the waiter")
    await claim.complete([1, 2])
    assert (await waiting).result == [1, 2]


async def test_a_list_waits_once_for_each_key(dedup: Dedup) -> None:
    """Each claim of a key gets what its owner left, as without a ledger."""
    ledger = ledger_of(dedup)
    claim = await dedup.claim("k", remember=ledger)
    waiting = asyncio.create_task(dedup.claim_many(["k", "k", "new"], remember=ledger, wait=5.0))
    await wait_until(lambda: is_watched(dedup, claim), description="the store knows of the waiter")
    await claim.complete([1, 2])
    assert [each.result for each in await waiting] == [[1, 2], [1, 2], None]


@on_both_faces
async def test_what_a_call_remembers_is_done(dedup: Dedup) -> None:
    """`first` and a claim ask for the same id."""
    ledger = ledger_of(dedup)
    assert await ledger.first_many(["k", "x" * 500]) == [True, True]
    claims = await dedup.claim_many(["k", "x" * 500, "new", "new"], remember=ledger)
    assert [claim.remembered for claim in claims] == [True, True, False, False]
    assert [claim.outcome for claim in claims[2:]] == ["acquired", "in_progress"]
    await claims[2].complete()
    assert await ledger.first("new") is False


async def test_work_that_another_call_has_done_is_not_resolved(dedup: Dedup) -> None:
    """Nobody takes the key over, so nobody is asked what became of it."""
    heard: list[Takeover] = []

    async def check(takeover: Takeover) -> Resolution:
        heard.append(takeover)
        return Resolution.not_done()

    ledger = ledger_of(dedup)
    await abandoned(dedup, "k", remember=ledger)
    assert await ledger.first("k") is True
    async with dedup.claim("k", remember=ledger, resolve=check) as claim:
        assert claim.remembered
    assert heard == []


@on_both_faces
async def test_claims_with_and_without_a_ledger_share_their_batches(dedup: Dedup) -> None:
    """Each is answered by its own record, and only those with the ledger by its ids; so are their completions."""
    ledger = ledger_of(dedup)
    await (await dedup.claim("done", remember=ledger)).complete(1)
    await (await dedup.claim("plain")).complete(2)
    ways = [(key, way) for key in ("done", "plain", "new") for way in (ledger, None)]
    claims = await asyncio.gather(*[dedup.claim(key, remember=way) for key, way in ways])
    assert [claim.acquired for claim in claims] == [False, True, True, False, True, True]
    assert (claims[0].result, claims[3].result) == (1, 2)
    await asyncio.gather(*[claim.complete(3) for claim in claims if claim.acquired])
    again = await asyncio.gather(*[dedup.claim(key, remember=way) for key, way in ways])
    assert [claim.result for claim in again] == [1, 3, 3, 2, 3, 3]
    assert [await ledger.seen(key) for key in ("done", "plain", "new")] == [True, True, True]


async def test_a_stale_view_is_read_again(dedup: Dedup) -> None:
    """A claim and a completion that rely on an outdated form do nothing; they ask again with the present one."""
    ledger = ledger_of(dedup)
    claim = await dedup.claim("k", remember=ledger)
    assert ledger.view is not None
    of_a_policy = ledger.view.terms.until_ms < 0  # its form does not get old
    claim.settlement.op.unless.terms.until_ms = ledger.view.terms.until_ms = 1  # type: ignore[attr-defined]
    other = await dedup.claim("other", remember=ledger)
    assert other.acquired
    assert of_a_policy or ledger.view.terms.until_ms > 1
    await claim.complete()
    await other.complete()
    assert await ledger.first_many(["k", "other"]) == [False, False]


@pytest.mark.parametrize("wait", [None, 5.0])
async def test_a_list_reads_a_stale_view_again(dedup: Dedup, wait: float | None) -> None:
    ledger = ledger_of(dedup)
    held = await dedup.claim("held", remember=ledger)
    assert ledger.view is not None
    of_a_policy = ledger.view.terms.until_ms < 0  # its form does not get old
    ledger.view.terms.until_ms = 1
    claims = await dedup.claim_many(["k", "other", "k"], remember=ledger, wait=wait)
    assert [claim.outcome for claim in claims] == ["acquired", "acquired", "in_progress"]
    assert of_a_policy or ledger.view.terms.until_ms > 1
    for claim in (*claims[:2], held):
        await claim.complete()
    assert await ledger.first_many(["k", "other", "held"]) == [False, False, False]


@on_both_faces
async def test_once_runs_once(dedup: Dedup) -> None:
    runs = []

    @dedup.once(key=lambda n: f"order:{n}", remember=ledger_of(dedup))
    async def pay(n: int) -> int:
        runs.append(n)
        return n

    assert [await pay(7), await pay(7), await pay(8)] == [7, 7, 8]
    assert runs == [7, 8]


async def test_the_record_shows_the_users_key(dedup: Dedup) -> None:
    claim = await dedup.claim("order:7", remember=ledger_of(dedup))
    assert names_of(claim.settlement.held_key[0]) == ("t", "order:7")
    assert b"{" in claim.settlement.held_key[0]
    long = await dedup.claim("x" * 500, remember=ledger_of(dedup))
    assert names_of(long.settlement.held_key[0])[1].startswith("#")


@on_both_faces
async def test_a_ledger_of_another_gate_is_an_error(backend: Backend) -> None:
    async with backend.make() as dedup, backend.make() as other:
        for wrong in (ledger_of(other), ledger_of(dedup.scoped("another-tenant")), "orders"):
            with pytest.raises(ConfigError, match="remember must be a ledger of this gate"):
                await dedup.claim("k", remember=wrong)  # type: ignore[arg-type]


async def test_a_bad_list_claims_nothing(dedup: Dedup) -> None:
    ledger = ledger_of(dedup)
    with pytest.raises(InvalidKeyError):
        await dedup.claim_many(["k", ""], remember=ledger)
    assert (await dedup.claim("k", remember=ledger)).attempt == 1
