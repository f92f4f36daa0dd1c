"""What LocalLRU answers in an outage, and what the store answers meanwhile, contradict each other nowhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any, NoReturn

import pytest

from fastdedup import BreakerState, Dedup, Ledger, LocalLRU, Outcome, Reject, UnavailableError
from fastdedup.events import Conflict, Event, Replayed, Unreplayed
from fastdedup.kernel.operations import ClaimOp, Op, Reply
from fastdedup.ledger.operations import IdOp
from fastdedup.stores.redis.cluster.slots import slot_of
from fastdedup.testing import FakeStore, probe

from ..fixtures import async_fixture
from ..heard import HeardGate
from ..outage.test_reconciliation import Site, site_of
from ..proxy import proxied
from ..servers import RedisServer
from ..sidecars import Sidecar
from ..stepping import clock_us
from ..topologies import ClusterGroup, Member
from ..waiting import acquired, cancel, wait_until

site = async_fixture(lambda: site_of("killed"))


# A claim without a reply took the key in the frozen store, from the one to whom LocalLRU had given it
# meanwhile. The journal did not know that claimant, and took it for another process: the live owner lost the key with
# a Conflict. tests/unit/test_journal.py has the claimants that were told IN_PROGRESS; here is one that was cancelled.


async def test_a_cancelled_claim_takes_no_key_from_its_owner(own_redis: RedisServer) -> None:
    policy, events = LocalLRU(), list[Event]()
    options: dict[str, Any] = {"namespace": "t", "on_unavailable": policy, "on_event": events.append}
    async with Dedup(own_redis.url, timeout=0.1, **options) as dedup:
        await dedup.get("warm")
        with own_redis.frozen():
            cancelled = asyncio.create_task(dedup.claim("k"))
            engine = dedup.gate.connection.running_engine()
            await wait_until(lambda: engine.in_flight, description="it is sent")
            cancelled.cancel()
            await dedup.claim("other")
            await wait_until(lambda: dedup.breaker is BreakerState.OPEN, description="the breaker is open")
            owner = await dedup.claim("k")  # which is never sent
            assert (owner.outcome, owner.degraded) == (Outcome.ACQUIRED, True)
        await wait_until(lambda: not policy.lines, description="the store has the policy's records")
        assert (await dedup.claim("k")).outcome is Outcome.IN_PROGRESS
        await owner.complete("done")
    assert not [event for event in events if isinstance(event, Conflict)]


# Fault: while a gate closed, the policy of a scope gave its first answer, and no `aclose` ever ended well
# again. What brings the journals home was looked at one by one, with a wait at each, and there was one more
# meanwhile.


async def test_a_request_under_way_does_not_hinder_the_end() -> None:
    events: list[Event] = []
    server = RedisServer()  # which does not run
    dedup = Dedup(
        server.url, namespace="shop", timeout=0.1, on_unavailable=LocalLRU(), on_event=events.append
    )
    sms = dedup.scoped("sms", on_unavailable=LocalLRU())
    await dedup.open()
    await dedup.claim("early")
    (late, _) = await asyncio.gather(sms.claim("late"), dedup.aclose())
    assert late.degraded
    assert not dedup.is_open
    assert {event.key for event in events if isinstance(event, Unreplayed)} == {"early", "late"}
    await dedup.open()
    await dedup.aclose()


# In an outage LocalLRU gave away what `get()` had told this process: a key done elsewhere, and a machine's
# state.


MACHINE: dict[str, Any] = {
    "initial": "new",
    "transitions": {"new": ("paid",), "paid": ("sent",), "sent": ("back",), "back": ()},
}


async def test_an_outage_forgets_nothing_that_was_read(own_redis: RedisServer) -> None:
    policy, events = LocalLRU(), list[Event]()
    async with (
        Dedup(own_redis.url, namespace="t") as other,
        Dedup(
            own_redis.url, namespace="t", timeout=0.5, on_unavailable=policy, on_event=events.append
        ) as dedup,
    ):
        orders = other.machine("orders", **MACHINE)
        await orders.transition("1", to="paid")
        await orders.transition("1", to="sent")
        await (await other.claim("done")).complete("result")
        await other.claim("held")
        seen = dedup.machine("orders", **MACHINE)
        await dedup.get("done")
        await dedup.get("held")
        await seen.get("1")
        with own_redis.frozen():
            done, held = await dedup.claim_many(["done", "held"])
            moved = await seen.transition("1", to="back", version=2)
        assert (done.outcome, done.result, done.degraded) == (Outcome.SUCCEEDED, "result", True)
        assert (held.outcome, held.degraded) == (Outcome.IN_PROGRESS, True)
        assert (moved.changed, moved.version, moved.degraded) == (True, 3, True)
    assert not [event for event in events if isinstance(event, Conflict)]


# A policy's own error, raised while a batch's replies were handed out, left the rest of the batch
# unanswered.


class ForgettingPolicy(LocalLRU):
    """Has what it is asked for when it is asked whether it has that, and no more when it must answer."""

    def __init__(self) -> None:
        super().__init__()
        self.forgets = self.told = False

    def holds(self, wire: bytes) -> bool:
        self.told = self.forgets and not self.told
        return self.told

    def holds_id(self, op: IdOp) -> bool:
        return self.holds(op.wire)

    def answer(self, op: Op, error: UnavailableError) -> Reply:
        raise error


@pytest.mark.parametrize(
    "call",
    [
        lambda dedup, ledger: dedup.get("order"),
        lambda dedup, ledger: dedup.forget("order"),
        lambda dedup, ledger: dedup.tokens.issue(),
        lambda dedup, ledger: dedup.machine(
            "order", initial="a", transitions={"a": ["b"], "b": ()}
        ).transition("1", to="b"),
        lambda dedup, ledger: ledger.first("order"),
        lambda dedup, ledger: ledger.first_many(["order"]),
        lambda dedup, ledger: ledger.seen("order"),
        lambda dedup, ledger: ledger.forget("order"),
    ],
)
async def test_what_a_policy_has_just_lost_is_no_foreign_value(
    call: Callable[[Dedup, Ledger], Awaitable[Any]],
) -> None:
    """Only an owner is told that its claim is lost. Others got ForeignRecordError, which says to remove the key."""
    policy = ForgettingPolicy()
    async with Dedup("memory://", on_unavailable=policy) as dedup:
        ledger = await dedup.ledger("orders", window=60, capacity=1_000).open()
        policy.forgets = True
        with pytest.raises(UnavailableError):
            await call(dedup, ledger)


class FaultyPolicy(LocalLRU):
    """Fails for keys that are called bad: when it hears of a claim, or when it is asked after that."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self._at = at
        self._heard: set[bytes] = set()

    def saw(self, op: Op, reply: Reply) -> None:
        if b"bad" in op.wire and isinstance(op, ClaimOp):
            if self._at == "saw":
                raise ValueError("the policy's own")
            self._heard.add(op.wire)
        super().saw(op, reply)

    def holds(self, wire: bytes) -> bool:
        if self._at == "holds" and b"bad" in wire:
            raise ValueError("the policy's own")
        if wire in self._heard:
            self._heard.discard(wire)
            return True
        return super().holds(wire)

    def answer(self, op: Op, error: Any) -> Reply:
        if b"bad" in op.wire:
            raise ValueError("the policy's own")
        return super().answer(op, error)


@pytest.mark.parametrize("at", ["saw", "answer", "holds"])
async def test_others_of_its_batch_are_answered(redis_url: str, at: str) -> None:
    """And the key that nobody was told of is freed."""
    policy = FaultyPolicy(at)
    async with (
        Dedup(redis_url, namespace="t", timeout=5.0, on_unavailable=policy) as dedup,
        Dedup(redis_url, namespace="t", timeout=5.0) as other,
    ):
        keys = ["a", "bad", "b", "bad", "c"]
        async with asyncio.timeout(5.0):
            answers = await asyncio.gather(*[dedup.claim(key) for key in keys], return_exceptions=True)
        for key, answer in zip(keys, answers, strict=True):
            assert isinstance(answer, ValueError) if key == "bad" else answer.acquired  # type: ignore[union-attr]
        engine = dedup.gate.connection.engine
        assert engine is not None
        await wait_until(lambda: not engine.pending, description="nothing is left")
        await acquired(other, "bad")


@pytest.mark.parametrize("at", ["saw", "answer", "holds"])
async def test_a_list_that_fails_holds_nothing(redis_url: str, at: str) -> None:
    """Wherever it fails: before the rest is sent, or when the replies come."""
    async with (
        Dedup(redis_url, namespace="t", timeout=5.0, on_unavailable=FaultyPolicy(at)) as dedup,
        Dedup(redis_url, namespace="t", timeout=5.0) as other,
    ):
        for options in ({}, {"wait": 1.0}):
            with pytest.raises(ValueError, match="the policy's own"):
                await dedup.claim_many(["a", "b", "bad", "c"], **options)

        async def all_taken() -> bool:
            claims = await other.claim_many(["a", "b", "bad", "c"], owner="w2")
            return all(claim.acquired for claim in claims)

        await wait_until(all_taken, description="another caller acquires the keys")


async def test_a_list_that_fails_while_others_are_under_way_holds_nothing(
    redis_url: str, redis_server: RedisServer
) -> None:
    """What it had accepted waits for its turn then, and must not be sent for nobody."""
    async with (
        proxied(redis_server) as proxy,
        Dedup(proxy.url, namespace="t", timeout=5.0, on_unavailable=FaultyPolicy("holds")) as dedup,
        Dedup(redis_url, namespace="t", timeout=5.0) as other,
    ):
        engine = dedup.gate.connection.engine
        assert engine is not None
        proxy.hold()
        under_way = []
        for number in range(4):
            under_way.append(asyncio.ensure_future(dedup.claim(f"x{number}")))
            await wait_until(lambda n=number: engine.in_flight > n, description="it is under way")
        with pytest.raises(ValueError, match="the policy's own"):
            await dedup.claim_many(["a", "b", "bad"])
        proxy.forward()
        await asyncio.gather(*under_way)
        await wait_until(lambda: not engine.pending, description="nothing is left")
        claims = await other.claim_many(["a", "b"])
        assert all(claim.acquired for claim in claims)


class Careless(Reject):
    """Fails for each operation."""

    def answer(self, op: Op, error: UnavailableError) -> NoReturn:
        raise ValueError("the policy's own")


async def test_what_a_list_cannot_give_back_in_an_outage_is_freed_afterwards() -> None:
    """If the policy failed for its release, a claim of a cancelled list kept its key until its lease ended."""
    store = FakeStore()
    async with Dedup(store, on_unavailable=Careless()) as dedup, Dedup(store) as other:
        await other.claim("held")
        listing = asyncio.ensure_future(dedup.claim_many(["free", "held"], wait=60))
        await wait_until(lambda: probe(dedup).waiting, description="it waits for the held key")
        with store.outage("refused"):
            await cancel(listing)
        await acquired(other, "free", deadline=5.0)


async def test_a_use_that_cannot_be_undone_in_an_outage_is_undone_afterwards() -> None:
    """As synchronous code does if its caller was interrupted. The token stayed used if the policy failed."""
    store = FakeStore()
    async with Dedup(store, on_unavailable=Careless()) as dedup:
        token = await dedup.tokens.issue()
        use = await dedup.tokens.use(token, None, None)
        with store.outage("refused"):
            dedup.gate.release_later(*use.settlement.held_key, consumed=True)
            await wait_until(lambda: not probe(dedup).unfinished, description="it was refused")
        assert await dedup.tokens.consume(token) is Outcome.ACQUIRED


async def test_a_lease_that_shall_end_soon_ends_if_the_policy_fails() -> None:
    """If the policy failed for the renewal, the key was held for the rest of its lease."""
    store = FakeStore()
    async with Dedup(store, on_unavailable=Careless()) as dedup, Dedup(store) as other:
        claim = await dedup.claim("k", lease=600.0)
        store.outage.start("refused", times=1)
        assert isinstance(await claim.settlement.free(after=1.0), ValueError)
        await wait_until(lambda: not probe(dedup).orphans, description="the store has the shorter lease")
        store.clock.advance(2.0)
        assert (await other.claim("k")).acquired


async def test_a_release_without_an_answer_is_no_success_if_the_policy_fails() -> None:
    """The end of the block then completed the claim whose release the body had asked for."""
    store = FakeStore()
    async with Dedup(store, on_unavailable=Careless()) as dedup, Dedup(store) as other:
        async with dedup.claim("k") as claim:
            store.outage.start("lost_reply", times=1)
            with pytest.raises(ValueError, match="the policy's own"):
                await claim.release()
        await acquired(other, "k", deadline=10.0)


async def test_a_claim_that_the_policy_spoilt_is_freed_if_the_policy_fails_again() -> None:
    """Its caller got the policy's error. If its release had no answer, the key was held until the lease ended."""
    store = FakeStore()

    class Confused(LocalLRU):
        def saw(self, op: Op, reply: Reply) -> NoReturn:
            store.outage.start("refused", times=1)  # for the release
            raise ValueError("the policy's own")

        answer = Careless.answer

    async with Dedup(store, on_unavailable=Confused()) as dedup, Dedup(store) as other:
        with pytest.raises(ValueError, match="the policy's own"):
            await dedup.claim("k")
        await acquired(other, "k", deadline=5.0)


# A process whose clock was ahead made fences in an outage that fell afterwards, or that the store did not
# adopt.


HOUR = 3600.0


@pytest.mark.parametrize("ahead", [30.0, -HOUR, 72 * HOUR])
@pytest.mark.parametrize("has_asked", [False, True], ids=["only connected", "has asked before"])
async def test_local_fences_follow_the_stores_clock(site: Site, ahead: float, has_asked: bool) -> None:
    """Between the fences that the store gave before the outage and those that it gives afterwards."""
    before, end = clock_us(site.server), time.monotonic
    started = end()
    gate = await site.gate(clock=lambda: time.time() + ahead)
    if has_asked:
        await gate.dedup.claim("another", lease=60)
    site.strike()
    fences = []
    for _ in range(3):
        async with gate.dedup.lock("k", lease=60) as lock:
            assert lock.degraded
            fences.append(lock.fence)
    await site.come_home(gate)
    assert before < fences[0] < fences[1] < fences[2]
    assert fences[2] < before + (end() - started) * 1_000_000
    assert gate.of(Unreplayed) == []
    async with gate.dedup.lock("k", lease=60) as lock:
        assert (lock.degraded, lock.fence > fences[2]) == (False, True)


async def store_is_heard(dedup: Dedup) -> None:
    """Wait until a gate knows its store's clock. One that the store did not answer in time goes by its own."""

    async def answers() -> bool:
        return not (await dedup.claim("first", lease=60)).degraded

    await wait_until(answers, description="the store answers")


async def test_a_fence_rises_after_adoption_and_expiry(site: Site) -> None:
    """Another process, which has not seen the local fence, asks after the record has expired."""
    gate, other = await site.gate(clock=lambda: time.time() + 30.0), await site.gate()
    await store_is_heard(gate.dedup)
    site.strike()
    claim = await gate.dedup.claim("k", lease=60)
    assert claim.degraded
    await site.come_home(gate)
    with site.server.client() as raw:
        raw.flushdb()  # the record has expired
    assert (await other.dedup.claim("k")).fence > claim.fence


async def test_the_time_since_the_store_was_heard_counts(site: Site) -> None:
    """Else another process's claim, made since, would have the higher fence."""
    ours, theirs = await site.gate(clock=lambda: time.time() + 30.0), await site.gate()
    await store_is_heard(ours.dedup)
    async with theirs.dedup.lock("k", lease=60) as lock:
        fence = lock.fence
    site.strike()
    claim = await ours.dedup.claim("k", lease=60)
    assert (claim.degraded, claim.fence > fence) == (True, True)


async def test_local_fences_before_a_sidecar_follow_its_stores_clock(own_redis: RedisServer) -> None:
    with Sidecar(own_redis.url) as sidecar:
        before = clock_us(own_redis)
        policy = LocalLRU(clock=lambda: time.time() + HOUR)
        async with Dedup(sidecar.url, namespace="t", on_unavailable=policy) as dedup:
            first = await dedup.claim("first")
            sidecar.kill()
            claim = await dedup.claim("k")
            assert (first.degraded, claim.degraded) == (False, True)
            assert before < first.fence < claim.fence < clock_us(own_redis)


async def test_a_process_that_never_heard_the_store_uses_its_own_clock() -> None:
    policy, nobody = LocalLRU(clock=lambda: 1_000.0), "redis://localhost:1/0"
    async with Dedup(nobody, namespace="t", on_unavailable=policy) as dedup:
        claim: Any = await dedup.claim("k")
        assert 1_000_000_000 <= claim.fence < 1_000_002_000


async def test_a_record_with_an_absurd_fence_spoils_no_other_keys_fences(site: Site) -> None:
    """Its own key's fences go on from there; those of the others are the store's time."""
    fence = 2**52
    record = b"\1P" + fence.to_bytes(7, "big") + bytes(5) + b"\1\0\1\0" + b"0123456789"
    with site.server.client() as raw:
        raw.set("shop:=bad", record, px=60_000)
    gate = await site.gate()
    assert (await gate.dedup.claim("bad", lease=60)).fence == fence + 1
    now_us = clock_us(site.server)
    site.strike()
    good = await gate.dedup.claim("good", lease=60)
    assert (good.degraded, good.fence < now_us + HOUR * 1_000_000) == (True, True)


# Two nodes of a Cluster were down and one returned, but its keys stayed local as long as the other was
# down. Reconciling stopped at the first line that was refused. Meanwhile another process acquired the keys,
# and each of them was a conflict later.


TIMEOUT = 0.3
EACH = 600
"""Keys of each node: more than reconciling sends at once."""
LEASE = 600
SOON = 8.0
"""Seconds in which a node that returned is found: the Cluster itself takes about two of them."""


class Outage(HeardGate):
    """Two nodes are down, and what a gate with `LocalLRU` answers meanwhile."""

    def __init__(self, cluster: ClusterGroup) -> None:
        self.returning, self.dead, _ = cluster.primaries()
        self.theirs = keys_of(cluster, self.returning)
        self.lost = keys_of(cluster, self.dead)
        self.policy = LocalLRU()
        super().__init__(
            cluster.url, namespace="t", timeout=TIMEOUT, known_duplicates=0, on_unavailable=self.policy
        )


def keys_of(cluster: ClusterGroup, member: Member) -> list[str]:
    (span,) = [span for span, owner in cluster.spans() if owner is member]
    numbered = (f"key-{number}" for number in range(100_000))
    found = (key for key in numbered if slot_of(b"t:=" + key.encode()) in span)
    return [next(found) for _ in range(EACH)]


@asynccontextmanager
async def outage() -> AsyncIterator[tuple[Outage, Dedup]]:
    """Claim keys of both nodes in turn; yield that, and a gate in another process."""
    with ClusterGroup(replicas=0) as cluster:
        found = Outage(cluster)
        async with found, Dedup(cluster.url, namespace="t", timeout=TIMEOUT) as other:
            await asyncio.gather(found.dedup.get("warm"), other.get("warm"))
            found.returning.freeze()
            found.dead.freeze()
            keys = list(chain.from_iterable(zip(found.lost, found.theirs, strict=True)))
            claims = await found.dedup.claim_many(keys, lease=LEASE)
            assert all(claim.acquired and claim.degraded for claim in claims)
            yield found, other


async def test_a_returning_node_gets_its_keys_while_another_is_down() -> None:
    async with outage() as (found, other):
        found.returning.thaw()
        await wait_until(lambda: found.policy.lines == EACH, description="the keys came home", deadline=SOON)
        claims = await other.claim_many(found.theirs)
        assert {claim.outcome for claim in claims} == {Outcome.IN_PROGRESS}
        again = await found.dedup.claim_many(found.theirs)
        assert not any(claim.degraded for claim in again)
        assert sum(event.adopted for event in found.of(Replayed)) == EACH
        found.dead.thaw()
        await wait_until(lambda: not found.policy.lines, description="the others came home", deadline=SOON)
        assert found.of(Conflict) == []
