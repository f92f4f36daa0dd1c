"""A takeover asks what became of the work: `claim(resolve=)` and `once(resolve=)`; the key of the next hop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fastdedup import ClaimLostError, ConfigError, Dedup, FailedError, Outcome, Resolution, Takeover
from fastdedup.sync import Dedup as SyncDedup

from ..stores import Backend, on_both_faces, on_stores
from ..waiting import abandoned, is_renewed, lease_of

LEASE = 0.02


def answering(answer: Resolution, heard: list[Takeover]) -> Callable[[Takeover], Awaitable[Resolution]]:
    async def check(takeover: Takeover) -> Resolution:
        heard.append(takeover)
        return answer

    return check


@on_both_faces
async def test_done_is_the_answer_of_everybody(backend: Backend) -> None:
    heard: list[Takeover] = []
    async with backend.make(holder="pay") as dedup:
        first = await abandoned(dedup, "k")
        claim = await dedup.claim("k", resolve=answering(Resolution.done({"charge": 7}), heard))
        assert (claim.outcome, claim.result) == (Outcome.SUCCEEDED, {"charge": 7})
        assert (await dedup.claim("k")).result == {"charge": 7}
        (told,) = heard
        assert (told.key, told.attempt, told.last_owner, told.last_fence) == (
            "k",
            2,
            first.owner,
            first.fence,
        )
        assert told.fence > first.fence
        assert str(told.last_holder).startswith("pay@")


@on_both_faces
async def test_not_done_runs_the_work_and_unknown_fails(dedup: Dedup) -> None:
    heard: list[Takeover] = []
    await abandoned(dedup, "k")
    async with dedup.claim("k", resolve=answering(Resolution.not_done(), heard)) as claim:
        assert claim.acquired
    await abandoned(dedup, "u")
    claim = await dedup.claim("u", resolve=answering(Resolution.unknown("ask the bank"), heard))
    assert (claim.outcome, claim.error) == (Outcome.FAILED, "ask the bank")
    with pytest.raises(FailedError):
        (await dedup.claim("u")).replay()
    assert [takeover.key for takeover in heard] == ["k", "u"]


@on_both_faces
async def test_many_keys_are_asked_about_each_by_itself(dedup: Dedup) -> None:
    """As docs/stuck.md says: side by side, and the error of one check is that of one key."""
    began: set[str] = set()
    all_began = asyncio.Event()

    async def check(takeover: Takeover) -> Resolution:
        began.add(takeover.key)
        if len(began) == 3:
            all_began.set()
        await all_began.wait()
        if takeover.key == "bad":
            raise ValueError("no answer")
        return Resolution.done(7) if takeover.key == "done" else Resolution.not_done()

    for key in ("done", "open", "bad"):
        await abandoned(dedup, key)
    keys = ("done", "new", "bad", "open")
    calls = (dedup.claim(key, resolve=check, renew=True) for key in keys)
    done, new, bad, left = await asyncio.gather(*calls, return_exceptions=True)
    assert not isinstance(done, BaseException)
    assert (done.outcome, done.result) == (Outcome.SUCCEEDED, 7)
    assert isinstance(bad, ValueError)
    for claim, attempt in ((new, 1), (left, 2)):
        assert not isinstance(claim, BaseException)
        assert (claim.acquired, claim.attempt) == (True, attempt)
        await claim.release()
    assert (await dedup.claim("bad")).acquired, "it was released"


@on_both_faces
async def test_a_first_claim_and_a_duplicate_are_not_asked_about(backend: Backend) -> None:
    heard: list[Takeover] = []
    check = answering(Resolution.done(), heard)
    async with backend.make() as dedup:
        claim = await dedup.claim("k", resolve=check)
        assert claim.acquired
        assert (await dedup.claim("k", resolve=check)).outcome is Outcome.IN_PROGRESS
        await claim.complete(1)
        for _ in range(3):  # the last ones are told from memory
            assert (await dedup.claim("k", resolve=check)).result == 1
    assert heard == []


@on_both_faces
async def test_an_error_of_the_check_releases_the_claim(dedup: Dedup) -> None:
    """And the next claim is asked about, too: what was abandoned still is."""
    heard: list[Takeover] = []

    async def broken(takeover: Takeover) -> Resolution:
        raise OSError("the bank is away")

    await abandoned(dedup, "k")
    with pytest.raises(OSError, match="away"):
        await dedup.claim("k", resolve=broken)
    with pytest.raises(ConfigError, match="Resolution"):
        await dedup.claim("k", resolve=answering("yes", heard))  # type: ignore[arg-type]
    claim = await dedup.claim("k", resolve=answering(Resolution.not_done(), heard))
    assert (claim.acquired, heard[-1].attempt) == (True, 4)


async def none() -> Resolution:
    return Resolution.not_done()


async def two(takeover: Takeover, more: str) -> Resolution:
    return Resolution.not_done()


@pytest.mark.parametrize("check", [none, two])
def test_once_refuses_a_check_that_takes_no_takeover(check: Any) -> None:
    """It failed at the first takeover, with a TypeError: long after the program began."""
    with pytest.raises(ConfigError, match="resolve must be a function that takes a Takeover alone, got"):
        Dedup("memory://").once(key=str, resolve=check)
    with pytest.raises(ConfigError, match="resolve must be a function that takes a Takeover alone, got"):
        SyncDedup("memory://").once(key=str, resolve=lambda: Resolution.not_done())  # type: ignore[arg-type]


async def test_a_check_that_is_not_async_is_refused(dedup: Dedup) -> None:
    await abandoned(dedup, "k")
    with pytest.raises(ConfigError, match="write async def"):
        await dedup.claim("k", resolve=lambda takeover: Resolution.not_done())  # type: ignore[arg-type,return-value]


@on_stores("memory", "redis")
async def test_the_lease_is_renewed_while_the_check_runs(backend: Backend) -> None:
    async with backend.make(lease=0.2) as dedup:
        await abandoned(dedup, "k")
        asked = asyncio.Event()

        async def slow(takeover: Takeover) -> Resolution:
            asked.set()
            await is_renewed(lambda: lease_of(dedup, "k"))
            return Resolution.done("late")

        claiming = asyncio.create_task(dedup.claim("k", resolve=slow))
        await asked.wait()
        waiting = await dedup.claim("k", wait=5.0)
        assert waiting.result == "late"
        assert (await claiming).result == "late"


@on_stores("memory", "redis")
async def test_a_check_stops_where_the_lease_is_lost(backend: Backend) -> None:
    async with backend.make(lease=0.2) as dedup:
        await abandoned(dedup, "k")

        async def forgetting(takeover: Takeover) -> Resolution:
            await dedup.forget("k")
            await asyncio.Event().wait()
            return Resolution.done()

        with pytest.raises(ClaimLostError):
            await dedup.claim("k", resolve=forgetting)


@on_both_faces
async def test_once_asks_before_it_runs_again(dedup: Dedup) -> None:
    heard: list[Takeover] = []
    ran: list[str] = []

    @dedup.once(key=lambda order: order, resolve=answering(Resolution.done("paid before"), heard))
    async def pay(order: str) -> str:
        ran.append(order)
        return "paid"

    await abandoned(dedup, "k")
    assert [await pay("k"), await pay("k"), await pay("new")] == ["paid before", "paid before", "paid"]
    assert (ran, len(heard)) == (["new"], 1)


@on_both_faces
async def test_an_owner_that_claims_again_is_asked_too(dedup: Dedup) -> None:
    """A named owner that was started again may have done the work before it died."""
    heard: list[Takeover] = []
    await dedup.claim("k", owner="worker-1")
    claim = await dedup.claim("k", owner="worker-1", resolve=answering(Resolution.done(1), heard))
    assert (claim.result, heard[0].attempt, heard[0].last_owner) == (1, 1, None)


@on_both_faces
async def test_the_key_of_the_next_hop_belongs_to_the_key(dedup: Dedup) -> None:
    first = await abandoned(dedup, "k")
    again = await dedup.claim("k")
    assert again.downstream("stripe") == first.downstream("stripe")
    await dedup.forget("k")
    assert (await dedup.claim("k")).downstream("stripe") == first.downstream("stripe")
    others = {again.downstream("mail"), (await dedup.claim("k2")).downstream("stripe")}
    others.add((await dedup.scoped("x").claim("k")).downstream("stripe"))
    assert len(others - {first.downstream("stripe")}) == 3
