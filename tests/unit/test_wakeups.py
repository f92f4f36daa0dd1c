"""Wakeups: woken by news, and nothing is left behind when they leave."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fastdedup import Dedup
from fastdedup.core.wakeups import Wakeups
from fastdedup.stores.memory import MemoryStore


async def test_a_waiter_is_woken_by_news_of_its_key() -> None:
    """And by no other's."""
    waiters = Wakeups()
    with waiters.watch(b"a") as a, waiters.watch(b"b") as b:
        waiters.freed(b"a")
        assert (a.done(), b.done()) == (True, False)


async def test_all_who_wait_for_a_key_are_woken_at_once() -> None:
    """They share one future."""
    waiters = Wakeups()
    with waiters.watch(b"a") as first, waiters.watch(b"a") as second:
        waiters.freed(b"a")
        await asyncio.gather(first, second)


async def test_when_news_may_have_been_missed_everybody_looks_again() -> None:
    """None stands for every key."""
    waiters = Wakeups()
    with waiters.watch(b"a") as a, waiters.watch(b"b") as b:
        waiters.freed(None)
        assert a.done()
        assert b.done()


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


async def test_news_twice_or_of_an_unwatched_key_is_fine() -> None:
    """Pub/sub tells every process about every key."""
    waiters = Wakeups()
    waiters.freed(b"nobody")
    with waiters.watch(b"a") as a:
        waiters.freed(b"a")
        waiters.freed(b"a")
        assert a.done()


async def test_the_last_to_leave_takes_the_entry_along() -> None:
    """Keys are unbounded; what waits must not be."""
    waiters = Wakeups()
    with waiters.watch(b"a"):
        with pytest.raises(ValueError, match="body"), waiters.watch(b"a"):
            raise ValueError("body")
        assert waiters.waiting == {b"a": 1}
    assert (waiters._freed, waiters.waiting) == ({}, {})


class DeafStore(MemoryStore):
    """Takes for ever to subscribe."""

    def __init__(self) -> None:
        super().__init__()
        self.subscribing = False

    async def listen(self, on_freed: Callable[[bytes | None], None]) -> None:
        self.subscribing = True
        await asyncio.Event().wait()


async def test_a_waiting_claim_cancelled_while_it_subscribes_is_just_cancelled(
    wait_until: Callable[..., Any],
) -> None:
    """It holds nothing, so there is nothing to take back."""
    store = DeafStore()
    async with Dedup(store) as dedup:
        holder = await dedup.claim("k")
        waiting = asyncio.create_task(dedup.claim("k", wait=5.0))
        await wait_until(lambda: store.subscribing, description="the claim subscribes")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await holder.release()
        assert (await dedup.claim("k", wait=5.0)).acquired, "who need not wait does not subscribe"
