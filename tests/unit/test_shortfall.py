"""Too few replicas: said on the answer and as an event, or raised, by choice. The store is a double that says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import pytest

from fastdedup import Claim, Dedup, LocalLRU, Outcome, ShortfallError, UnavailableError
from fastdedup.events import BreakerOpened, Event, Shortfall
from fastdedup.kernel.codes import Code
from fastdedup.kernel.operations import Op, Reply, Verdict
from fastdedup.kernel.replies import TransitionReply
from fastdedup.kernel.verbs import Verb
from fastdedup.stores.memory import MemoryStore
from fastdedup.sync import Dedup as SyncDedup

from ..waiting import cancel, wait_until


class LoneStore(MemoryStore):
    """Does everything, and says that no replica confirmed it, for the verbs named."""

    def __init__(self) -> None:
        super().__init__()
        self.unconfirmed = set(Verb)
        self.resends = False
        """Execute each claim twice, as if the first reply was lost."""
        self.drops: set[Verb] = set()
        """Do not execute the next batch of such a verb."""
        self.confirms_repeats = False
        """Say that the replicas confirmed the claims of an owner that held the key before."""

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        if verb in self.drops:
            self.drops.remove(verb)
            raise UnavailableError("the network has dropped it")
        replies = await super().execute(verb, ops)
        if self.resends and verb is Verb.CLAIM:
            replies = await super().execute(verb, ops)
        return [self._marked(reply) for reply in replies] if verb in self.unconfirmed else replies

    def _marked(self, reply: Reply) -> Reply:
        if isinstance(reply, Verdict) and self.confirms_repeats and not reply.fresh:
            return reply
        if isinstance(reply, Verdict | TransitionReply):
            reply.underreplicated = isinstance(reply, TransitionReply) or reply.outcome is Outcome.ACQUIRED
        return Code.UNCONFIRMED if reply is Code.OK else reply


@asynccontextmanager
async def gate(choice: Any, **options: Any) -> AsyncIterator[tuple[Dedup, LoneStore, list[Event]]]:
    store, events = LoneStore(), []
    dedup = Dedup(store, namespace="shop", on_shortfall=choice, on_event=events.append, **options)
    dedup.gate.connections.common.replicas = 2  # with a store of one's own it is the store's setting
    async with dedup:
        yield dedup, store, events


async def test_reported_on_the_claim_and_as_an_event() -> None:
    async with gate("report") as (dedup, _, events):
        claim = await dedup.claim("order:7")
        assert (claim.acquired, claim.confirmed) == (True, False)
        assert events == [Shortfall("shop", "claim", "order:7", 2)]
        await claim.complete("done")
        again = await dedup.claim("order:7")
        assert (again.result, again.confirmed) == ("done", True), "a replay writes nothing"
        assert [event.verb for event in events if isinstance(event, Shortfall)] == ["claim", "complete"]


async def test_reported_of_every_verb_without_changing_its_answer() -> None:
    async with gate("report") as (dedup, _, events):
        claim = await dedup.claim("k")
        await claim.renew()
        await claim.touch()
        await claim.release()
        token = await dedup.tokens.issue()
        assert await dedup.tokens.consume(token) is Outcome.ACQUIRED
        orders = dedup.machine("o", initial="a", transitions={"a": ("b",), "b": ()})
        move = await orders.transition("1", to="b")
        assert (move.changed, move.confirmed) == (True, False)
        assert await dedup.forget("k") is True
        verbs = [event.verb for event in events if isinstance(event, Shortfall)]
        assert verbs == ["claim", "renew", "touch", "release", "issue", "claim", "transition", "forget"]


@pytest.mark.parametrize("options", [{}, {"wait": 1.0}, {"renew": True}, {"owner": "me"}])
async def test_a_claim_that_raises_is_freed(options: Any) -> None:
    """Nobody was told that it is theirs."""
    async with gate("raise") as (dedup, store, _):
        with pytest.raises(ShortfallError, match="fewer than 2 replicas"):
            await dedup.claim("k", **options)
        store.unconfirmed.clear()
        claim = await dedup.claim("k")
        assert (claim.acquired, claim.attempt) == (True, 2)


async def test_a_use_that_raises_is_not_known_to_the_policy() -> None:
    """It is undone as soon as the store answers, so an outage before that must not repeat it."""
    policy = LocalLRU()
    async with gate("raise", on_unavailable=policy) as (dedup, store, _):
        store.unconfirmed = {Verb.CLAIM}
        token = await dedup.tokens.issue()
        with pytest.raises(ShortfallError):
            await dedup.tokens.consume(token)
        assert policy.records.entry(dedup.tokens.wire(token)) is None


async def test_a_claim_whose_caller_left_as_it_was_answered_is_not_known_to_the_policy() -> None:
    """The engine frees it, and the policy hears of that: else the key was held here until the lease's end."""
    policy = LocalLRU()
    async with Dedup("memory://", on_unavailable=policy) as dedup:
        await dedup.claim("warm")
        freed = 0
        for turns in range(20):
            asked = asyncio.ensure_future(dedup.claim(f"k{turns}"))
            for _ in range(turns):
                await asyncio.sleep(0)
            if asked.done():
                break
            wire = dedup.gate.claims.wire(f"k{turns}")
            freed += policy.records.entry(wire) is not None
            await cancel(asked)
            await wait_until(lambda wire=wire: policy.records.entry(wire) is None, description="it is free")
        assert freed, "one was cancelled after the store had answered"


@pytest.mark.parametrize("options", [{}, {"wait": 1.0}, {"renew": True}])
async def test_a_resent_claim_that_raises_is_freed(options: Any) -> None:
    """The store reports the claim as its owner's own, but its caller was never told."""
    async with gate("raise") as (dedup, store, _):
        store.resends = True
        with pytest.raises(ShortfallError):
            await dedup.claim("k", **options)
        with pytest.raises(ShortfallError):
            await dedup.claim_many(["k", "l"])
        store.unconfirmed.clear()
        claims = await dedup.claim_many(["k", "l"])
        assert [(claim.acquired, claim.attempt) for claim in claims] == [(True, 3), (True, 2)]


async def test_a_resent_use_that_raises_is_undone() -> None:
    async with gate("raise") as (dedup, store, _):
        store.unconfirmed, store.resends = {Verb.CLAIM}, True
        token = await dedup.tokens.issue()
        with pytest.raises(ShortfallError):
            await dedup.tokens.consume(token)
        store.unconfirmed.clear()
        assert await dedup.tokens.consume(token) is Outcome.ACQUIRED


@pytest.mark.parametrize("listed", [False, True])
async def test_a_call_that_shares_the_owner_keeps_the_key(listed: bool) -> None:
    """Two calls of one name have the acquisition: the replicas confirmed only the later one's."""
    async with gate("raise") as (dedup, store, _):
        store.confirms_repeats = True
        first: Any = dedup.claim_many(["k"], owner="me") if listed else dedup.claim("k", owner="me")
        answers = await asyncio.gather(first, dedup.claim("k", owner="me"), return_exceptions=True)
        shortfall, claim = answers
        assert isinstance(shortfall, ShortfallError)
        assert not isinstance(claim, BaseException)
        assert claim.acquired
        store.unconfirmed.clear()
        assert (await dedup.claim("k")).outcome is Outcome.IN_PROGRESS
        await claim.complete("done")


@pytest.mark.parametrize("listed", [False, True])
async def test_the_last_call_that_shares_the_owner_frees_the_key(listed: bool) -> None:
    async with gate("raise") as (dedup, store, _):
        first: Any = dedup.claim_many(["k"], owner="me") if listed else dedup.claim("k", owner="me")
        answers = await asyncio.gather(first, dedup.claim("k", owner="me"), return_exceptions=True)
        assert [type(answer) for answer in answers] == [ShortfallError, ShortfallError]
        store.unconfirmed.clear()
        claim = await dedup.claim("k")
        assert (claim.acquired, claim.attempt) == (True, 2)


async def test_a_retry_with_the_same_owner_keeps_its_claim() -> None:
    """It was sent before the release, because a batch was due already; then the release freed the retry's claim."""
    async with gate("raise") as (dedup, store, _):

        async def another() -> None:
            with pytest.raises(ShortfallError):
                await dedup.claim("another")
            store.unconfirmed.clear()
            await dedup.claim("a third")

        async def retries() -> Claim:
            with pytest.raises(ShortfallError):
                await dedup.claim("k", owner="me")
            return await dedup.claim("k", owner="me")

        _, claim = await asyncio.gather(another(), retries())
        assert (claim.acquired, claim.attempt) == (True, 2)
        assert (await dedup.claim("k")).outcome is Outcome.IN_PROGRESS


async def test_a_release_that_falls_short_too_is_done() -> None:
    """Looking for its record again would delay the release of the next claim."""
    async with gate("raise") as (dedup, store, _):
        with pytest.raises(ShortfallError):
            await dedup.claim("k")
        connection = dedup.gate.connection
        await wait_until(lambda: not connection.unfinished, description="the release is answered")
        assert not connection.orphans
        store.unconfirmed = {Verb.RELEASE}
        with pytest.raises(ValueError, match="the body"):
            async with dedup.claim("k"):
                raise ValueError("the body")
        assert not connection.orphans
        assert (await dedup.claim("k")).acquired


async def test_a_release_without_an_answer_is_repeated_for_a_named_owner_too() -> None:
    async with gate("raise") as (dedup, store, _):
        store.drops = {Verb.RELEASE}
        with pytest.raises(ShortfallError):
            await dedup.claim("k", owner="me")
        store.unconfirmed.clear()
        assert (await dedup.claim("k")).outcome is Outcome.IN_PROGRESS
        await wait_until(lambda: not store.drops, description="the release was sent")
        claim = await dedup.claim("k", wait=5.0)
        assert (claim.acquired, claim.attempt) == (True, 2)


class LateStore(LoneStore):
    """Says that no replica confirmed the renewals, and the completions of the first 0.3 seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.unconfirmed = {Verb.RENEW, Verb.SETTLE}
        self.until = 0.0

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        if verb is Verb.SETTLE:
            self.until = self.until or monotonic() + 0.3
            if monotonic() > self.until:
                self.unconfirmed.clear()
        return await super().execute(verb, ops)


def test_a_renewal_that_falls_short_gives_synchronous_code_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """`complete` was tried for the renewed lease, and its caller gave up when the first one would have ended."""
    with SyncDedup(LateStore(), on_shortfall="raise") as dedup:
        claim = dedup.claim("k", lease=5.0)
        with pytest.raises(ShortfallError):
            claim.renew(60.0)
        with monkeypatch.context() as patched:
            patched.setattr("fastdedup.sync.loop.GRACE", -4.9)  # as if the first lease ended in 0.1 s
            claim.complete("done")
        assert dedup.claim("k").result == "done"


class Kept(set[Verb]):
    """Verbs that stay: every batch of theirs is dropped."""

    def remove(self, verb: Verb) -> None:
        """Keep it."""


async def test_of_a_list_each_claim_of_a_named_owner_is_freed() -> None:
    """Without an answer only the release of the one that fell short was repeated; the others kept their leases."""
    async with gate("raise") as (dedup, store, _):
        store.drops = Kept({Verb.RELEASE})
        with pytest.raises(ShortfallError):
            await dedup.claim_many(["k", "other"], owner="me")
        store.unconfirmed.clear()
        store.drops = set()
        for key in ("k", "other"):
            claim = await dedup.claim(key, wait=5.0)
            assert (claim.acquired, claim.attempt) == (True, 2)


async def test_a_completion_is_tried_until_enough_replicas_have_it() -> None:
    async with gate("raise") as (dedup, store, events):
        store.unconfirmed = {Verb.SETTLE}
        claim = await dedup.claim("k", lease=0.05)
        with pytest.raises(ShortfallError):
            await claim.complete("done")
        assert sum(isinstance(event, Shortfall) for event in events) > 1
        store.unconfirmed.clear()
        await claim.complete("done")
        assert (await dedup.claim("k")).result == "done"


async def test_a_renewal_that_falls_short_moves_the_end_of_the_lease() -> None:
    """The store has the new lease, and its owner counted on the former one."""
    async with gate("raise") as (dedup, store, _):
        store.unconfirmed = {Verb.RENEW}
        claim = await dedup.claim("k", lease=30.0, renew=True)
        for lease in (600.0, 3.0):
            with pytest.raises(ShortfallError):
                await claim.renew(lease)
            # A sum of floats, less one of them, is not exactly the other.
            assert lease - 3.0 < claim.settlement.lease_left < lease + 1e-6
        await claim.complete()


async def test_it_is_no_outage() -> None:
    """The store is there: the policy is not asked, and the breaker stays closed."""
    async with gate("raise", on_unavailable=LocalLRU()) as (dedup, _, events):
        for _ in range(10):
            with pytest.raises(ShortfallError):
                await dedup.claim("k")
        assert {type(event) for event in events} == {Shortfall}
        assert not any(isinstance(event, BreakerOpened) for event in events)


async def test_every_verb_raises() -> None:
    async with gate("raise") as (dedup, store, _):
        store.unconfirmed = set(Verb) - {Verb.CLAIM}
        claim = await dedup.claim("k")
        for call in (claim.renew, claim.release, dedup.tokens.issue, lambda: dedup.forget("k")):
            with pytest.raises(ShortfallError):
                await call()
        orders = dedup.machine("o", initial="a", transitions={"a": ("b",), "b": ()})
        with pytest.raises(ShortfallError):
            await orders.transition("1", to="b")
