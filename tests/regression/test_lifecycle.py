"""The life of a gate and its claims: how they begin, end, fail and are called back."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fastdedup import BreakerState, ClaimLostError, Dedup, LocalLRU, Outcome, UnavailableError, UsageError
from fastdedup.claims.call import KnownCall
from fastdedup.gate import recent
from fastdedup.protocol.operations import Op, Reply, Verb
from fastdedup.stores.memory import MemoryStore
from fastdedup.testing import FakeStore

from ..servers import RedisServer
from ..stores import Backend

# Bugs that were found by review, one test each: each failed before its fix.


WaitUntil = Callable[..., Any]


class Moody(MemoryStore):
    """A memory store that can be told to lose replies, to hang, or to refuse its subscription."""

    def __init__(self) -> None:
        super().__init__()
        self.loses: set[Verb] = set()
        self.hangs = False
        self.deaf = False

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        if self.hangs:
            await asyncio.Event().wait()
        replies = await super().execute(verb, ops)
        if verb in self.loses:
            raise UnavailableError("the reply was lost")
        return replies

    async def listen(self, on_freed: Callable[[bytes | None], None]) -> None:
        if self.deaf:
            raise UnavailableError("the channel is not for this user")
        await super().listen(on_freed)


@pytest.mark.parametrize("owner", ["1", "x" * 63, "ü"])
async def test_an_owner_may_be_as_short_and_as_long_as_it_is_said(backend: Backend, owner: str) -> None:
    """One byte made the record shorter than any that Redis's scripts took for a record."""
    async with backend.make() as dedup:
        claim = await dedup.claim("key", owner=owner)
        await claim.renew()
        assert (await dedup.claim("key")).outcome is Outcome.IN_PROGRESS
        record = await dedup.get("key")
        assert record is not None
        assert record.owner == owner
        await claim.complete("done")


async def test_a_claim_from_another_loop_leaves_nothing_behind() -> None:
    """It led a key for ever, and closing waited for it."""
    dedup = await Dedup().open()

    def elsewhere() -> None:
        async def claim() -> None:
            with pytest.raises(UsageError, match="another event loop"):
                await dedup.claim("key")

        asyncio.run(claim())

    await asyncio.to_thread(elsewhere)
    assert (await dedup.claim("key")).acquired
    await dedup.aclose()


async def test_a_cancelled_claim_many_leaves_no_orphan(backend: Backend, wait_until: WaitUntil) -> None:
    async with backend.make() as dedup:
        busy = await dedup.claim("b", lease=60)
        task = asyncio.create_task(dedup.claim_many(["a", "b"], lease=60, wait=60))
        await wait_until(lambda: dedup._namespace.connection.wakeups._count, description="it waits for b")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await busy.release()
        for key in ("a", "b"):

            async def free(key: str = key) -> bool:
                return (await dedup.claim(key)).acquired

            # A claim that had been sent when it was cancelled is released once its reply comes.
            await wait_until(free, description="the cancelled claim is released")


async def test_a_failed_claim_many_frees_only_what_it_took_itself() -> None:
    """The same owner's earlier claim goes on."""
    async with Dedup("memory://?maxsize=2") as dedup:
        mine = await dedup.claim("a", owner="me")
        with pytest.raises(UnavailableError):
            await dedup.claim_many(["a", "b", "c"], owner="me")
        assert (await dedup.claim("b")).acquired
        await mine.complete("kept")


async def test_leaving_does_not_mask_the_bodys_error() -> None:
    dedup = await Dedup().open()

    async def work() -> None:
        async with dedup.claim("key"):
            await dedup.aclose()
            raise ValueError("the body's")

    with pytest.raises(ValueError, match="the body's"):
        await work()


async def test_a_cancelled_body_ends_cancelled_while_closing() -> None:
    """And its claim is freed before the store goes."""
    store = MemoryStore()
    dedup = await Dedup(store).open()
    inside = asyncio.Event()

    async def work() -> None:
        async with dedup.claim("key"):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    await dedup.aclose()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def test_closing_twice_at_once_is_closing_once() -> None:
    dedup = await Dedup().open()
    task = asyncio.create_task(dedup.claim("key"))
    await asyncio.sleep(0)
    await asyncio.gather(dedup.aclose(), dedup.aclose())
    assert (await task).acquired


@pytest.mark.parametrize("policy", [None, LocalLRU()])
async def test_a_refused_subscription_is_no_outage_of_claims(policy: Any) -> None:
    """Wakeups look again every so often instead, and nobody is answered from elsewhere."""
    store = Moody()
    store.deaf = True
    async with Dedup(store, on_unavailable=policy) as dedup:
        first = await dedup.claim("key", lease=60)
        waiter = asyncio.create_task(dedup.claim("key", wait=60))
        await asyncio.sleep(0)
        await first.complete("done")
        claim = await waiter
        assert (claim.result, claim.degraded) == ("done", False)


async def test_forget_reaches_what_every_scope_of_the_namespace_knows() -> None:
    async with Dedup() as dedup:
        one, two = dedup.scoped("s"), dedup.scoped("s")
        claim = await one.claim("key")
        await claim.complete("r")
        assert (await one.claim("key")).result == "r"
        await two.forget("key")
        assert (await one.claim("key")).acquired


async def test_a_body_does_not_outlive_its_lease_while_the_store_hangs() -> None:
    store = Moody()
    async with Dedup(store, timeout=5.0) as dedup:
        loop = asyncio.get_running_loop()
        started = loop.time()

        async def work() -> None:
            async with dedup.claim("key", lease=0.1, renew=True):
                store.hangs = True
                await asyncio.Event().wait()

        with pytest.raises(ClaimLostError):
            await work()
        assert loop.time() - started < 2, "not the store's deadline on top"
        store.hangs = False
        for batch in list(dedup._namespace.connection.engine._batches):  # type: ignore[union-attr]
            assert batch.task is not None
            batch.task.cancel()


async def test_a_cancellation_from_outside_stays_one() -> None:
    """The body had seen that its claim was lost, and went on."""
    async with Dedup() as dedup:
        went_on = asyncio.Event()

        async def work() -> None:
            async with dedup.claim("key") as claim:
                await dedup.forget("key")
                with pytest.raises(ClaimLostError):
                    await claim.renew()
                went_on.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await went_on.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()


async def test_renewal_does_not_stop_a_body_whose_completion_is_recorded(wait_until: WaitUntil) -> None:
    """The reply to `complete` was lost; the body is about to try again."""
    store = Moody()
    async with Dedup(store) as dedup, dedup.claim("key", lease=0.06, renew=True) as claim:
        store.loses = {Verb.SETTLE}
        with pytest.raises(UnavailableError):
            await claim.complete("done")
        store.loses = set()
        renewal = claim._renewal
        assert renewal is not None
        await asyncio.wait([renewal._task], timeout=5)
        assert renewal._task.done()
        await wait_until(lambda: dedup.breaker is BreakerState.CLOSED, description="the store is back")
        await claim.complete("done")
    assert not claim._stopped_body


# Fault: an error of the `on_batch` callback left its batch in the engine: its claim, and `aclose`, never
# ended.


async def test_its_error_stops_no_batch(redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR", "fastdedup")
    sizes: list[int] = []

    def counted(size: int) -> None:
        sizes.append(size)
        raise RuntimeError("the socket of statsd, secret, is gone")

    dedup = Dedup(redis_url, namespace="t")
    dedup.on_batch(counted)
    async with asyncio.timeout(20), dedup:
        for number in range(5):
            assert (await dedup.claim(f"k{number}")).acquired
        assert (dedup.in_flight, dedup.pending) == (0, 0)
    assert len(sizes) >= 5
    (line,) = [each for each in caplog.messages if "on_batch" in each]
    assert line.startswith("the on_batch callback failed: RuntimeError at ")
    assert "secret" not in line


# Fault: a callback that asked a cancelled future for its result, and so raised CancelledError, ended the
# claim.


@pytest.mark.parametrize("callback", ["on_event", "on_batch"])
async def test_it_is_logged_and_changes_no_answer(callback: str, caplog: pytest.LogCaptureFixture) -> None:
    future = asyncio.get_running_loop().create_future()
    future.cancel()

    def asks(_: Any) -> None:
        future.result()

    store = FakeStore()
    dedup = Dedup(store, on_unavailable=LocalLRU(), on_event=asks if callback == "on_event" else None)
    if callback == "on_batch":
        dedup.on_batch(asks)
    async with asyncio.timeout(20), dedup:
        assert (await dedup.claim("before")).acquired
        with store.outage("refused"):
            assert (await dedup.claim("order:42")).degraded
    assert f"the {callback} callback failed" in caplog.text
    assert "CancelledError" in caplog.text


# Fault: while another thread made gates, a claim that learned of a success raised "Set changed size".


async def test_a_claim_does_not_see_them() -> None:
    over = threading.Event()

    def make_gates() -> None:
        while not over.is_set():
            gates = [Dedup("memory://") for _ in range(20)]
            del gates
            gc.collect(0)

    thread = threading.Thread(target=make_gates)
    former = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread.start()
    try:
        async with Dedup("memory://", known_duplicates=5.0) as dedup:
            for number in range(1_500):
                async with dedup.claim(f"k{number}"):
                    pass
                assert not (await dedup.claim(f"k{number}")).acquired
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(former)


# Results of 60,000 keys were still in memory seconds after Redis had been flushed.


KEYS = 20_000
AGE = 0.5
"""Seconds that a success is known for; all are given back within a second more."""


def remembered() -> int:
    """Answers that this process still holds."""
    gc.collect()
    return sum(type(each) is KnownCall for each in gc.get_objects())


async def succeed(dedup: Dedup, keys: range, result: str) -> None:
    """Complete the keys, and hear of each from the store."""
    for start in range(keys.start, keys.stop, 2000):
        part = [str(number) for number in range(start, min(start + 2000, keys.stop))]
        claims = await dedup.claim_many(part)
        await asyncio.gather(*[claim.complete(result) for claim in claims if claim.acquired])
        for claim in await dedup.claim_many(part):
            assert claim.outcome is Outcome.SUCCEEDED


@pytest.mark.no_cover
async def test_memory_is_given_back_where_nothing_more_is_asked(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil
) -> None:
    before = remembered()  # other tests of this process may have left some
    async with Dedup(redis_url, namespace="t", timeout=5.0, known_duplicates=AGE) as dedup:
        await succeed(dedup, range(KEYS), "x" * 200)
        known = dedup._namespace.connection.recent
        assert 0 < len(known) <= recent.MAX_ENTRIES
        with redis_server.client() as raw:
            raw.flushall()
        await wait_until(lambda: not len(known), description="all is given back", deadline=AGE + 1.0)
        assert known.bytes == 0
        assert remembered() <= before


@pytest.mark.no_cover
async def test_the_gates_of_a_process_share_one_bound(redis_url: str) -> None:
    """Of entries as of bytes."""
    before = remembered()
    gates = [
        Dedup(redis_url, namespace=f"t{number}", timeout=5.0, known_duplicates=60) for number in range(3)
    ]
    for gate in gates:
        await gate.open()
    try:
        for gate in gates:
            await succeed(gate, range(6_000), "x" * 200)
        assert sum(len(gate._namespace.connection.recent) for gate in gates) <= recent.MAX_ENTRIES
        for gate in gates:
            await succeed(gate, range(100_000, 100_100), "x" * 200_000)
        assert recent.bytes_held() <= recent.MAX_BYTES
    finally:
        for gate in gates:
            await gate.aclose()
    assert recent.bytes_held() == 0
    assert remembered() <= before
