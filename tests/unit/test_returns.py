"""Returns: woken when a part of the store is back or the time is over, and nothing is left behind."""

import asyncio

from fastdedup.core.returns import Returns

from ..virtual import virtual


@virtual
async def test_all_who_wait_for_a_part_are_woken_when_it_is_back() -> None:
    """And nobody who waits for another part."""
    returns = Returns()
    first, second, other = (asyncio.create_task(returns.wait(part, 60.0)) for part in (b"a", b"a", b"b"))
    await asyncio.sleep(1.0)
    assert (returns.count(b"a"), returns.count(b"b")) == (2, 1)
    returns.is_back(b"a")
    await asyncio.gather(first, second)
    assert asyncio.get_running_loop().time() == 1.0
    assert not other.done()
    returns.are_back()
    await other
    assert returns.waiting == {}


@virtual
async def test_a_wait_ends_with_its_time() -> None:
    returns = Returns()
    await returns.wait(b"a", 2.0)
    assert asyncio.get_running_loop().time() == 2.0
    assert returns.waiting == {}


@virtual
async def test_a_cancelled_wait_leaves_nothing() -> None:
    returns = Returns()
    task = asyncio.create_task(returns.wait(b"a", 60.0))
    await asyncio.sleep(1.0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert returns.waiting == {}


@virtual
async def test_who_waits_anew_when_woken_is_counted_anew() -> None:
    returns = Returns()

    async def twice() -> None:
        await returns.wait(b"a", 60.0)
        await returns.wait(b"a", 60.0)

    tasks = [asyncio.create_task(twice()) for _ in range(3)]
    await asyncio.sleep(1.0)
    returns.is_back(b"a")
    await asyncio.sleep(1.0)
    assert returns.count(b"a") == 3
    returns.is_back(b"a")
    await asyncio.gather(*tasks)
