"""What a part of a store sends on to another leaves its batch, and goes through the other part's engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from fastdedup import Dedup, Outcome, UnavailableError
from fastdedup.kernel.operations import Op, Reply
from fastdedup.kernel.replies import Redirect
from fastdedup.kernel.shards import MAX_HOPS, ShardedEngine
from fastdedup.kernel.verbs import Verb
from fastdedup.model import Batching
from fastdedup.stores.base import Store
from fastdedup.stores.memory import MemoryStore

from ..virtual import pass_time, virtual
from ..waiting import wait_until


class Part(MemoryStore):
    """A part that sends some keys on; `held` keeps every answer back."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.sends_on: dict[bytes, Store] = {}
        self.held: asyncio.Future[None] | None = None
        self.down = False
        self.asked: list[list[bytes]] = []

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        self.asked.append([op.wire for op in ops])
        if self.held is not None:
            await self.held
        if self.down:
            raise UnavailableError(f"{self.name} is down")
        mine = [op for op in ops if op.wire not in self.sends_on]
        replies = iter(await super().execute(verb, mine))
        return [Redirect(self.sends_on[op.wire]) if op.wire in self.sends_on else next(replies) for op in ops]


class Moving(MemoryStore):
    """All keys are held by `here`, as far as this knows."""

    def __init__(self) -> None:
        super().__init__()
        self.here, self.there = Part("here"), Part("there")
        self.here_is_gone = False

    def send_on(self, *keys: str) -> None:
        self.here.sends_on = {f"t:={key}".encode(): self.there for key in keys}

    def shard(self, wire: bytes) -> Store:
        return self.here

    batching = Batching.WHOLE

    def shards(self) -> Sequence[Store]:
        return [] if self.here_is_gone else [self.here]


@pytest.fixture
def store() -> Moving:
    return Moving()


def gate(store: Moving) -> Dedup:
    return Dedup(store, namespace="t", timeout=0.2, known_duplicates=0.0)


def nothing_left(dedup: Dedup) -> None:
    router = dedup.gate.connection.running_engine()
    assert isinstance(router, ShardedEngine)
    assert router.pending == 0
    for engine in router.engines.values():
        assert not engine.leaders
        assert not engine.named.open


@virtual
async def test_every_verb_is_answered_by_the_other_part(store: Moving) -> None:
    store.send_on("gone")
    async with gate(store) as dedup:
        here, gone = await asyncio.gather(dedup.claim("stays"), dedup.claim("gone"))
        assert here.acquired
        assert gone.acquired
        await gone.renew()
        await gone.complete("done")
        again = await dedup.claim("gone")
        assert (again.outcome, again.result) == (Outcome.SUCCEEDED, "done")
        async with dedup.lock("gone"):
            pass
        assert await dedup.forget("gone")
        assert (await dedup.claim("gone", owner="me")).acquired
        nothing_left(dedup)
    assert store.there.asked


@virtual
async def test_the_others_of_its_batch_do_not_wait_for_it(store: Moving) -> None:
    """The other part hangs: its own keys are refused after the timeout, and no breaker but its own opens."""
    store.send_on("gone")
    async with gate(store) as dedup:
        store.there.held = asyncio.get_running_loop().create_future()
        started = asyncio.get_running_loop().time()
        gone = asyncio.create_task(dedup.claim("gone"))
        assert (await dedup.claim("stays")).acquired
        assert asyncio.get_running_loop().time() - started < 0.01
        with pytest.raises(UnavailableError, match="no answer within"):
            await gone
        assert asyncio.get_running_loop().time() - started < 0.25, "the time runs from the first sending"
        store.there.held.cancel()
        nothing_left(dedup)


@virtual
async def test_claims_that_follow_go_with_the_one_that_leads(store: Moving) -> None:
    store.send_on("gone")
    async with gate(store) as dedup:
        claims = await asyncio.gather(*(dedup.claim("gone") for _ in range(5)))
        outcomes = sorted(claim.outcome for claim in claims)
        assert outcomes == [Outcome.ACQUIRED] + [Outcome.IN_PROGRESS] * 4
        assert len(store.there.asked) == 1
        nothing_left(dedup)


@virtual
async def test_a_cancelled_claim_does_not_go_on_but_its_followers_do(store: Moving) -> None:
    store.send_on("gone")
    async with gate(store) as dedup:
        store.here.held = asyncio.get_running_loop().create_future()
        leader = asyncio.create_task(dedup.claim("gone"))
        follower = asyncio.create_task(dedup.claim("gone"))
        await pass_time(0.01)
        leader.cancel()
        store.here.held.set_result(None)
        assert (await follower).acquired
        assert store.there.asked == [[b"t:=gone"]]
        nothing_left(dedup)


@virtual
async def test_a_named_claim_that_is_cancelled_there_is_released(store: Moving) -> None:
    store.send_on("gone")
    async with gate(store) as dedup:
        store.there.held = asyncio.get_running_loop().create_future()
        claim = asyncio.create_task(dedup.claim("gone", owner="me"))
        await wait_until(lambda: store.there.asked, description="the claim has gone on")
        claim.cancel()
        store.there.held.set_result(None)
        store.there.held = None
        await wait_until(lambda: len(store.there.asked) == 2, description="it is released")
        assert (await dedup.claim("gone", owner="another")).acquired
        nothing_left(dedup)


@virtual
async def test_a_list_is_answered_where_its_keys_are(store: Moving) -> None:
    keys = [f"key-{number}" for number in range(50)]
    store.send_on(*keys[::2])
    async with gate(store) as dedup:
        assert all(claim.acquired for claim in await dedup.claim_many(keys))
        nothing_left(dedup)


@virtual
async def test_what_is_sent_to_and_fro_ends_in_an_error(store: Moving) -> None:
    store.send_on("lost")
    store.there.sends_on = {b"t:=lost": store.here}
    async with gate(store) as dedup:
        with pytest.raises(UnavailableError, match="the key's slot is being moved"):
            await dedup.claim("lost")
        with pytest.raises(UnavailableError, match="the key's slot is being moved"):
            await dedup.get("lost")
        assert len(store.here.asked) + len(store.there.asked) <= 2 * (MAX_HOPS + 1)
        nothing_left(dedup)


@virtual
async def test_closing_ends_if_a_part_that_has_gone_sends_on_its_last_keys(store: Moving) -> None:
    """The engine of the part that was gone was drained a second time, and the first draining waited for ever."""
    store.send_on("gone")
    dedup = await gate(store).open()
    held = store.here.held = asyncio.get_running_loop().create_future()
    slow = asyncio.create_task(dedup.get("stays"))
    await wait_until(lambda: store.here.asked, description="the first batch is under way")
    store.here.held = asyncio.get_running_loop().create_future()
    quick = asyncio.create_task(dedup.claim("gone"))
    await wait_until(lambda: len(store.here.asked) == 2, description="the second batch is under way")
    closing = asyncio.create_task(dedup.aclose())
    await wait_until(lambda: dedup.gate.connection.engine is None, description="it is being drained")
    store.here_is_gone = True
    store.here.held.set_result(None)
    assert (await quick).acquired
    held.set_result(None)
    assert await slow is None
    async with asyncio.timeout(10):
        await closing


@virtual
async def test_closing_leaves_no_probe_behind_at_a_part_that_got_the_last_keys(store: Moving) -> None:
    """Its engine was made while the others were drained, and was not closed if it had no operation by then."""
    store.send_on("claimed", "read", "forgotten")
    dedup = await gate(store).open()
    slowly = store.here.held = asyncio.get_running_loop().create_future()
    slow = asyncio.create_task(dedup.get("stays"))
    await wait_until(lambda: store.here.asked, description="the first batch is under way")
    held = store.here.held = asyncio.get_running_loop().create_future()
    calls = (dedup.claim("claimed"), dedup.get("read"), dedup.forget("forgotten"))
    sent_on = [asyncio.ensure_future(call) for call in calls]
    await wait_until(lambda: len(store.here.asked) == 2, description="the second batch is under way")
    store.there.down = True
    closing = asyncio.create_task(dedup.aclose())
    await wait_until(lambda: dedup.gate.connection.engine is None, description="it is being drained")
    held.set_result(None)
    for call in sent_on:
        with pytest.raises(UnavailableError, match="there is down"):
            await call
    slowly.set_result(None)
    await slow
    await closing
    store.there.asked.clear()
    with pytest.raises(AssertionError, match="in vain: a probe"):
        await wait_until(lambda: store.there.asked, description="a probe")
