"""A settling without a reply: it is repeated, told and counted for what it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from math import inf, nan
from typing import Any

import pytest
import redis
from prometheus_client import CollectorRegistry, generate_latest

from fastdedup import ClaimLostError, ConfigError, Dedup, UnavailableError, UsageError
from fastdedup.events import Event, LeaseLost
from fastdedup.integrations.prometheus import watch
from fastdedup.kernel.operations import ForgetOp, Op, Reply
from fastdedup.kernel.verbs import Verb
from fastdedup.stores.memory import MemoryStore
from fastdedup.testing import FakeStore, fake_sync_dedup

from ..faces import each_face, gate_of, told
from ..proxy import Fate, Proxy, proxied
from ..servers import RedisServer
from ..sidecar.running import Sidecar as Served
from ..sidecar.running import figure
from ..sidecars import Sidecar
from ..waiting import wait_until

# A settling that was sent again, to a store that has lost the record.


@pytest.mark.parametrize("ttl", [None, 30])
@pytest.mark.parametrize("how", ["complete", "fail"])
async def test_an_outcome_that_the_store_has_lost_is_not_recorded(
    own_redis: RedisServer, how: str, ttl: float | None
) -> None:
    """It returned as if it were: a Redis that came back empty answers the second try, and no other owner has the key.

    Its record would have outlived the second try, even if that is for less time than the lease.
    """
    told: list[Event] = []
    async with Dedup(own_redis.url, namespace="t", timeout=5.0, on_event=told.append) as dedup:
        claim = await dedup.claim("k", lease=60)
        await dedup.claim("another")  # its connection waits for nothing
        own_redis.kill()
        own_redis.start()
        with pytest.raises(UnavailableError, match="the store answers again without the record") as caught:
            await getattr(claim, how)("done", ttl=ttl)
        assert caught.value.unrecorded
        assert [event.key for event in told if isinstance(event, LeaseLost)] == ["k"]
        with pytest.raises(ClaimLostError):
            await getattr(claim, how)("done")
        assert (await dedup.claim("k")).acquired


@pytest.mark.parametrize("how", ["complete", "fail"])
async def test_a_store_that_lost_its_data_before_has_lost_the_claim(own_redis: RedisServer, how: str) -> None:
    """The pages said UnavailableError; but nothing was sent, so this is the answer for a forgotten key."""
    async with Dedup(own_redis.url, namespace="t", timeout=5.0) as dedup:
        claim = await dedup.claim("k", lease=60)
        own_redis.kill()
        own_redis.start()
        assert (await dedup.claim("another")).acquired  # it is connected again
        with pytest.raises(ClaimLostError, match="the store lost its data; nothing was changed") as caught:
            await getattr(claim, how)("done")
        assert not caught.value.outage


# `complete(ttl=0.01)` whose reply was lost said "nothing was changed", although it was recorded.


every_way = pytest.mark.parametrize("by_sidecar", [False, True], ids=["redis", "sidecar"])


@asynccontextmanager
async def gate(server: RedisServer, by_sidecar: bool) -> AsyncIterator[tuple[Dedup, Proxy, Dedup]]:
    """A gate whose replies a proxy may lose, and another one straight to the server."""
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(proxied(server))
        url = proxy.url
        if by_sidecar:
            sidecar = Sidecar(proxy.url, timeout=5.0)
            stack.callback(sidecar.stop)
            await asyncio.to_thread(sidecar.start)
            url = sidecar.url
        dedup = await stack.enter_async_context(Dedup(url, namespace="t", timeout=5.0))
        other = await stack.enter_async_context(Dedup(server.url, namespace="t", timeout=5.0))
        yield dedup, proxy, other


async def loses_the_reply(dedup: Dedup, proxy: Proxy, other: Dedup, work: Any) -> None:
    """Let Redis act; its record is gone before the same is sent again."""
    proxy.hold()
    settling = asyncio.ensure_future(work)

    async def gone() -> bool:
        return await other.get("k") is None

    await wait_until(gone, description="the record has expired")
    proxy.cut()
    proxy.forward()
    await settling


@every_way
@pytest.mark.parametrize("how", ["complete", "fail"])
async def test_a_settling_that_was_recorded_is_not_lost(
    redis_url: str, redis_server: RedisServer, by_sidecar: bool, how: str
) -> None:
    async with gate(redis_server, by_sidecar) as (dedup, proxy, other):
        claim = await dedup.claim("k", lease=60)
        await loses_the_reply(dedup, proxy, other, getattr(claim, how)("done", ttl=0.01))
        assert not claim.lost


@pytest.mark.parametrize("ledger", [False, True])
async def test_a_release_over_a_wire_whose_reply_was_lost_is_not_known(
    redis_url: str, redis_server: RedisServer, ledger: bool
) -> None:
    """It said that nothing was changed; then OK, also to a stale owner whose key stayed settled or another's."""
    named = ["REMEMBER", "orders"] if ledger else []
    async with proxied(redis_server) as proxy, Dedup(redis_url) as other:
        remember = other.ledger("orders", window=60, capacity=1000) if ledger else None
        text = f'url = "{proxy.url}"\ntimeout = 5.0\n[ledgers.orders]\nwindow = 60\ncapacity = 1000\n'
        sidecar = await asyncio.to_thread(Served(config=text).__enter__)

        async def acquired() -> bool:
            return (await other.claim("k", remember=remember)).acquired

        try:
            with sidecar.client() as client:
                owner = (await asyncio.to_thread(client.execute_command, "FD.CLAIM", "k", *named))[1]
                proxy.hold()
                ask = asyncio.to_thread(client.execute_command, "FD.RELEASE", "k", owner, *named)
                releasing = asyncio.ensure_future(ask)
                await wait_until(acquired, description="another owner has the key")
                proxy.cut()
                proxy.forward()
                with pytest.raises(redis.ResponseError, match=r"CLAIMLOST .* not known"):
                    await releasing
        finally:
            await asyncio.to_thread(sidecar.__exit__)


async def test_a_store_for_tests_tells_of_an_outcome_that_is_lost_like_redis() -> None:
    """It said that another owner may have the key, although only its reply was lost, and the key was forgotten."""
    store = FakeStore()
    async with Dedup(store) as dedup:
        claim = await dedup.claim("k", lease=60)
        forget = ForgetOp(claim.settlement.op.wire)
        store.outage.on_stop.append(lambda: store.apply(Verb.FORGET, [forget]))
        store.outage.start("lost_reply", times=1)
        with pytest.raises(UnavailableError, match="the store answers again without the record"):
            await claim.complete("done")


async def test_a_result_that_comes_too_late_for_another_call_of_the_owner_is_no_lost_data(
    redis_server: RedisServer,
) -> None:
    """Its reply was lost as well: the second sending was told that the store has lost its data."""
    async with proxied(redis_server) as proxy, Dedup(proxy.url, namespace="t", lease=60.0) as dedup:
        first, twin = [await dedup.claim("twins", owner="me") for _ in range(2)]
        await first.complete()
        fates = [Fate.LOSE]
        proxy.follow(lambda name: fates.pop() if fates and name == "settle" else Fate.PASS)
        with pytest.raises(ClaimLostError) as caught:
            await twin.complete("result")
        assert not fates
        assert not caught.value.outage


# What took effect without a reply is this owner's own: saying it otherwise afterwards is no lost lease.
# `fail()` raised ClaimLostError, with a LeaseLost event, where the record that it met was its own owner's
# success.


DONE = {"complete": "completed", "fail": "failed", "release": "released"}
ORDERS = [(first, then, True, True) for first in DONE for then in DONE if first != then]
ENDS = [("complete", "fail", True, False), ("release", "complete", False, True)]


async def settled_unheard(proxy: Any, settling: Any, verb: str, *, cancels: bool) -> None:
    """Settle, so that it takes effect and its reply is lost; then the caller gives up."""
    proxy.follow(lambda name: Fate.LOSE if name == verb else Fate.PASS)
    if cancels:
        task = asyncio.ensure_future(settling)
        await wait_until(lambda: proxy.lost[verb], description="it has taken effect")
        task.cancel()
        with pytest.raises((asyncio.CancelledError, UnavailableError)):
            await task
    else:
        with pytest.raises(UnavailableError):
            await settling


@pytest.mark.parametrize(("first", "then", "cancels", "unread"), [*ORDERS, *ENDS])
async def test_what_took_effect_stands(
    redis_server: RedisServer, first: str, then: str, cancels: bool, unread: bool
) -> None:
    """`unread`: the record cannot be looked at, at first."""
    events: list[Event] = []
    options: dict[str, Any] = {"namespace": "t", "lease": 60.0, "timeout": 0.3, "on_event": events.append}
    async with proxied(redis_server) as proxy, Dedup(proxy.url, **options) as dedup:
        claim = await dedup.claim(f"{first}-{then}-{cancels}-{unread}")
        settling = claim.release() if first == "release" else getattr(claim, first)(within=0.1)
        verb = "release" if first == "release" else "settle"
        await settled_unheard(proxy, settling, verb, cancels=cancels)
        proxy.follow(lambda name: Fate.CUT if name in (verb, "read") and unread else Fate.PASS)
        if unread:
            with pytest.raises((UnavailableError, UsageError)):
                await (claim.release() if then == "release" else getattr(claim, then)(within=0.2))
        proxy.forward()
        answers: list[str] = []

        async def refused() -> bool:
            try:
                await getattr(claim, then)()
            except UnavailableError:
                return False
            except UsageError as error:
                answers.append(str(error))
            return True

        await wait_until(refused, description="it says what stands")
        assert answers == [f"this claim was {DONE[first]} already; settle it once"]
        assert not claim.lost
    assert not [event for event in events if isinstance(event, LeaseLost)]


class Slow(MemoryStore):
    """A store that answers a renewal or a settling only once `settled` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.renewing, self.settled = asyncio.Event(), asyncio.Event()

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        if verb is Verb.RENEW:
            self.renewing.set()
            await self.settled.wait()
        replies = await super().execute(verb, ops)
        if verb is Verb.SETTLE:
            await self.settled.wait()
        return replies


async def test_a_renewal_under_way_loses_no_claim_that_is_being_settled() -> None:
    """The lease ends with both under way: ClaimLostError was raised inside of a `complete` that was recorded."""
    store, events = Slow(), list[Event]()
    async with Dedup(store, lease=0.5, timeout=30.0, on_event=events.append) as dedup:
        async with dedup.claim("k", renew=True) as claim:
            renewal: Any = claim.settlement.renewal
            await store.renewing.wait()
            completing = asyncio.create_task(claim.complete("done"))
            await wait_until(renewal.task.done, description="the lease has ended")
            store.settled.set()
            await completing
        assert (await dedup.claim("k")).result == "done"
    assert not events


# A completion that goes through an outage is counted once, by what came of it in the end. Each of its tries
# was counted as refused, so that the alert for refused operations fired for work that was recorded.


@pytest.mark.parametrize("given_up", [False, True])
async def test_a_completion_through_an_outage_is_counted_once(given_up: bool) -> None:
    registry, store, events = CollectorRegistry(), FakeStore(), []
    dedup = Dedup(store, namespace="shop", lease=30.0, on_event=events.append)
    watch(dedup, registry=registry)
    async with dedup:
        claim = await dedup.claim("order:42")
        store.outage.start("refused")
        completing = asyncio.ensure_future(claim.complete("done", within=0.2 if given_up else None))
        await wait_until(lambda: len(events) >= 2, description="it has tried twice")
        if given_up:
            with pytest.raises(UnavailableError):
                await completing
        store.outage.stop()
        await completing if not given_up else None
    text = generate_latest(registry).decode()
    counts = [
        figure(text, "fastdedup_operations_total", verb="complete", outcome=outcome)
        for outcome in ("ok", "unavailable")
    ]
    assert counts == ([0, 1] if given_up else [1, 0])


# `complete(within=...)` took text, a negative number and infinity. `fastdedup.sync` had no `within` at all.


@each_face
@pytest.mark.parametrize("within", ["1", -1, inf, nan, True, timedelta(seconds=-1)])
@pytest.mark.parametrize("how", ["complete", "fail"])
async def test_within_that_is_no_time_is_refused(redis_url: str, how: str, within: Any, face: str) -> None:
    """And the claim is still live."""
    async with gate_of(face, redis_url, namespace="t") as dedup:
        claim = await told(dedup.claim("k"))
        with pytest.raises(ConfigError, match="within"):
            await told(getattr(claim, how)(within=within))
        await told(claim.complete("done", within=1))
        assert (await told(dedup.claim("k"))).result == "done"


@each_face
@pytest.mark.parametrize("within", [0, 0.5, 2, timedelta(seconds=1), None])
async def test_within_that_is_a_time_is_taken(redis_url: str, within: Any, face: str) -> None:
    async with gate_of(face, redis_url, namespace="t") as dedup:
        claim = await told(dedup.claim("k"))
        await told(claim.complete("done", within=within))
        assert (await told(dedup.claim("k"))).result == "done"


@pytest.mark.parametrize("within", [0, 0.1])
@pytest.mark.parametrize("how", ["complete", "fail"])
def test_synchronous_code_gives_up_within_its_time(how: str, within: float, store: FakeStore) -> None:
    """Not at the end of the lease, an hour later; and it may be tried again."""
    dedup = fake_sync_dedup(store, lease=3_600.0, failure_ttl=60.0)
    claim = dedup.claim("k")
    began = time.monotonic()
    with store.outage(), pytest.raises(UnavailableError) as refused:
        getattr(claim, how)("done", within=within)
    assert time.monotonic() - began < 20.0
    assert refused.value.unrecorded
    claim.complete("done")
    assert dedup.claim("k").result == "done"
    dedup.close()
