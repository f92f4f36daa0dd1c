"""Calls of one process with one key, in threads: see `test_local_calls.py`."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from signal import SIGKILL
from threading import Barrier, Event
from typing import Any

import pytest

from fastdedup import InProgressError
from fastdedup.sql import once
from fastdedup.sql.local_calls import Answer, ThreadCalls, ThreadEnd

from ..servers import RedisServer
from .shop import Place, scripts
from .sync_shop import Call, SyncShop, held, open_sync_shop

Waiter = Callable[..., Awaitable[Any]]
LONG = 30.0
CALM = {"timeout": 5.0, "lease": 600.0}
"""Settings of a gate that asks nothing again, and renews nothing, on a busy machine."""


class Calls:
    """Calls of one key that say when they begin; the one named "first" ends when it is told."""

    def __init__(self) -> None:
        self.duplicates: list[float] = []
        self.local = ThreadCalls(self.duplicates.append)
        self.begun: list[str] = []
        self.go_on = Event()

    def start(self, name: str, wait: float = LONG) -> Call:
        return Call(lambda: self.local.run("key", lambda: self.call(name), wait)())

    def call(self, name: str) -> Answer:
        self.begun.append(name)
        if name == "first":
            assert self.go_on.wait(LONG)
        return lambda: name


def is_behind(call: Call) -> bool:
    """True while the thread of a call waits for the end of another one."""
    inner, frame = None, sys._current_frames().get(call.thread.ident or 0)
    while frame is not None and frame.f_code is not ThreadCalls.run.__code__:
        inner, frame = frame, frame.f_back
    return inner is not None and frame is not None and inner.f_code is Event.wait.__code__


async def started(calls: Calls, wait_until: Waiter, *names: str) -> list[Call]:
    """Start the first call and those behind it."""
    first = calls.start("first")
    await wait_until(lambda: calls.begun, description="the first has begun")
    others = [calls.start(name) for name in names]
    await wait_until(lambda: all(map(is_behind, others)), description="the others are behind it")
    return [first, *others]


async def test_later_calls_get_the_answer_of_the_first(wait_until: Waiter) -> None:
    calls = Calls()
    threads = await started(calls, wait_until, "second", "third")
    assert calls.begun == ["first"]
    calls.go_on.set()
    assert [each.result for each in threads] == ["first", "first", "first"]
    assert calls.begun == ["first"]
    assert not calls.local._ends
    assert len(calls.duplicates) == 2


async def test_a_call_waits_no_longer_than_it_may(wait_until: Waiter) -> None:
    calls = Calls()
    (first,) = await started(calls, wait_until)
    assert calls.start("second", wait=0.01).result == "second"
    calls.go_on.set()
    assert first.result == "first"


def test_a_call_that_was_interrupted_as_it_ended_holds_up_one_other() -> None:
    """It stayed ahead for good: each duplicate waited for all of its time."""
    calls = Calls()
    calls.local.ahead("key")
    assert calls.start("second", wait=0.01).result == "second"
    assert calls.start("third").result == "third"
    assert not calls.local._ends


async def test_of_calls_at_the_same_time_one_goes_ahead(wait_until: Waiter) -> None:
    """Both have found nobody ahead before either says that it is."""
    calls = Calls()
    meeting = Barrier(2)

    def new_end() -> ThreadEnd:
        meeting.wait(LONG)
        return ThreadEnd()

    calls.local._new_end = new_end
    both = [calls.start("first"), calls.start("first")]
    await wait_until(lambda: any(map(is_behind, both)), description="one is behind the other")
    assert calls.begun == ["first"]
    calls.go_on.set()
    assert [each.result for each in both] == ["first", "first"]


async def test_a_forked_process_waits_for_no_call_of_its_parent(wait_until: Waiter) -> None:
    calls = Calls()
    (first,) = await started(calls, wait_until)
    child = os.fork()
    if child == 0:
        os._exit(0 if calls.local.run("key", lambda: str, LONG) is str else 1)
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


async def at_work(shop: SyncShop, key: str, wait_until: Waiter, others: int) -> list[Call]:
    """Start calls of one key; return them once one is at work and the others are behind it."""
    first = Call(shop.handle, key)
    await wait_until(lambda: shop.runs, description="the first is at work")
    duplicates = [Call(shop.handle, key) for _ in range(others)]
    await wait_until(lambda: all(map(is_behind, duplicates)), description="the others are behind it")
    return [first, *duplicates]


async def test_duplicates_behind_a_call_do_not_ask_the_gate(
    mortal_postgres: Place, mortal_redis: RedisServer, key: str, wait_until: Waiter
) -> None:
    """The first claims and completes. Each gets a result of its own, which it may change."""
    with open_sync_shop(mortal_postgres, mortal_redis, wait=LONG, gate=CALM) as shop:
        before = scripts(mortal_redis)
        go_on = Event()

        def act(transaction: Any, key: str) -> dict[str, str]:
            assert go_on.wait(LONG)
            return {"key": key}

        shop.act = act
        calls = await at_work(shop, key, wait_until, others=4)
        go_on.set()
        results = [call.result for call in calls]
        assert results == [{"key": key}] * 5
        assert len(set(map(id, results))) == 5
        assert (shop.runs, shop.place.effects(key)) == (1, 1)
        assert scripts(mortal_redis) == before + 2


async def test_a_waiter_asks_the_gate_three_times(
    mortal_postgres: Place,
    mortal_redis: RedisServer,
    key: str,
    wait_until: Waiter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It hears of the owner, puts itself on the owner's list, and gets the result; the owner asks twice."""
    monkeypatch.setattr(once, "LOOK", LONG)
    with open_sync_shop(mortal_postgres, mortal_redis, wait=LONG, gate=CALM) as shop:
        before = scripts(mortal_redis)
        go_on, shop.act = held()
        (first,) = await at_work(shop, key, wait_until, others=0)
        second = Call(shop.elsewhere, key)
        await wait_until(lambda: scripts(mortal_redis) >= before + 3, description="the second is on the list")
        go_on.set()
        assert [first.result, second.result] == [key, key]
        assert scripts(mortal_redis) == before + 5


async def test_one_of_those_behind_a_failed_call_does_the_work(
    mortal_postgres: Place, mortal_redis: RedisServer, key: str, wait_until: Waiter
) -> None:
    with open_sync_shop(mortal_postgres, mortal_redis, wait=LONG) as shop:
        go_on = Event()

        def act(transaction: Any, key: str) -> str:
            if shop.runs == 1:
                assert go_on.wait(LONG)
                raise LookupError(key)
            return key

        shop.act = act
        calls = await at_work(shop, key, wait_until, others=3)
        go_on.set()
        with pytest.raises(LookupError):
            assert calls[0].result
        assert [call.result for call in calls[1:]] == [key] * 3
        assert (shop.runs, shop.place.effects(key)) == (2, 1)


async def test_a_duplicate_behind_a_long_call_is_told_in_time(
    mortal_postgres: Place, mortal_redis: RedisServer, key: str, wait_until: Waiter
) -> None:
    with open_sync_shop(mortal_postgres, mortal_redis, wait=0.1) as shop:
        go_on, shop.act = held()
        (first,) = await at_work(shop, key, wait_until, others=0)
        with pytest.raises(InProgressError):
            shop.handle(key)
        go_on.set()
        assert first.result == key
