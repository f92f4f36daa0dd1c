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
    State,
    TransitionOutcome,
    UnavailableError,
    UnknownTransitionError,
)
from fastdedup.protocol.keyspace import Keyspace, Kind

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


# One operation, its reply lost


async def test_a_claim_whose_reply_was_lost_is_acquired_and_no_duplicate(
    redis_url: str, redis_server: RedisServer
) -> None:
    async with proxied(redis_server) as proxy, gate(proxy.url) as dedup, gate(redis_url) as direct:
        proxy.lose("claim")
        claim = await dedup.claim("key")
        assert proxy.lost["claim"] == 1, "Redis had acted on it"
        assert proxy.seen["claim"] == 2
        assert (claim.outcome, claim.attempt, claim.degraded) == (Outcome.ACQUIRED, 1, False)
        record = await direct.get("key")
        assert record is not None
        assert (record.owner, record.fence, record.attempt) == (claim.owner, claim.fence, 1)
        assert (await direct.claim("key")).outcome is Outcome.IN_PROGRESS
        await claim.complete("done")
        assert (await direct.claim("key")).result == "done"


async def test_a_claim_that_never_reached_redis_is_acquired(
    redis_url: str, redis_server: RedisServer
) -> None:
    async with proxied(redis_server) as proxy, gate(proxy.url) as dedup:
        fates = iter([Fate.CUT])
        proxy.follow(lambda name: next(fates, Fate.PASS) if name == "claim" else Fate.PASS)
        claim = await dedup.claim("key")
        assert (claim.outcome, claim.attempt, proxy.seen["claim"]) == (Outcome.ACQUIRED, 1, 1)


async def test_of_many_callers_of_one_key_one_wins_though_the_reply_was_lost(
    redis_url: str, redis_server: RedisServer
) -> None:
    async with proxied(redis_server) as proxy, gate(proxy.url) as dedup:
        proxy.lose("claim")
        claims = await asyncio.gather(*(dedup.claim("key") for _ in range(50)))
        assert proxy.lost["claim"] == 1
        assert Counter(claim.outcome for claim in claims) == {Outcome.ACQUIRED: 1, Outcome.IN_PROGRESS: 49}


async def test_a_completion_whose_reply_was_lost_is_recorded_once(
    redis_url: str, redis_server: RedisServer
) -> None:
    async with proxied(redis_server) as proxy, gate(proxy.url) as dedup, gate(redis_url) as direct:
        claim = await dedup.claim("key")
        proxy.lose("settle")
        await claim.complete({"order": 7}, ttl=60)
        assert proxy.lost["settle"] == 1
        record = await direct.get("key")
        assert record is not None
        assert (record.state, record.result, record.fence) == (State.SUCCEEDED, {"order": 7}, claim.fence)
        assert 50 < record.ttl <= 60
        assert (await dedup.claim("key")).result == {"order": 7}


async def test_a_failure_whose_reply_was_lost_is_recorded_once(
    redis_url: str, redis_server: RedisServer
) -> None:
    async with proxied(redis_server) as proxy, gate(proxy.url) as dedup, gate(redis_url) as direct:
        claim = await dedup.claim("key")
        proxy.lose("settle")
        await claim.fail("card refused")
        assert proxy.lost["settle"] == 1
        again = await direct.claim("key")
        assert (again.outcome, again.error, again.attempt) == (Outcome.FAILED, "card refused", 1)


async def test_a_release_whose_reply_was_lost_frees_the_key_once(
    redis_url: str, redis_server: RedisServer
) -> None:
    async with proxied(redis_server) as proxy, gate(proxy.url) as dedup, gate(redis_url) as direct:
        claim = await dedup.claim("key")
        proxy.lose("release")
        await claim.release()
        assert proxy.lost["release"] == 1
        after = await direct.claim("key")
        assert (after.outcome, after.attempt) == (Outcome.ACQUIRED, 2)
        assert after.fence > claim.fence


async def test_a_release_sent_again_does_not_touch_the_next_owner(
    redis_url: str, redis_server: RedisServer
) -> None:
    """The next owner, who waited, has the key before the release comes a second time."""
    async with proxied(redis_server) as proxy, gate(proxy.url) as dedup, gate(redis_url) as direct:
        claim = await dedup.claim("key")
        proxy.hold()
        releasing = asyncio.create_task(claim.release())
        after = await direct.claim("key", wait=10)
        assert (after.outcome, after.attempt) == (Outcome.ACQUIRED, 2)
        proxy.cut()
        proxy.forward()
        # Released it is, or lost to the next owner: what the second sending finds, and both are true.
        (answer,) = await asyncio.gather(releasing, return_exceptions=True)
        assert answer is None or isinstance(answer, ClaimLostError)
        assert proxy.seen["release"] == 2
        await after.complete("by the next owner")
        assert (await direct.claim("key")).result == "by the next owner"


async def test_a_renewal_whose_reply_was_lost_gives_the_lease(
    redis_url: str, redis_server: RedisServer
) -> None:
    async with proxied(redis_server) as proxy, gate(proxy.url) as dedup, gate(redis_url) as direct:
        claim = await dedup.claim("key", lease=20)
        proxy.lose("renew")
        await claim.renew(lease=50)
        assert proxy.lost["renew"] == 1
        record = await direct.get("key")
        assert record is not None
        assert record.lease is not None
        assert 40 < record.lease <= 50
        assert (record.fence, record.attempt, record.owner) == (claim.fence, 1, claim.owner)


async def test_a_token_whose_issue_got_no_reply_is_issued_once(
    redis_url: str, redis_server: RedisServer
) -> None:
    async with proxied(redis_server) as proxy, gate(proxy.url) as dedup, gate(redis_url) as direct:
        proxy.lose("issue")
        token = await dedup.tokens.issue(subject="user:7")
        assert proxy.lost["issue"] == 1
        with redis_server.client() as raw:
            assert raw.dbsize() == 1
        assert await direct.tokens.consume(token, subject="user:8") is Outcome.MISMATCH
        assert await direct.tokens.consume(token, subject="user:7") is Outcome.ACQUIRED
        assert await direct.tokens.consume(token, subject="user:7") is Outcome.SUCCEEDED


async def test_a_consumption_whose_reply_was_lost_is_the_first_and_only_one(
    redis_url: str, redis_server: RedisServer
) -> None:
    async with proxied(redis_server) as proxy, gate(proxy.url) as dedup, gate(redis_url) as direct:
        token = await dedup.tokens.issue(subject="user:7")
        proxy.lose("claim")
        assert await dedup.tokens.consume(token, subject="user:7") is Outcome.ACQUIRED
        assert proxy.lost["claim"] == 1
        assert await dedup.tokens.consume(token, subject="user:7") is Outcome.SUCCEEDED
        assert await direct.tokens.consume(token, subject="user:7") is Outcome.SUCCEEDED


async def test_a_redemption_whose_reply_was_lost_is_the_first(
    redis_url: str, redis_server: RedisServer
) -> None:
    async with proxied(redis_server) as proxy, gate(proxy.url) as dedup, gate(redis_url) as direct:
        token = await dedup.tokens.issue(subject="user:7")
        proxy.lose("claim")
        claim = await dedup.tokens.redeem(token, subject="user:7")
        assert proxy.lost["claim"] == 1
        assert (claim.outcome, claim.attempt) == (Outcome.ACQUIRED, 1)
        assert (await direct.tokens.redeem(token, subject="user:7")).outcome is Outcome.IN_PROGRESS
        await claim.complete("paid")
        assert (await direct.tokens.redeem(token, subject="user:7")).result == "paid"


@pytest.mark.parametrize("version", [None, 0])
async def test_a_transition_whose_reply_was_lost_is_one_change(
    redis_url: str, redis_server: RedisServer, version: int | None
) -> None:
    """The one who made it is told CHANGED, not that it was so already."""
    async with proxied(redis_server) as proxy, gate(proxy.url) as dedup, gate(redis_url) as direct:
        orders = dedup.machine("order", initial="pending", transitions=ORDER)
        proxy.lose("transition")
        move = await orders.transition("42", to="paid", version=version)
        assert proxy.lost["transition"] == 1
        assert (move.outcome, move.state, move.version) == (TransitionOutcome.CHANGED, "paid", 1)
        elsewhere = direct.machine("order", initial="pending", transitions=ORDER)
        assert await elsewhere.get("42") == ("paid", 1)
        assert (await elsewhere.transition("42", to="paid")).outcome is TransitionOutcome.ALREADY


async def test_reading_is_repeated_where_the_reply_was_lost(
    redis_url: str, redis_server: RedisServer
) -> None:
    async with proxied(redis_server) as proxy, gate(proxy.url) as dedup:
        claim = await dedup.claim("key")
        proxy.lose("read")
        record = await dedup.get("key")
        assert record is not None
        assert record.owner == claim.owner
        assert proxy.lost["read"] == 1


async def test_a_lock_opens_though_each_reply_was_lost(redis_url: str, redis_server: RedisServer) -> None:
    async with proxied(redis_server) as proxy, gate(proxy.url) as dedup, gate(redis_url) as direct:
        proxy.lose("claim")
        proxy.lose("release")
        async with dedup.lock("key", lease=60) as lock:
            fence = lock.fence
        async with direct.lock("key") as lock:
            assert lock.fence > fence
        assert proxy.lost == {"claim": 1, "release": 1}


async def test_a_lock_whose_release_got_no_reply_is_not_lost_to_the_next_holder(
    redis_url: str, redis_server: RedisServer
) -> None:
    """It was held until it was released: that another holder is there by now is as it should be."""
    async with proxied(redis_server) as proxy, gate(proxy.url) as dedup, gate(redis_url) as direct:
        inside = asyncio.Event()

        async def hold() -> None:
            async with dedup.lock("key", lease=60):
                proxy.hold()
                inside.set()

        holding = asyncio.create_task(hold())
        await inside.wait()
        async with direct.lock("key", wait=10):
            proxy.cut()
            proxy.forward()
            await holding
            assert proxy.seen["release"] == 2


async def test_a_transition_whose_reply_was_lost_is_not_called_illegal_when_another_followed(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil
) -> None:
    async with proxied(redis_server) as proxy, gate(proxy.url) as dedup, gate(redis_url) as direct:
        orders = dedup.machine("order", initial="pending", transitions=ORDER)
        elsewhere = direct.machine("order", initial="pending", transitions=ORDER)
        proxy.hold()
        moving = asyncio.create_task(orders.transition("42", to="paid"))
        await wait_until(lambda: proxy.seen["transition"], description="Redis was asked")

        async def followed() -> bool:
            return (await elsewhere.transition("42", to="sent")).changed

        await wait_until(followed, description="another moves the order on")
        proxy.cut()
        proxy.forward()
        with pytest.raises(
            UnknownTransitionError, match="whether this call moved '42' to 'paid' is unknown"
        ) as info:
            await moving
        assert (info.value.state, info.value.version) == ("sent", 2)
        assert proxy.seen["transition"] == 2


async def test_a_function_runs_once_though_each_reply_was_lost(
    redis_url: str, redis_server: RedisServer
) -> None:
    async with proxied(redis_server) as proxy, gate(proxy.url) as dedup:
        runs = []

        @dedup.once(key=lambda: "key", wait=10)
        async def pay() -> str:
            runs.append(1)
            return "paid"

        proxy.lose("claim")
        proxy.lose("settle")
        assert await asyncio.gather(*(pay() for _ in range(10))) == ["paid"] * 10
        assert runs == [1]
        assert proxy.lost == {"claim": 1, "settle": 1}


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


# Asked again by the caller


async def test_an_owner_who_asks_again_gets_its_claim_back(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil
) -> None:
    async with proxied(redis_server) as proxy, gate(proxy.url) as dedup, gate(redis_url) as direct:
        proxy.lose("claim", times=1000)  # also when it is sent again
        with pytest.raises(UnavailableError):
            await dedup.claim("key", owner="worker-1")
        assert proxy.lost["claim"] > 1
        proxy.forward()
        record = await direct.get("key")
        assert record is not None
        claim = await until_answered(wait_until, lambda: dedup.claim("key", owner="worker-1"))
        assert (claim.outcome, claim.fence, claim.attempt) == (Outcome.ACQUIRED, record.fence, 1)
        assert (await direct.claim("key", owner="worker-2")).outcome is Outcome.IN_PROGRESS


@pytest.mark.parametrize("fault", ["hold", "swallow"])
async def test_an_owner_who_asks_again_after_its_deadline_gets_its_claim_back(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil, fault: str
) -> None:
    """A reply that came too late, or a connection that is half-open."""
    async with proxied(redis_server) as proxy, gate(proxy.url, timeout=SHORT) as dedup:
        getattr(proxy, fault)()
        with pytest.raises(UnavailableError):
            await dedup.claim("key", owner="worker-1")
        proxy.forward()
        claim = await until_answered(wait_until, lambda: dedup.claim("key", owner="worker-1"))
        assert (claim.outcome, claim.attempt) == (Outcome.ACQUIRED, 1)
        await until_answered(wait_until, lambda: claim.complete("done"))
        again = await until_answered(wait_until, lambda: dedup.claim("key", owner="worker-2"))
        assert again.result == "done"


async def test_a_completion_is_tried_until_it_is_answered_within_the_lease(
    redis_url: str, redis_server: RedisServer
) -> None:
    """The effect has happened: giving up early would let it happen again."""
    async with proxied(redis_server) as proxy, gate(proxy.url) as dedup, gate(redis_url) as direct:
        claim = await dedup.claim("key", lease=30)
        proxy.lose("settle", times=5)
        await claim.complete("done")
        assert proxy.lost["settle"] == 5
        assert (await direct.claim("key")).result == "done"


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


async def test_a_reply_that_comes_late_but_in_time_is_used(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil
) -> None:
    async with proxied(redis_server) as proxy, gate(proxy.url) as dedup:
        proxy.hold()
        task = asyncio.create_task(dedup.claim("key"))
        await wait_until(lambda: proxy.seen["claim"], description="Redis was asked")
        proxy.forward()
        assert (await task).acquired
        assert proxy.seen["claim"] == 1, "it was asked once"


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


# Cancelled, waiting, in groups


async def test_a_claim_sent_again_for_a_caller_who_is_gone_is_released(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil
) -> None:
    async with proxied(redis_server) as proxy, gate(proxy.url) as dedup, gate(redis_url) as direct:
        proxy.hold()
        task = asyncio.create_task(dedup.claim("key", lease=60))
        await wait_until(lambda: proxy.seen["claim"], description="Redis was asked")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (await direct.claim("key")).outcome is Outcome.IN_PROGRESS
        proxy.cut()
        proxy.forward()

        async def free() -> bool:
            return (await direct.claim("key")).acquired

        await wait_until(free, description="the orphan is released")


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


async def test_a_waiter_gets_the_result_though_its_connections_are_cut(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil
) -> None:
    """The news that it waits for may be lost with its subscription: it looks again."""
    async with proxied(redis_server) as proxy, gate(proxy.url) as dedup, gate(redis_url) as direct:
        owner = await direct.claim("key", lease=60)
        proxy.lose("claim")
        waiting = asyncio.create_task(dedup.claim("key", wait=60))
        await wait_until(lambda: proxy.seen["claim"] >= 2, description="it asked again")
        proxy.cut()
        await owner.complete("done")
        claim = await waiting
        assert (claim.outcome, claim.result) == (Outcome.SUCCEEDED, "done")


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


async def test_200_releases_and_transitions_whose_replies_were_lost_act_once(
    redis_url: str, redis_server: RedisServer
) -> None:
    keys = [f"key-{n}" for n in range(200)]
    async with proxied(redis_server) as proxy, gate(proxy.url) as dedup, gate(redis_url) as direct:
        claims = await dedup.claim_many(keys)
        proxy.lose("release")
        await asyncio.gather(*(claim.release() for claim in claims))
        after = await direct.claim_many(keys)
        assert {(claim.outcome, claim.attempt) for claim in after} == {(Outcome.ACQUIRED, 2)}
        orders = dedup.machine("order", initial="pending", transitions=ORDER)
        proxy.lose("transition")
        moves = await asyncio.gather(*(orders.transition(key, to="paid") for key in keys))
        assert {(move.outcome, move.version) for move in moves} == {(TransitionOutcome.CHANGED, 1)}
        assert proxy.lost == {"release": 1, "transition": 1}


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
