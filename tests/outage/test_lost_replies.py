"""Unknown outcomes: Redis acted, its reply was lost. The caller does not notice, or can safely ask again."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from fastdedup import (
    Claim,
    ClaimLostError,
    Dedup,
    ForeignRecordError,
    Outcome,
    UnavailableError,
)
from fastdedup.kernel.keyspace import Keyspace, Kind

from ..proxy import Fate, proxied
from ..servers import RedisServer

T = TypeVar("T")
WaitUntil = Callable[..., Any]

TIMEOUT = 5.0
"""Seconds: generous, so that only what the proxy does is an outage."""
SHORT = 0.2
"""Seconds, where a reply is to come too late."""
ORDER = {"pending": ("paid",), "paid": ("sent",), "sent": ()}


def gate(url: str, **options: Any) -> Dedup:
    """Asks the store each time: what this process knows would hide what the store says."""
    return Dedup(url, **{"timeout": TIMEOUT, "known_duplicates": 0.0, **options})


async def until_answered(wait_until: WaitUntil, ask: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call while the store is unavailable to it, as a client does on 503."""
    answer: list[T] = []

    async def answered() -> bool:
        try:
            answer.append(await ask())
        except UnavailableError:
            return False
        return True

    await wait_until(answered, description="the store answers again")
    return answer[0]


# One operation of each verb that the race below does not make. The model simulates each way of losing a reply.

Lose = Callable[[str], None]


async def fail(dedup: Dedup, direct: Dedup, lose: Lose) -> None:
    claim = await dedup.claim("key")
    lose("settle")
    await claim.fail("card refused")
    again = await direct.claim("key")
    assert (again.outcome, again.error, again.attempt) == (Outcome.FAILED, "card refused", 1)


async def renew(dedup: Dedup, direct: Dedup, lose: Lose) -> None:
    claim = await dedup.claim("key", lease=20)
    lose("renew")
    await claim.renew(lease=50)
    record = await direct.get("key")
    assert record is not None
    assert (record.fence, record.attempt, record.owner) == (claim.fence, 1, claim.owner)
    assert 40 < (record.lease or 0) <= 50


async def issue(dedup: Dedup, direct: Dedup, lose: Lose) -> None:
    lose("issue")
    token = await dedup.tokens.issue(subject="user:7")
    assert await direct.tokens.consume(token, subject="user:8") is Outcome.MISMATCH
    assert await direct.tokens.consume(token, subject="user:7") is Outcome.ACQUIRED


async def redeem(dedup: Dedup, direct: Dedup, lose: Lose) -> None:
    token = await dedup.tokens.issue(subject="user:7")
    lose("claim")
    claim = await dedup.tokens.redeem(token, subject="user:7")
    assert (claim.outcome, claim.attempt) == (Outcome.ACQUIRED, 1)
    await claim.complete("paid")
    assert (await direct.tokens.redeem(token, subject="user:7")).result == "paid"


async def read(dedup: Dedup, direct: Dedup, lose: Lose) -> None:
    claim = await direct.claim("key")
    lose("read")
    record = await dedup.get("key")
    assert record is not None
    assert record.owner == claim.owner


@pytest.mark.parametrize("act", [fail, renew, issue, redeem, read])
async def test_a_lost_reply_is_not_noticed(
    redis_url: str, redis_server: RedisServer, act: Callable[[Dedup, Dedup, Lose], Awaitable[None]]
) -> None:
    async with proxied(redis_server) as proxy, gate(proxy.url) as dedup, gate(redis_url) as direct:
        await act(dedup, direct, proxy.lose)
        assert proxy.lost.total() == 1, "Redis had acted on it"
        with redis_server.client() as raw:
            assert raw.dbsize() == 1


async def test_forget_is_sent_once_and_says_that_it_does_not_know(
    redis_url: str, redis_server: RedisServer
) -> None:
    """It names no owner: sent again it could remove the next owner's claim."""
    async with proxied(redis_server) as proxy, gate(proxy.url) as dedup, gate(redis_url) as direct:
        claim = await dedup.claim("key")
        await claim.complete("done")
        proxy.lose("forget")
        with pytest.raises(UnavailableError):
            await dedup.forget("key")
        assert (proxy.seen["forget"], proxy.lost["forget"]) == (1, 1)
        assert (await direct.claim("key")).acquired, "it was removed"


async def test_a_completion_that_gave_up_can_be_repeated(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil
) -> None:
    async with proxied(redis_server) as proxy, gate(proxy.url) as dedup, gate(redis_url) as direct:
        claim = await dedup.claim("key", lease=0.5)
        proxy.lose("settle", times=100_000)
        with pytest.raises(UnavailableError):
            await claim.complete("done")
        assert proxy.lost["settle"] > 1
        proxy.forward()
        await until_answered(wait_until, lambda: claim.complete("done"))
        again = await direct.claim("key")
        assert (again.result, again.attempt) == ("done", 1)


async def test_a_late_reply_is_not_taken_for_the_next_ones(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil
) -> None:
    async with proxied(redis_server) as proxy, gate(proxy.url, timeout=SHORT) as dedup:
        keys = [f"key-{n}" for n in range(40)]
        async with gate(redis_url) as direct:
            for claim in await direct.claim_many(keys):
                await claim.complete(claim.key)
        for late in keys[:3]:
            proxy.hold()
            with pytest.raises(UnavailableError):
                await dedup.claim(late)
            proxy.forward()
            for key in keys[3:]:
                claim = await until_answered(wait_until, lambda key=key: dedup.claim(key))  # type: ignore[misc]
                assert claim.result == key


async def test_a_failed_claim_many_frees_what_it_took_though_the_reply_was_lost(
    redis_url: str, redis_server: RedisServer
) -> None:
    """Told "you hold it already", it took its own claim for an earlier one of the same owner."""
    async with proxied(redis_server) as proxy, gate(proxy.url) as dedup, gate(redis_url) as direct:
        with redis_server.client() as raw:
            raw.set(Keyspace("fastdedup", Kind.CLAIM).wire("foreign"), "not ours", ex=60)
        proxy.lose("claim")
        with pytest.raises(ForeignRecordError):
            await dedup.claim_many(["key", "foreign"], lease=60)
        assert proxy.lost["claim"] == 1
        assert (await direct.claim("key")).acquired


async def test_200_claims_whose_replies_were_lost_are_200_winners(
    redis_url: str, redis_server: RedisServer
) -> None:
    keys = [f"key-{n}" for n in range(200)]
    async with proxied(redis_server) as proxy, gate(proxy.url) as dedup, gate(redis_url) as direct:
        proxy.lose("claim")
        claims = await asyncio.gather(*(dedup.claim(key) for key in keys))
        assert [claim.key for claim in claims] == keys
        assert {(claim.outcome, claim.attempt) for claim in claims} == {(Outcome.ACQUIRED, 1)}
        assert {claim.outcome for claim in await direct.claim_many(keys)} == {Outcome.IN_PROGRESS}
        proxy.lose("settle")
        await asyncio.gather(*(claim.complete(claim.key) for claim in claims))
        assert [claim.result for claim in await direct.claim_many(keys)] == keys
        assert proxy.lost == {"claim": 1, "settle": 1}


# All at once


@pytest.mark.parametrize("seed", range(3))
async def test_mixed_work_under_random_cuts_has_each_effect_once(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil, seed: int
) -> None:
    """Two gates race for each key, token and order; a fifth of what is sent is cut, before Redis or after it."""
    dice = random.Random(seed)
    fates = dice.choices([Fate.PASS, Fate.LOSE, Fate.CUT], weights=[80, 14, 6], k=200)

    def plan(name: str) -> Fate:
        # Only what may be sent again, and not for ever.
        return fates.pop() if fates and name in {"claim", "settle", "release", "transition"} else Fate.PASS

    async with proxied(redis_server) as proxy, gate(proxy.url) as one, gate(proxy.url) as two:
        tokens = [await one.tokens.issue(subject=n) for n in range(20)]
        proxy.follow(plan)
        race = Race(wait_until, dice)
        await asyncio.gather(*(race.run(dedup, name, tokens) for dedup, name in ((one, "one"), (two, "two"))))
        assert sum(proxy.lost.values()) > 5, "there were faults"
        race.check()


class Race:
    """Two gates do the same work; every effect is written down."""

    KEYS = tuple(f"key-{n}" for n in range(40))
    ORDERS = tuple(f"order-{n}" for n in range(20))

    def __init__(self, wait_until: WaitUntil, dice: random.Random) -> None:
        self._wait_until = wait_until
        self._dice = dice
        self.effects: dict[str, list[str]] = {key: [] for key in self.KEYS}
        self.results: list[tuple[str, Any]] = []
        self.consumed: Counter[str] = Counter()
        self.changes: Counter[tuple[str, int]] = Counter()
        self.ends: list[tuple[str, int]] = []
        self.fences: dict[str, list[int]] = {key: [] for key in self.KEYS}

    async def run(self, dedup: Dedup, name: str, tokens: list[str]) -> None:
        works = [self._work(dedup, key, f"{name}-{key}") for key in self.KEYS]
        works += [self._consume(dedup, token, n) for n, token in enumerate(tokens)]
        works += [self._move(dedup, order) for order in self.ORDERS]
        self._dice.shuffle(works)
        # A few at a time: so there are many batches to cut.
        lanes = [works[lane::8] for lane in range(8)]
        await asyncio.gather(*(self._one_by_one(lane) for lane in lanes))

    async def _one_by_one(self, works: list[Any]) -> None:
        for work in works:
            await work

    async def _work(self, dedup: Dedup, key: str, owner: str) -> None:
        """Every third owner gives its first claim back."""
        gives_back = self._dice.random() < 0.33
        while True:
            claim: Claim = await until_answered(
                self._wait_until, lambda: dedup.claim(key, owner=owner, lease=60, wait=20)
            )
            if not claim.acquired:
                self.results.append((key, claim.result))
                return
            self.fences[key].append(claim.fence)
            if not gives_back:
                break
            gives_back = False
            # Released by the first sending, the key may be the other's before the second.
            with contextlib.suppress(ClaimLostError):
                await until_answered(self._wait_until, claim.release)
        self.effects[key].append(owner)
        await until_answered(self._wait_until, lambda: claim.complete(owner))

    async def _consume(self, dedup: Dedup, token: str, subject: int) -> None:
        outcome = await until_answered(self._wait_until, lambda: dedup.tokens.consume(token, subject))
        self.consumed[token] += outcome is Outcome.ACQUIRED
        assert outcome in {Outcome.ACQUIRED, Outcome.SUCCEEDED}

    async def _move(self, dedup: Dedup, order: str) -> None:
        machine = dedup.machine("order", initial="pending", transitions=ORDER)
        for to in ("paid", "sent"):
            move = await until_answered(
                self._wait_until,
                lambda to=to: machine.transition(order, to=to),  # type: ignore[misc]
            )
            if move.changed:
                self.changes[order, move.version] += 1
        self.ends.append(await until_answered(self._wait_until, lambda: machine.get(order)))

    def check(self) -> None:
        assert {len(owners) for owners in self.effects.values()} == {1}, "one effect a key"
        for key, result in self.results:
            assert [result] == self.effects[key], "its winner's result"
        for key, fences in self.fences.items():
            assert fences == sorted(set(fences)), f"{key}: each owner has a higher fence"
        assert set(self.consumed.values()) <= {0, 1}, "no token twice"
        assert set(self.changes.values()) == {1}, "no version twice"
        assert set(self.ends) == {("sent", 2)}
