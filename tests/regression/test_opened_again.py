"""A gate is opened again: after closing, and in another event loop after its own has ended."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import warnings
from typing import Any

import pytest
import uvloop

from fastdedup import ConfigError, Dedup, LocalLRU, UsageError
from fastdedup.events import Event, Replayed
from fastdedup.stores.base import Store

from ..programs import forked
from ..servers import RedisServer
from ..stores import TIMEOUT
from ..unit.test_fallback import FlakyStore
from ..waiting import cancel, run, wait_until

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


def gate(url: str, **settings: Any) -> Dedup:
    return Dedup(url, **{"namespace": "t", "timeout": TIMEOUT, "known_duplicates": 0.0, **settings})


async def outcome(dedup: Dedup, key: str = "key") -> str:
    async with dedup.claim(key) as claim:
        return str(claim.outcome)


@pytest.mark.parametrize("loop", LOOPS)
def test_it_opens_where_its_loop_ended_without_closing(redis_url: str, loop: Any) -> None:
    for url in (redis_url, "memory://"):
        dedup = gate(url)
        sms = dedup.scoped("sms")

        async def use(opened: Dedup = sms, dedup: Dedup = dedup) -> str:
            await opened.open()
            return await outcome(dedup)

        assert [run(use, loop) for _ in range(3)] == ["acquired", "succeeded", "succeeded"]
        assert not dedup.is_open
        run(dedup.aclose, loop)  # in another loop, after its own has ended
        gc.collect()


def test_memory_begins_empty_only_after_closing() -> None:
    dedup = gate("memory://")

    async def unclosed() -> str:
        await dedup.open()
        return await outcome(dedup)

    async def closed() -> str:
        async with dedup:
            return await outcome(dedup)

    assert [run(work) for work in (unclosed, unclosed, closed, closed, unclosed)] == [
        *("acquired", "succeeded", "succeeded", "acquired", "acquired")
    ]
    run(dedup.aclose)
    assert run(closed) == "acquired"


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_that_is_only_closed_does_not_keep_it(redis_url: str, loop: Any) -> None:
    """Nothing tells the gate, as nobody ends that loop's generators; uvloop itself warns of the open sockets."""
    dedup = gate(redis_url)

    async def use() -> str:
        await dedup.open()
        return await outcome(dedup)

    outcomes = []
    for _ in range(3):
        own = loop()
        outcomes.append(own.run_until_complete(use()))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            own.close()
        assert not dedup.is_open
    assert outcomes == ["acquired", "succeeded", "succeeded"]
    run(dedup.aclose)
    gc.collect()


def test_an_opening_that_is_cancelled_leaves_it_closed(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled while it closed what the loop before had left open, it stayed open, and no caller closed it."""
    dedup = gate(redis_url)
    run(dedup.open)

    async def reopen() -> None:
        closes = asyncio.Event()

        async def hang(store: Store) -> None:
            closes.set()
            await asyncio.Event().wait()

        with monkeypatch.context() as patch:
            patch.setattr(type(dedup.gate.connection.store), "aclose", hang)
            opening = asyncio.ensure_future(dedup.open())
            await closes.wait()
        await cancel(opening)
        assert not dedup.is_open
        async with dedup:
            assert await outcome(dedup) == "acquired"

    run(reopen)


async def test_it_is_not_opened_while_it_is_open(redis_url: str) -> None:
    dedup = gate(redis_url)
    first, second = await asyncio.gather(dedup.open(), dedup.open(), return_exceptions=True)
    assert first is dedup
    assert isinstance(second, UsageError)
    assert await outcome(dedup) == "acquired"
    closing = asyncio.create_task(dedup.aclose())
    await asyncio.sleep(0)
    with pytest.raises(UsageError, match="open"):
        await dedup.open()
    await closing
    async with dedup:
        assert await outcome(dedup) == "succeeded"


async def test_closed_before_it_was_opened_it_opens(redis_url: str) -> None:
    dedup = gate(redis_url)
    await dedup.aclose()
    async with dedup:
        assert await outcome(dedup) == "acquired"


@pytest.mark.no_cover
async def test_two_hundred_times_leave_nothing(redis_url: str) -> None:
    dedup = gate(redis_url)
    sms = dedup.scoped("sms")

    def held() -> tuple[int, int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks()), threading.active_count()

    counts = []
    for n in range(200):
        async with dedup if n % 2 else sms:
            if n % 40 == 0:
                assert await outcome(sms) == ("acquired" if n == 0 else "succeeded")
        if n in (10, 199):
            counts.append(held())
    assert counts[0] == counts[1]


def test_a_hundred_loops_leave_nothing_in_memory() -> None:
    """A store that is kept must not gather what each loop's waiters subscribed."""
    dedup = gate("memory://")

    async def use() -> None:
        await dedup.open()
        async with dedup.claim("held") as claim:
            waiting = asyncio.create_task(outcome_after(dedup))
            await asyncio.sleep(0)
            await claim.release()
            await waiting

    async def outcome_after(dedup: Dedup) -> None:
        await (await dedup.claim("held", wait=5.0)).release()

    for _ in range(100):
        run(use)
    store: Any = dedup.gate.connection.store
    assert len(store._listeners) <= 1


@pytest.mark.parametrize("loop", LOOPS)
def test_a_journal_comes_home_in_the_next_loop(own_redis: RedisServer, loop: Any) -> None:
    """Nobody has to ask for a key of the outage before its record reaches the store."""
    events: list[Event] = []
    dedup = gate(own_redis.url, on_unavailable=LocalLRU(), on_event=events.append)

    async def in_outage() -> None:
        await dedup.open()
        own_redis.kill()
        async with dedup.claim("key") as claim:
            assert claim.degraded
            await claim.complete("local")

    async def afterwards() -> None:
        await dedup.open()
        await wait_until(lambda: Replayed(1, 0) in events, description="the journal is in the store")
        async with gate(own_redis.url) as other:
            assert (await other.claim("key")).result == "local"

    run(in_outage, loop)
    own_redis.start()
    run(afterwards, loop)
    run(dedup.aclose, loop)


class Moody(FlakyStore):
    """A store that a test takes away, and that cannot be opened as it is set up."""

    is_mistaken = False

    async def open(self) -> None:
        if self.is_mistaken:
            raise ConfigError("the store is too old")
        await super().open()


def test_an_opening_that_fails_loses_nothing_of_the_loop_before() -> None:
    """What that had left was dropped with it: the record never came into the store, and no event said so."""
    store, events = Moody(), list[Event]()
    dedup = Dedup(store, on_unavailable=LocalLRU(), on_event=events.append)

    async def in_outage() -> None:
        await dedup.open()
        store.down = True
        async with dedup.claim("key") as claim:
            await claim.complete("local")

    async def mistaken() -> None:
        with pytest.raises(ConfigError, match="too old"):
            await dedup.open()

    async def afterwards() -> None:
        await dedup.open()
        await wait_until(lambda: Replayed(1, 0) in events, description="the journal is in the store")
        assert (await dedup.claim("key")).result == "local"
        await dedup.aclose()

    run(in_outage)
    store.down, store.is_mistaken = False, True
    run(mistaken)
    store.is_mistaken = False
    run(afterwards)


def test_a_forked_child_opens_its_own(redis_url: str) -> None:
    dedup = gate(redis_url)

    async def main() -> list[str]:
        await dedup.open()
        child = forked(in_child).decode()
        told = [child, await outcome(dedup, "child"), await outcome(dedup, "parent")]
        await dedup.aclose()
        return told

    def in_child() -> bytes:
        asyncio._set_running_loop(None)
        return asyncio.run(opened_in_child()).encode()

    async def opened_in_child() -> str:
        assert not dedup.is_open
        async with dedup:
            return await outcome(dedup, "child")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of a fork beside threads
        assert run(main) == ["acquired", "succeeded", "acquired"]
