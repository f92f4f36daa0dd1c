"""One timer starts the renewals of all claims with one lease; what is settled before costs nothing more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fastdedup import ClaimLostError, Dedup, LocalLRU, Outcome, ShortfallError, UnavailableError, UsageError
from fastdedup.core.renewal import RenewalQueue, keep_renewed
from fastdedup.stores.memory import MemoryStore
from fastdedup.testing import FakeStore, fake_dedup

from ..fixtures import async_fixture
from ..virtual import Link, pass_time, virtual
from ..waiting import cancel, wait_until


class Clock:
    """A loop's clock and timers, moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Any:
        self.timers.append((when, callback))
        return self.timers[-1]

    def move_to(self, now: float) -> None:
        self.now = now
        while due := [timer for timer in self.timers if timer[0] <= now]:
            self.timers = [timer for timer in self.timers if timer[0] > now]
            for _, callback in due:
                callback()


class Queue(RenewalQueue):
    """A queue of renewals of 30 seconds, whose time is moved by hand."""

    def __init__(self) -> None:
        self.clock = Clock()
        super().__init__(self.clock, 30.0)  # type: ignore[arg-type]


class Started:
    """Stands in for a renewal, and is added as it is made."""

    def __init__(self, queue: Queue, began: float | None = None) -> None:
        self.began = queue.clock.now if began is None else began
        self.started = False
        queue.add(self)

    def start(self) -> None:
        self.started = True


dedup = async_fixture(lambda: Dedup("memory://"))


def test_renewals_that_are_due_together_let_others_run_between() -> None:
    queue = Queue()
    clock = queue.clock
    renewals = [Started(queue) for _ in range(1000)]
    clock.now = 10.0
    turns = 0
    while clock.timers:
        before = sum(renewal.started for renewal in renewals)
        ((_, callback),) = clock.timers
        clock.timers.clear()
        callback()
        assert sum(renewal.started for renewal in renewals) - before <= 256
        turns += 1
    assert turns >= 4
    assert all(renewal.started for renewal in renewals)


def test_a_thousand_renewals_take_one_timer_and_each_starts_at_its_own_third() -> None:
    queue = Queue()
    clock, renewals = queue.clock, []
    for number in range(1000):
        clock.now = number / 1000
        renewals.append(Started(queue))
    assert len(clock.timers) == 1
    clock.move_to(10.4995)
    assert [renewal.started for renewal in renewals] == [True] * 500 + [False] * 500
    assert len(clock.timers) == 1
    clock.move_to(11.0)
    assert all(renewal.started for renewal in renewals)
    assert not clock.timers


def test_one_that_is_settled_before_never_starts_and_is_not_held() -> None:
    queue = Queue()
    renewal = Started(queue)
    queue.remove(renewal)
    assert not queue.waits
    queue.clock.move_to(10.0)
    assert not renewal.started
    assert not queue.clock.timers


def test_a_lease_that_began_long_before_the_others_does_not_wait_behind_them() -> None:
    """A claim whose block began late was lost: its renewal came a third of a lease after that of a later claim."""
    queue = Queue()
    queue.clock.now = 25.0
    later, nearly, before = (Started(queue, began) for began in (25.0, 24.0, 0.5))
    assert [later.started, nearly.started, before.started] == [False, False, True]
    assert len(queue.waiting()) == 2


async def test_a_renewal_counts_the_lease_from_its_last_beginning(dedup: Dedup) -> None:
    """Of a claim that was renewed by hand, or by the one who answered `resolve=`, before its block began."""
    now = asyncio.get_running_loop().time()
    claim = await dedup.claim("key", lease=30.0)
    life = claim.settlement
    life.op.at = now - 25.0
    assert life.lease_began(now, 30.0) == now - 25.0
    life.op.at = now - 40.0
    assert life.lease_began(now, 30.0) == now - 20.0, "it has ended, so the store is asked at once"
    await claim.renew()
    assert now <= life.lease_began(now + 9.0, 30.0) < now + 9.0
    await claim.renew(600.0)
    assert life.lease_began(now, 30.0) == now


async def test_a_claim_that_a_policy_gave_back_has_what_is_left_of_the_stores_lease() -> None:
    """Later another process may have the key: so the block under it is cancelled by then."""
    store = FakeStore()
    async with fake_dedup(store, timeout=0.05, on_unavailable=LocalLRU()) as dedup:
        assert (await dedup.claim("key", owner="job-1", lease=30.0)).acquired
        with store.outage("refused"):
            store.clock.advance(25.0)
            claim, made_here = await dedup.claim("key", owner="job-1"), await dedup.claim("other")
            now = asyncio.get_running_loop().time()
            assert (claim.acquired, claim.degraded) == (True, True)
            assert claim.settlement.lease_began(now, 30.0) == pytest.approx(now - 25.0, abs=1.0)
            assert made_here.settlement.lease_began(now, 30.0) == now


async def test_leases_made_up_for_each_claim_do_not_pile_up(dedup: Dedup) -> None:
    for number in range(500):
        claim = await dedup.claim(f"key-{number}", lease=10 + number / 10, renew=True)
        await claim.complete()
    assert len(dedup.gate.connection.renewals) <= 64


def test_the_loops_end_leaves_no_renewal_behind() -> None:
    """Closing does: the claims are still their owners'."""
    dedup = Dedup("memory://")

    async def main() -> RenewalQueue:
        await dedup.open()
        claim = await dedup.claim("key", lease=30.0, renew=True)
        queue = dedup.gate.connection.renewals.of(30.0)
        assert queue.waits
        assert claim.acquired
        return queue

    assert not asyncio.run(main()).waits


class HeldClaim:
    """A claim whose renewals end as told, and then well."""

    is_over = under_way = False
    renewed_until = 0.0

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.renewed = asyncio.Event()
        self.lost = asyncio.Event()

    async def renew(self) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.renewed.set()

    def lose(self, *, outage: bool) -> None:
        self.outage = outage
        self.lost.set()


async def test_an_error_of_the_policy_is_no_answer_and_the_renewal_tries_again() -> None:
    """The task ended without a word, and with it the lease."""
    loop = asyncio.get_running_loop()
    claim = HeldClaim(ZeroDivisionError(), UnavailableError("away"))
    work = loop.create_task(keep_renewed(lambda: claim, loop, loop.time() - 1.0, 3.0))
    async with asyncio.timeout(10):
        await claim.renewed.wait()
    assert not work.done()
    work.cancel()


async def test_a_claim_is_lost_where_the_policy_fails_until_the_lease_is_over() -> None:
    loop = asyncio.get_running_loop()
    claim = HeldClaim(*[ZeroDivisionError() for _ in range(100)])
    await keep_renewed(lambda: claim, loop, loop.time(), 1.0)
    assert claim.lost.is_set()
    assert claim.outage
    assert not claim.renewed.is_set()


async def test_a_process_that_stood_still_beyond_its_lease_sends_no_renewal_and_calls_it_no_outage() -> None:
    """It renewed a lease whose body it stopped, and a retry waited for that; the log blamed the store."""
    loop = asyncio.get_running_loop()
    claim = HeldClaim()
    await keep_renewed(lambda: claim, loop, loop.time() - 3.1, 3.0)
    assert claim.lost.is_set()
    assert not claim.outage
    assert not claim.renewed.is_set()


async def test_a_claim_that_is_settled_as_its_lease_ends_is_not_lost() -> None:
    loop = asyncio.get_running_loop()
    claim = HeldClaim()
    claim.is_over = True
    await keep_renewed(lambda: claim, loop, loop.time() - 3.1, 3.0)
    assert not claim.lost.is_set()


class Unanswered(HeldClaim):
    """The store does not answer its renewals."""

    async def renew(self) -> None:
        await asyncio.Event().wait()


@virtual
@pytest.mark.parametrize("claim", [Unanswered(), HeldClaim(ClaimLostError("it is settled"))])
async def test_a_renewal_in_vain_loses_no_claim_that_is_settled(claim: HeldClaim) -> None:
    """Else an outage would cancel the body in the middle of its settling."""
    loop = asyncio.get_running_loop()
    claim.is_over = True
    await keep_renewed(lambda: claim, loop, loop.time(), 3.0)
    assert not claim.lost.is_set()


async def test_a_lease_that_was_renewed_for_longer_by_hand_is_not_made_shorter() -> None:
    loop = asyncio.get_running_loop()
    claim, looked = HeldClaim(), asyncio.Event()
    claim.renewed_until = loop.time() + 600.0

    def held() -> HeldClaim:
        looked.set()
        return claim

    work = loop.create_task(keep_renewed(held, loop, loop.time() - 31.0, 30.0))
    async with asyncio.timeout(10):
        await looked.wait()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not claim.renewed.is_set()
    assert not claim.lost.is_set()
    assert not work.done()
    work.cancel()


@virtual
async def test_renewals_that_too_few_replicas_confirm_keep_the_lease() -> None:
    """The body was cancelled at the end of its first lease, although the store had renewed it each time."""
    loop = asyncio.get_running_loop()
    claim = HeldClaim(*[ShortfallError("too few") for _ in range(9)])
    work = loop.create_task(keep_renewed(lambda: claim, loop, 0.0, 30.0))
    await claim.renewed.wait()
    assert loop.time() == pytest.approx(100.0)  # each third of a lease, not each tenth
    assert not claim.lost.is_set()
    await cancel(work)


@virtual
async def test_a_lease_that_was_renewed_for_longer_and_then_for_less_is_kept() -> None:
    """The renewal slept until the end of the longer lease, while another owner had the key."""
    loop, claim = asyncio.get_running_loop(), HeldClaim()
    claim.renewed_until = 600.0
    loop.call_at(25.0, setattr, claim, "renewed_until", 55.0)
    work = loop.create_task(keep_renewed(lambda: claim, loop, 0.0, 30.0))
    await claim.renewed.wait()
    assert 25.0 < loop.time() < 55.0
    assert not claim.lost.is_set()
    await cancel(work)


@virtual
@pytest.mark.parametrize("has_looked", [False, True], ids=["in the first third", "after its first look"])
@pytest.mark.parametrize("first", [None, 600.0])
async def test_a_lease_that_was_renewed_for_less_than_a_third_is_kept(
    has_looked: bool, first: float | None
) -> None:
    """It ended before the renewal looked at it again, and another owner acquired the key."""
    loop = asyncio.get_running_loop()
    async with Dedup(MemoryStore(clock=loop.time), lease=30.0) as dedup, dedup.claim("key") as claim:
        if has_looked:
            await wait_until(lambda: claim.settlement.renewed_until, description="it was renewed")
        if first is not None:
            await claim.renew(first)
        await claim.renew(8.0)
        other = await dedup.claim("key", wait=60.0)
        assert other.outcome is Outcome.IN_PROGRESS
        assert not claim.lost


@virtual
@pytest.mark.parametrize("how", ["complete", "fail", "release"])
async def test_a_lease_is_kept_though_its_renewal_fell_due_while_the_claim_was_settled_in_vain(
    how: str,
) -> None:
    """The renewal ended for good, although the caller may settle the claim again, and is still at work."""
    loop = asyncio.get_running_loop()
    link = Link(MemoryStore(clock=loop.time))
    async with Dedup(link, lease=30.0, timeout=5.0) as dedup, dedup.claim("key") as claim:
        await pass_time(9.0)  # a renewal is near
        link.down, link.latency = True, 2.0
        with pytest.raises(UnavailableError):
            await getattr(claim, how)(**({} if how == "release" else {"within": 0.0}))
        assert loop.time() > 10.0, "a renewal fell due"
        link.down, link.latency = False, 0.001
        assert (await dedup.claim("key", wait=60.0)).outcome is Outcome.IN_PROGRESS
        assert not claim.lost


@virtual
async def test_a_claim_is_lost_when_the_shorter_lease_ends_in_an_outage() -> None:
    """The renewal counted on the longer lease before it, and the work went on while another owner had the key."""
    loop = asyncio.get_running_loop()
    link = Link(MemoryStore(clock=loop.time))

    async def work() -> None:
        async with dedup.claim("key") as claim:
            await wait_until(lambda: claim.settlement.renewed_until, description="it was renewed, after 10 s")
            await claim.renew(12.0)
            link.down = True
            await asyncio.Event().wait()

    async with Dedup(link, lease=30.0) as dedup:
        with pytest.raises(ClaimLostError):
            await work()
        assert 22.0 < loop.time() < 22.1


# A named owner's claim that another call of that owner has settled


async def test_a_success_that_the_same_owner_recorded_elsewhere_is_no_lost_lease(dedup: Dedup) -> None:
    async with dedup.claim("key", owner="worker", lease=30.0) as claim:
        await (await dedup.claim("key", owner="worker")).complete("done")
        with pytest.raises(UsageError, match="completed already, by another call of the same owner"):
            await claim.renew()
        assert not claim.lost
        await claim.complete("done")
    assert (await dedup.claim("key")).result == "done"


@pytest.mark.parametrize("settle", ["fail", "release"])
async def test_a_key_that_the_same_owner_gave_back_elsewhere_is_lost(dedup: Dedup, settle: str) -> None:
    """Another owner may claim it, so the work must not go on as if it held the key."""
    claim = await dedup.claim("key", owner="worker", lease=30.0)
    other = await dedup.claim("key", owner="worker")
    await (other.fail("no") if settle == "fail" else other.release())
    with pytest.raises(ClaimLostError):
        await claim.renew()
    assert claim.lost


async def test_a_block_whose_owner_has_completed_the_claim_elsewhere_goes_on_unrenewed() -> None:
    async with Dedup("memory://", lease=0.3) as dedup:
        async with dedup.claim("key", owner="worker") as claim:
            await (await dedup.claim("key", owner="worker")).complete("done")
            renewal = claim.settlement.renewal
            assert renewal is not None
            await wait_until(
                lambda: renewal.task is not None and renewal.task.done(), description="it renews no more"
            )
            assert not claim.lost
        assert (await dedup.claim("key")).result == "done"
