"""One answer for many callers: a store's subscription, a ledger's form. No caller pays for the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from time import thread_time
from types import SimpleNamespace
from typing import Any

import pytest

from fastdedup import UnavailableError
from fastdedup.ledger.current_form import CurrentForm
from fastdedup.ledger.settings import LedgerSettings
from fastdedup.stores.redis.connection import RedisConnection
from fastdedup.stores.redis.listener import Listener

from ..waiting import cancel, wait_until

FEW = 500
TIMES = 32
MOST = 8
"""How many times as long as one of few one of many callers may take: the caches of a busy machine make it up to 4.

If each searched among all others, it would be more than 20.
"""


async def never(*_: Any) -> Any:
    """Do what is asked of a frozen server."""
    await asyncio.Event().wait()


def subscription() -> Callable[[], Coroutine[Any, Any, Any]]:
    """Return a call for the news of freed keys."""
    listener = Listener(never, 60.0)
    return lambda: listener.start(lambda wire: None)


def form(run: Callable[..., Any] = never) -> Callable[[], Coroutine[Any, Any, Any]]:
    """Return a call for a ledger's form."""
    connection = SimpleNamespace(keep=asyncio.ensure_future)
    gate: Any = SimpleNamespace(settings=SimpleNamespace(namespace="shop"), connection=connection, run=run)
    return CurrentForm(gate, LedgerSettings("seen", 60_000, 1000, 8, "set", False)).present


async def seconds_to_leave(ask: Callable[[], Coroutine[Any, Any, Any]], callers: int) -> float:
    """Return the CPU time in which so many callers stop waiting for one answer."""
    tasks = [asyncio.ensure_future(ask()) for _ in range(callers)]
    await asyncio.sleep(0)
    since = thread_time()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    took = thread_time() - since
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        await cancel(task)
    return took


@pytest.mark.parametrize("make", [subscription, form])
@pytest.mark.no_cover
async def test_many_callers_leave_at_the_cost_of_each(
    make: Callable[[], Callable[[], Coroutine[Any, Any, Any]]],
) -> None:
    """A list of 12,000 keys ended 6 s after its wait, because its claims left the first attempt by one future."""
    few = min([await seconds_to_leave(make(), FEW) for _ in range(3)])
    many = min([await seconds_to_leave(make(), FEW * TIMES) for _ in range(4)])
    assert many < few * TIMES * MOST


async def test_all_callers_get_the_error_of_the_first_attempt() -> None:
    begin = asyncio.Event()

    async def connect(_: Callable[[Any], None]) -> RedisConnection:
        await begin.wait()
        raise ConnectionError("refused")

    listener = Listener(connect, 60.0)
    heard: list[bytes | None] = []
    tasks = [asyncio.ensure_future(listener.start(heard.append)) for _ in range(3)]
    tasks[0].cancel()
    await wait_until(tasks[0].done, description="the first caller has left")
    begin.set()
    for task in tasks[1:]:
        with pytest.raises(ConnectionError, match="refused"):
            await task
    await listener.aclose()


async def test_each_loop_reads_a_ledgers_form_itself() -> None:
    """A loop cannot wait for a task of another one, which may be closed."""
    asked: list[asyncio.AbstractEventLoop] = []

    async def run(*_: Any) -> Any:
        asked.append(asyncio.get_running_loop())
        if len(asked) == 1:
            await never()
        raise UnavailableError("refused")

    present = form(run)
    first = asyncio.ensure_future(present())
    await wait_until(lambda: asked, description="this loop has asked")
    with pytest.raises(UnavailableError, match="refused"):
        await asyncio.to_thread(lambda: asyncio.run(present()))
    assert len({*asked}) == 2
    await cancel(first)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        await cancel(task)
