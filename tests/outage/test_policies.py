"""Policies, on real servers: answers while Redis is away are quick, visible, and the namespace's own."""

from __future__ import annotations

import asyncio
import inspect
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import fastdedup
from fastdedup import BreakerState, Dedup, FallbackPolicy, LocalLRU, Outcome, Reject, UnavailableError
from fastdedup.events import BreakerClosed, Degraded, Event
from fastdedup.kernel.operations import ClaimOp, Op, Reply

from ..servers import RedisServer
from ..waiting import breaker_opens, wait_until

ANSWERS = 2000


@asynccontextmanager
async def counting(path: Path) -> AsyncIterator[list[float]]:
    """Listen in the server's place, hang up at once, and note when each connection came."""
    connected: list[float] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.append(time.perf_counter())
        writer.close()

    vacate(path)
    listening = await asyncio.start_unix_server(accept, path)
    yield connected
    listening.close()
    vacate(path)


def vacate(path: Path) -> None:
    path.unlink(missing_ok=True)


# Quick


@pytest.mark.parametrize("policy", [Reject(), LocalLRU()], ids=repr)
async def test_answers_while_redis_is_away_take_no_time_and_connect_to_nothing(
    own_redis: RedisServer, policy: FallbackPolicy
) -> None:
    """One caller after the other, so that each pays for all that its own answer takes."""
    async with Dedup(own_redis.url, timeout=0.5, on_unavailable=policy) as dedup:
        await dedup.claim("before")
        own_redis.kill()
        async with counting(own_redis.socket) as connected:
            await breaker_opens(dedup)
            connected.clear()
            taken = []
            for number in range(ANSWERS):
                began = time.perf_counter()
                try:
                    assert (await dedup.claim(str(number))).degraded
                except UnavailableError:
                    assert isinstance(policy, Reject)
                taken.append(time.perf_counter() - began)
            taken.sort()
            print(f"p50 {taken[ANSWERS // 2] * 1e6:.0f} µs, p99 {taken[ANSWERS * 99 // 100] * 1e6:.0f} µs")
            assert taken[ANSWERS * 99 // 100] < 0.02
            # Only probes connect, each a while after the other.
            assert len(connected) <= 2 + sum(taken) / 0.025


@pytest.mark.parametrize("fault", ["killed", "frozen"])
async def test_redis_is_asked_again_soon_after_it_answers_again(own_redis: RedisServer, fault: str) -> None:
    events: list[Event] = []
    async with Dedup(own_redis.url, timeout=0.5, on_event=events.append) as dedup:
        await dedup.claim("before")
        own_redis.kill() if fault == "killed" else own_redis.freeze()
        await breaker_opens(dedup)
        await asyncio.to_thread(own_redis.start) if fault == "killed" else own_redis.thaw()
        back = time.perf_counter()
        await wait_until(lambda: dedup.breaker is BreakerState.CLOSED, description="it is closed")
        seconds = time.perf_counter() - back
        print(f"closed after {seconds:.2f} s")
        assert seconds < 3.0
        assert (await dedup.claim("after")).acquired
        (closed,) = [event for event in events if isinstance(event, BreakerClosed)]
        assert str(own_redis.socket) in closed.store


# Visible


async def test_a_refusal_of_local_lru_says_why_and_when_to_come_back(own_redis: RedisServer) -> None:
    async with Dedup(own_redis.url, timeout=0.5, on_unavailable=LocalLRU(maxsize=1)) as dedup:
        own_redis.kill()
        await dedup.claim("fits")
        with pytest.raises(UnavailableError, match="the local store is full: 1") as caught:
            await dedup.claim("does not")
        assert caught.value.retry_after > 0


async def test_each_scope_has_its_own_policy_over_one_connection(own_redis: RedisServer) -> None:
    """Also two of one kind: what fills one leaves the other its room."""
    events: list[Event] = []
    async with Dedup(own_redis.url, timeout=0.5, namespace="shop", on_event=events.append) as shop:
        sms = shop.scoped("sms", on_unavailable=LocalLRU(maxsize=1))
        mail = shop.scoped("mail", on_unavailable=LocalLRU(maxsize=1))
        own_redis.kill()
        assert (await sms.claim("k")).degraded
        assert (await mail.claim("k")).degraded
        with pytest.raises(UnavailableError, match="full"):
            await sms.claim("another")
        with pytest.raises(UnavailableError):
            await shop.claim("k")
        seen = {(event.namespace, event.answered) for event in events if isinstance(event, Degraded)}
        assert seen == {("shop:sms", True), ("shop:mail", True), ("shop:sms", False), ("shop", False)}


async def test_scopes_that_share_a_policy_share_its_room_and_never_a_key(own_redis: RedisServer) -> None:
    """And one journal brings both home, each under its own name."""
    policy = LocalLRU(maxsize=2)
    async with Dedup(own_redis.url, timeout=0.5, namespace="shop", on_unavailable=policy) as shop:
        sms = shop.scoped("sms")
        own_redis.kill()
        ours, theirs = await shop.claim("k"), await sms.claim("k")
        assert ours.acquired
        assert theirs.acquired
        with pytest.raises(UnavailableError, match="full"):
            await sms.claim("another")
        await asyncio.to_thread(own_redis.start)
        await wait_until(lambda: policy.lines == 0, description="all is brought home")
        for scope, claim in ((shop, ours), (sms, theirs)):
            record = await scope.get("k")
            assert record is not None
            assert record.owner == claim.owner


async def test_two_gates_that_share_a_policy_never_give_a_key_twice(own_redis: RedisServer) -> None:
    """One Redis, two connections, one process: unique is what is unique in the policy."""
    policy = LocalLRU()
    async with (
        Dedup(own_redis.url, timeout=0.5, on_unavailable=policy) as one,
        Dedup(own_redis.url, timeout=0.5, on_unavailable=policy) as other,
    ):
        own_redis.kill()
        claims = await asyncio.gather(*(gate.claim("k") for gate in (one, other) * 10))
        assert sum(claim.acquired for claim in claims) == 1
        await one.aclose()
        await asyncio.to_thread(own_redis.start)
        await wait_until(lambda: policy.lines == 0, description="the other one brings it home")
        assert (await other.claim("k")).outcome is Outcome.IN_PROGRESS


# The user's own, from the documentation alone


def documented() -> str:
    """The example in the docstring, as it stands there."""
    text = inspect.getdoc(FallbackPolicy) or ""
    return textwrap.dedent(text.partition("::\n")[2])


async def test_the_documented_policy_does_what_its_text_says(own_redis: RedisServer) -> None:
    """Copied verbatim, with no more than the imports that it names, and pointed at this server."""
    source = documented()
    assert "class PremiumOnly" in source
    names: dict[str, Any] = {**vars(fastdedup), "ClaimOp": ClaimOp, "Op": Op, "Reply": Reply}
    exec(source.replace("redis://localhost:6379/0", own_redis.url), names)
    async with names["dedup"] as dedup:
        assert isinstance(dedup, Dedup)
        own_redis.kill()
        claim = await dedup.claim("premium:7")
        assert (claim.acquired, claim.degraded) == (True, True)
        assert (await dedup.claim("premium:" + "8" * 50)).degraded, "the store's key is a digest"
        with pytest.raises(UnavailableError, match="only premium orders for now") as caught:
            await dedup.claim("standard:8")
        assert caught.value.retry_after == 5.0
        await claim.complete("shipped")
        await asyncio.to_thread(own_redis.start)

        async def is_home() -> bool:
            return not (await dedup.claim("premium:7")).degraded

        await wait_until(is_home, description="Redis knows of it")
        assert (await dedup.claim("premium:7")).result == "shipped"
        assert (await dedup.claim("standard:8")).acquired


class Minutes:
    """Two methods, from the protocol's own text: it keeps records of its own, in the plainest way."""

    def __init__(self) -> None:
        self.inner = LocalLRU(maxsize=10)

    def answer(self, op: Op, error: UnavailableError) -> Reply:
        return self.inner.answer(op, error)

    def holds(self, wire: bytes) -> bool:
        return self.inner.holds(wire)


async def test_what_a_policy_without_a_journal_answers_stays_with_it(own_redis: RedisServer) -> None:
    """It goes on answering for those keys, and only for those, until its records expire."""
    async with Dedup(own_redis.url, timeout=0.5, on_unavailable=Minutes()) as dedup:
        own_redis.kill()
        claim = await dedup.claim("k")
        await breaker_opens(dedup)
        await asyncio.to_thread(own_redis.start)
        await wait_until(lambda: dedup.breaker is BreakerState.CLOSED, description="Redis is back")
        assert (await dedup.claim("k")).outcome is Outcome.IN_PROGRESS
        await claim.complete("kept here")
        again = await dedup.claim("k")
        assert (again.result, again.degraded) == ("kept here", True)
        assert not (await dedup.claim("other")).degraded
