"""Waiters: woken by news, by a store that is back or when their time is over, and nothing is left behind."""

import asyncio
from collections.abc import Callable

import pytest

from fastdedup import Dedup, ShortfallError, UnavailableError
from fastdedup.core.wakeups import OutageWaiters, Wakeups
from fastdedup.events import BreakerClosed, Degraded, Event
from fastdedup.kernel.operations import ClaimOp, Op, Reply, Verdict
from fastdedup.stores.memory import MemoryStore

from ..virtual import EPOCH, Link, pass_time, virtual
from ..waiting import cancel, wait_until


async def test_all_who_wait_for_a_key_are_woken_at_once() -> None:
    """They share one future."""
    waiters = Wakeups()
    with waiters.watch(b"a") as first, waiters.watch(b"a") as second:
        waiters.freed(b"a")
        await asyncio.gather(first, second)


async def test_news_is_heard_once() -> None:
    """Who watches again after it waits for the next."""
    waiters = Wakeups()
    with waiters.watch(b"a") as heard:
        waiters.freed(b"a")
        with waiters.watch(b"a") as later:
            assert heard.done()
            assert not later.done()
            waiters.freed(b"a")
            assert later.done()


async def test_the_last_to_leave_takes_the_entry_along() -> None:
    """Keys are unbounded; what waits must not be."""
    waiters = Wakeups()
    with waiters.watch(b"a"):
        with pytest.raises(ValueError, match="body"), waiters.watch(b"a"):
            raise ValueError("body")
        assert waiters.waiting == {b"a": 1}
    assert (waiters._freed, waiters.waiting) == ({}, {})


async def test_a_freed_lock_wakes_the_first_in_line() -> None:
    waiters = Wakeups()
    with waiters.watch(b"a", in_line=True) as gone:
        pass
    with waiters.watch(b"a", in_line=True) as first, waiters.watch(b"a", in_line=True) as second:
        waiters.freed(b"a")
        assert (gone.done(), first.done(), second.done()) == (False, True, False)
        waiters.wake_next(b"a")
        assert second.done()
    with waiters.watch(b"a", in_line=True) as first, waiters.watch(b"a", in_line=True) as second:
        waiters.freed(None)
        assert (first.done(), second.done()) == (True, True)
        waiters.wake_next(b"a")
    assert (waiters._lines, waiters.waiting) == ({}, {})


@virtual
async def test_a_waiter_that_is_cancelled_when_it_is_woken_leaves_the_lock_to_the_next() -> None:
    """Without waiting for the end of the lease."""
    async with Dedup("memory://") as dedup:
        waiting = dedup.gate.connection.wakeups.waiting

        async def take() -> float:
            async with dedup.lock("k", wait=60.0):
                return asyncio.get_running_loop().time()

        async with dedup.lock("k"):
            tasks = [asyncio.create_task(take()) for _ in range(4)]
            await wait_until(lambda: sum(waiting.values()) == len(tasks), description="all of them wait")
        freed = asyncio.get_running_loop().time()
        await cancel(tasks[0])
        assert [await each - freed < 1.0 for each in tasks[1:]] == [True] * 3
        assert not waiting


class DeafStore(MemoryStore):
    """Takes for ever to subscribe."""

    def __init__(self) -> None:
        super().__init__()
        self.subscribing = False

    async def listen(self, on_freed: Callable[[bytes | None], None]) -> None:
        self.subscribing = True
        await asyncio.Event().wait()


async def test_a_waiting_claim_cancelled_while_it_subscribes_is_just_cancelled() -> None:
    """It holds nothing, so there is nothing to take back."""
    store = DeafStore()
    async with Dedup(store) as dedup:
        holder = await dedup.claim("k")
        waiting = asyncio.create_task(dedup.claim("k", wait=5.0))
        await wait_until(lambda: store.subscribing, description="the claim subscribes")
        await cancel(waiting)
        await holder.release()
        assert (await dedup.claim("k", wait=5.0)).acquired, "who need not wait does not subscribe"


# Waiters in an outage: woken when a part of the store is back or the time is over, and nothing is left
# behind.


@virtual
async def test_all_who_wait_for_a_part_are_woken_when_it_is_back() -> None:
    """And nobody who waits for another part."""
    waiters = OutageWaiters()
    first, second, other = (asyncio.create_task(waiters.wait(part, 60.0)) for part in (b"a", b"a", b"b"))
    await pass_time(1.0)
    assert (waiters.count(b"a"), waiters.count(b"b")) == (2, 1)
    waiters.is_back(b"a")
    await asyncio.gather(first, second)
    assert asyncio.get_running_loop().time() == 1.0
    assert not other.done()
    waiters.are_back()
    await other
    assert waiters.waiting == {}


@virtual
async def test_a_wait_ends_with_its_time() -> None:
    waiters = OutageWaiters()
    await waiters.wait(b"a", 2.0)
    assert asyncio.get_running_loop().time() == 2.0
    assert waiters.waiting == {}


@virtual
async def test_a_cancelled_wait_leaves_nothing() -> None:
    waiters = OutageWaiters()
    task = asyncio.create_task(waiters.wait(b"a", 60.0))
    await pass_time(1.0)
    await cancel(task)
    assert waiters.waiting == {}


@virtual
async def test_who_waits_anew_when_woken_is_counted_anew() -> None:
    waiters = OutageWaiters()

    async def twice() -> None:
        await waiters.wait(b"a", 60.0)
        await waiters.wait(b"a", 60.0)

    tasks = [asyncio.create_task(twice()) for _ in range(3)]
    await pass_time(1.0)
    waiters.is_back(b"a")
    await pass_time(1.0)
    assert waiters.count(b"a") == 3
    waiters.is_back(b"a")
    await asyncio.gather(*tasks)


# Claims that wait while the store is away: when they look again, and who wakes them. In virtual time.


class Gate:
    """A gate on a link, and the times at which a look was refused."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.store = MemoryStore(clock=lambda: EPOCH + self.loop.time())
        self.link = Link(self.store)
        self.refused: list[float] = []
        self.closed: list[float] = []
        self.dedup = Dedup(self.link, namespace="t", known_duplicates=0, on_event=self.note)

    def note(self, event: Event) -> None:
        if isinstance(event, Degraded):
            self.refused.append(self.loop.time())
        elif isinstance(event, BreakerClosed):
            self.closed.append(self.loop.time())

    def cut(self) -> None:
        self.link.down = True

    def mend(self) -> None:
        self.link.down = False

    async def claim(self, number: int, wait: float) -> float:
        """Return when the claim is answered."""
        assert (await self.dedup.claim(f"k{number}", wait=wait)).acquired
        return self.loop.time()


@virtual
async def test_a_refused_claim_looks_again_until_its_time_is_over() -> None:
    gate = Gate()
    async with gate.dedup:
        gate.link.down = True
        with pytest.raises(UnavailableError, match="link is down"):
            await gate.dedup.claim("k", wait=5.0)
        assert gate.loop.time() == pytest.approx(5.0, abs=0.01)
        assert 12 <= len(gate.refused) <= 40
        pauses = [later - earlier for earlier, later in zip(gate.refused, gate.refused[1:], strict=False)]
        assert max(pauses) < 0.41


@pytest.mark.no_cover
@virtual
async def test_many_refused_claims_look_seldom() -> None:
    """A thousand look as often as three thousand do."""
    gate = Gate()
    async with gate.dedup:
        gate.link.down = True
        claims = [gate.dedup.claim(f"k{number}", wait=5.0) for number in range(1000)]
        errors = await asyncio.gather(*claims, return_exceptions=True)
        assert {type(error) for error in errors} == {UnavailableError}
        looks = [moment for moment in gate.refused if 1.0 <= moment < 4.0]
        assert len(looks) / 3.0 < 1500


@pytest.mark.no_cover
@virtual
async def test_all_who_were_refused_are_woken_when_the_store_is_back() -> None:
    gate = Gate()
    async with gate.dedup:
        gate.link.down = True
        claims = [asyncio.create_task(gate.claim(number, 60.0)) for number in range(500)]
        await pass_time(4.0)
        gate.link.down = False
        answered = await asyncio.gather(*claims)
        assert max(answered) - gate.closed[0] < 0.1


@virtual
async def test_the_first_answered_look_wakes_the_others() -> None:
    """The outage was too short for the breaker to open, so no breaker that closes tells them."""
    gate = Gate()
    async with gate.dedup:
        gate.link.down = True
        claims = [asyncio.create_task(gate.claim(number, 60.0)) for number in range(30)]
        await wait_until(lambda: len(gate.refused) == 30, description="all are refused")
        gate.link.down = False
        answered = await asyncio.gather(*claims)
        assert max(answered) - min(answered) < 0.005
        assert not gate.closed


@virtual
async def test_claims_without_a_reply_are_freed_as_soon_as_the_store_is_back() -> None:
    """And not after the pause of what frees them, which is 0.2 to 0.4 s by then."""
    gate = Gate()
    async with gate.dedup, Dedup(gate.store, namespace="t") as other:
        for number in range(3):
            gate.loop.call_later(1.5 * gate.link.latency, gate.cut)  # the claim has taken effect by then
            with pytest.raises(UnavailableError, match="the reply was lost"):
                await gate.claim(number, 0.0)
            with pytest.raises(UnavailableError):
                await gate.dedup.claim("another", wait=4.0)
            gate.loop.call_later(1.0, gate.mend)
            assert (await other.claim(f"k{number}", wait=30.0)).acquired
            assert gate.loop.time() - gate.closed[number] < 0.02


@virtual
async def test_a_shortfall_is_no_reason_to_look_again() -> None:
    """The store answers, so waiting does not help."""

    class Short(MemoryStore):
        def apply(self, op: Op) -> Reply:
            reply = super().apply(op)
            if isinstance(op, ClaimOp) and isinstance(reply, Verdict):
                reply.underreplicated = True
            return reply

    async with Dedup(Short(), on_shortfall="raise") as dedup:
        with pytest.raises(ShortfallError):
            await dedup.claim("k", wait=60.0)
        with pytest.raises(ShortfallError):
            await dedup.claim_many(["l"], wait=60.0)
        assert asyncio.get_running_loop().time() < 1.0
