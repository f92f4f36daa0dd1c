"""Calls of one process with one key: one goes ahead, the others wait behind it and get its result."""

from __future__ import annotations

import asyncio
import os
import threading
from functools import partial
from signal import SIGKILL
from threading import Barrier, Event
from typing import Any

import pytest

from fastdedup import InProgressError
from fastdedup.flows import drive, step
from fastdedup.sql import once
from fastdedup.sql.local_calls import Answer, LocalCalls, TaskEnd, ThreadEnd

from ..servers import RedisServer
from ..waiting import wait_until
from .shop import Place, answer, at_work, scripts
from .sync_shop import Call, open_either, waits_behind

LONG = 30.0
CALM = {"timeout": 5.0, "lease": 600.0}
"""Settings of a gate that asks nothing again, and renews nothing, on a busy machine."""


class Calls:
    """Calls of one key that say when they begin; the one named "first" ends when it is told."""

    def __init__(self) -> None:
        self.waits: list[bool] = []
        self.local = LocalCalls(TaskEnd, lambda seconds, answered: self.waits.append(answered))
        self.begun: list[str] = []
        self.go_on = asyncio.Event()

    def start(self, name: str, wait: float = LONG) -> asyncio.Task[str]:
        async def call() -> Answer:
            self.begun.append(name)
            if name == "first":
                await self.go_on.wait()
            return lambda: name

        async def run() -> str:
            answer = await self.local.run("key", call, wait)
            return str(answer())

        return asyncio.create_task(run())


async def turn() -> None:
    """Let each task go as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_later_calls_get_the_answer_of_the_first() -> None:
    calls = Calls()
    tasks = [calls.start(name) for name in ("first", "second", "third")]
    await turn()
    assert calls.begun == ["first"]
    calls.go_on.set()
    assert await asyncio.gather(*tasks) == ["first", "first", "first"]
    assert calls.begun == ["first"]
    assert calls.waits == [True, True]
    assert not calls.local.ends


@pytest.mark.parametrize("which", [0, 1])
async def test_a_cancelled_call_holds_up_no_other(which: int) -> None:
    calls = Calls()
    tasks = [calls.start(name) for name in ("first", "second", "third")]
    await turn()
    tasks[which].cancel()
    await turn()
    assert tasks[which].cancelled()
    calls.go_on.set()
    assert await tasks[2] == ("third", "first")[which]
    assert await tasks[1 - which] == ("second", "first")[which]


async def test_a_call_waits_no_longer_than_it_may() -> None:
    calls = Calls()
    first = calls.start("first")
    await turn()
    assert await calls.start("second", wait=0.01) == "second"
    assert calls.waits == [False]
    calls.go_on.set()
    assert await first == "first"


async def test_calls_of_another_loop_are_not_waited_for() -> None:
    calls = Calls()
    first = calls.start("first")
    await turn()
    found: list[str] = []

    async def call() -> Answer:
        return lambda: "elsewhere"

    def elsewhere() -> None:
        found.append(asyncio.run(calls.local.run("key", call, LONG))())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    await asyncio.to_thread(thread.join)
    assert found == ["elsewhere"]
    calls.go_on.set()
    await first


# In threads


class InThreads:
    """The same in threads."""

    def __init__(self) -> None:
        self.waits: list[bool] = []
        self.local = LocalCalls(ThreadEnd, lambda seconds, answered: self.waits.append(answered))
        self.begun: list[str] = []
        self.go_on = Event()

    def start(self, name: str, wait: float = LONG) -> Call:
        return Call(lambda: drive(self.local.run("key", step(partial(self.call, name)), wait))())

    def call(self, name: str) -> Answer:
        self.begun.append(name)
        if name == "first":
            assert self.go_on.wait(LONG)
        return lambda: name


async def started(calls: InThreads, *names: str) -> list[Call]:
    """Start the first call and those behind it."""
    first = calls.start("first")
    await wait_until(lambda: calls.begun, description="the first has begun")
    others = [calls.start(name) for name in names]
    await wait_until(lambda: all(map(waits_behind, others)), description="the others are behind it")
    return [first, *others]


async def test_in_threads_later_calls_get_the_answer_of_the_first() -> None:
    calls = InThreads()
    threads = await started(calls, "second", "third")
    assert calls.begun == ["first"]
    calls.go_on.set()
    assert [each.result for each in threads] == ["first", "first", "first"]
    assert calls.begun == ["first"]
    assert not calls.local.ends
    assert calls.waits == [True, True]


async def test_in_threads_a_call_waits_no_longer_than_it_may() -> None:
    calls = InThreads()
    (first,) = await started(calls)
    assert calls.start("second", wait=0.01).result == "second"
    assert calls.waits == [False]
    calls.go_on.set()
    assert first.result == "first"


def test_a_call_that_was_interrupted_as_it_ended_holds_up_one_other() -> None:
    """It stayed ahead for good: each duplicate waited for all of its time."""
    calls = InThreads()
    calls.local.ahead("key")
    assert calls.start("second", wait=0.01).result == "second"
    assert calls.start("third").result == "third"
    assert not calls.local.ends


async def test_of_calls_at_the_same_time_one_goes_ahead() -> None:
    """Both have found nobody ahead before either says that it is."""
    calls = InThreads()
    meeting = Barrier(2)

    def new_end() -> ThreadEnd:
        meeting.wait(LONG)
        return ThreadEnd()

    calls.local._new_end = new_end
    both = [calls.start("first"), calls.start("first")]
    await wait_until(lambda: any(map(waits_behind, both)), description="one is behind the other")
    assert calls.begun == ["first"]
    calls.go_on.set()
    assert [each.result for each in both] == ["first", "first"]


async def test_a_forked_process_waits_for_no_call_of_its_parent() -> None:
    calls = InThreads()
    (first,) = await started(calls)
    child = os.fork()
    if child == 0:
        os._exit(0 if drive(calls.local.run("key", step(lambda: str), LONG)) is str else 1)
    ended: list[int] = []

    def has_ended() -> bool:
        pid, status = os.waitpid(child, os.WNOHANG)
        ended.append(status)
        return bool(pid)

    try:
        await wait_until(has_ended, description="the child has ended")
    except BaseException:
        os.kill(child, SIGKILL)
        raise
    assert ended[-1] == 0
    calls.go_on.set()
    assert first.result == "first"


# At a gate


each_way = pytest.mark.parametrize("way", ["asyncpg", "psycopg"])


@each_way
async def test_duplicates_behind_a_call_do_not_ask_the_gate(
    way: str, place: Place, mortal_redis: RedisServer, key: str
) -> None:
    """The first claims and completes. Each gets a result of its own, which it may change."""
    async with open_either(place, mortal_redis, way, wait=LONG, gate=CALM) as shop:
        before = scripts(mortal_redis)
        go_on = asyncio.Event()

        async def act(transaction: Any, key: str) -> dict[str, str]:
            await go_on.wait()
            return {"key": key}

        shop.act = act
        calls = [asyncio.create_task(shop.handle(key)) for _ in range(5)]
        await wait_until(lambda: shop.runs, description="the first is at work")
        await wait_until(lambda: shop.are_behind(4), description="the others are behind it")
        go_on.set()
        results = await asyncio.gather(*calls)
        assert results == [{"key": key}] * 5
        assert len(set(map(id, results))) == 5
        assert (shop.runs, shop.place.effects(key)) == (1, 1)
        assert scripts(mortal_redis) == before + 2


@each_way
async def test_a_waiter_asks_the_gate_three_times(
    way: str, place: Place, mortal_redis: RedisServer, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hears of the owner, puts itself on the owner's list, and gets the result; the owner asks twice."""
    monkeypatch.setattr(once, "LOOK", LONG)
    async with open_either(place, mortal_redis, way, wait=LONG, gate=CALM) as shop:
        before = scripts(mortal_redis)
        go_on, first = await at_work(shop, shop.handle(key))
        second = asyncio.create_task(shop.elsewhere(key))
        await wait_until(lambda: scripts(mortal_redis) >= before + 3, description="the second is on the list")
        go_on.set()
        assert await asyncio.gather(first, second) == [key, key]
        assert scripts(mortal_redis) == before + 5


@each_way
async def test_one_of_those_behind_a_failed_call_does_the_work(
    way: str, place: Place, mortal_redis: RedisServer, key: str
) -> None:
    async with open_either(place, mortal_redis, way, wait=LONG) as shop:
        go_on, first = await at_work(shop, shop.handle(key), fails=True)
        others = [asyncio.create_task(shop.handle(key)) for _ in range(4)]
        await wait_until(lambda: shop.are_behind(4), description="the others are behind it")
        go_on.set()
        with pytest.raises(LookupError):
            await first
        assert await asyncio.gather(*others) == [key] * 4
        assert (shop.runs, shop.place.effects(key)) == (2, 1)


@each_way
async def test_a_duplicate_behind_a_long_call_is_told_in_time(
    way: str, place: Place, mortal_redis: RedisServer, key: str
) -> None:
    async with open_either(place, mortal_redis, way, wait=0.1) as shop:
        go_on, first = await at_work(shop, shop.handle(key))
        with pytest.raises(InProgressError):
            await shop.handle(key)
        go_on.set()
        assert await first == key
        shop.act = answer("another")
        assert await shop.handle(key) == key
