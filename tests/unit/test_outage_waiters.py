"""Waiters in an outage: woken when a part of the store is back or the time is over, and nothing is left behind."""

import asyncio

from fastdedup.core.outage_waiters import OutageWaiters

from ..virtual import virtual


@virtual
async def test_all_who_wait_for_a_part_are_woken_when_it_is_back() -> None:
    """And nobody who waits for another part."""
    waiters = OutageWaiters()
    first, second, other = (asyncio.create_task(waiters.wait(part, 60.0)) for part in (b"a", b"a", b"b"))
    await asyncio.sleep(1.0)
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
    await asyncio.sleep(1.0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert waiters.waiting == {}


@virtual
async def test_who_waits_anew_when_woken_is_counted_anew() -> None:
    waiters = OutageWaiters()

    async def twice() -> None:
        await waiters.wait(b"a", 60.0)
        await waiters.wait(b"a", 60.0)

    tasks = [asyncio.create_task(twice()) for _ in range(3)]
    await asyncio.sleep(1.0)
    waiters.is_back(b"a")
    await asyncio.sleep(1.0)
    assert waiters.count(b"a") == 3
    waiters.is_back(b"a")
    await asyncio.gather(*tasks)
