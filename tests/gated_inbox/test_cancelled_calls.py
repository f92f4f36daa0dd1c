"""A call that is cancelled, at each place where it waits: it ends, and the next delivery does what is left to do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from fastdedup import Dedup, Outcome
from fastdedup.model import State
from fastdedup.sql import RetryTransaction
from fastdedup.sql.once import MENDING
from fastdedup.sql.open_transaction import OnceRules
from fastdedup.testing import FakeStore, fake_dedup

from ..servers import RedisServer
from ..waiting import wait_until
from .shop import WAYS, Place, Shop, answer, at_work, broken, held, is_unsettled, open_shop, redelivered
from .times import LEASE

SOON = 5.0
"""Seconds in which a cancelled call has ended."""


Opener = Callable[..., AbstractAsyncContextManager[Shop]]


@pytest.fixture
def opened(mortal_postgres: Place, mortal_redis: RedisServer) -> Iterator[Opener]:
    """Opens a consumer, as `open_shop` does, in a loop that complains of nothing: no task's error is left unheard."""
    complaints: list[Any] = []

    @asynccontextmanager
    async def opener(way: str = "asyncpg", **options: Any) -> AsyncIterator[Shop]:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        async with open_shop(mortal_postgres, mortal_redis, way, **options) as shop:
            yield shop

    yield opener
    assert not complaints


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task; see that it ends soon, as one that was cancelled."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, SOON)


async def settles(shop: Shop, key: str) -> None:
    """See that the next delivery is answered, and that the work was committed once."""
    assert await wait_until(lambda: redelivered(shop, key), description="the gate is free") == [key]
    assert shop.place.effects(key) == 1


async def test_at_the_claim(opened: Opener, mortal_redis: RedisServer, key: str) -> None:
    """Redis may have made the claim: it is taken back, long before its lease ends."""
    async with opened(gate={"timeout": 5.0}) as shop:
        shop.act = answer(key)
        with broken(mortal_redis, "frozen"):
            task = asyncio.create_task(shop.handle(key))
            await wait_until(lambda: shop.gate.in_flight, description="the claim is sent")
            await cancelled(task)
        assert shop.runs == 0
        await settles(shop, key)


async def test_waiting_at_the_gate(opened: Opener, key: str) -> None:
    async with opened(wait=30.0) as shop:
        go_on, first = await at_work(shop, shop.handle(key))
        second = asyncio.create_task(shop.elsewhere(key))
        await wait_until(lambda: shop.gate.gate.connection.wakeups.waiting, description="the second waits")
        await cancelled(second)
        go_on.set()
        assert await first == key
        assert (shop.runs, shop.place.effects(key)) == (1, 1)


@pytest.mark.parametrize("way", WAYS)
async def test_waiting_for_a_twins_row(way: str, opened: Opener, key: str) -> None:
    async with opened(way) as shop:
        twin = shop.inbox.once(key=lambda transaction, key: key, begin=shop.begin)(shop.work)
        go_on, first = await at_work(shop, twin(key))
        second = asyncio.create_task(shop.handle(key))
        await wait_until(shop.place.waiting, description="the second waits for the first's row")
        await cancelled(second)
        assert (await shop.record(key)).state is State.RELEASED  # type: ignore[union-attr]
        go_on.set()
        assert await first == key
        assert await shop.handle(key) == key
        assert (shop.runs, shop.place.effects(key)) == (1, 1)


@pytest.mark.parametrize("way", WAYS)
async def test_in_the_work(way: str, opened: Opener, key: str) -> None:
    async with opened(way) as shop:
        _, shop.act = held()
        task = asyncio.create_task(shop.handle(key))
        await wait_until(lambda: shop.runs, description="it is at work")
        await cancelled(task)
        assert (await shop.record(key)).state is State.RELEASED  # type: ignore[union-attr]
        shop.act = answer(key)
        await settles(shop, key)


@pytest.mark.parametrize("way", WAYS)
async def test_at_the_commit(way: str, opened: Opener, key: str) -> None:
    """It was committed, and nobody was told: the claim is left alone, and after its lease the row answers."""
    async with opened(way, gate={"lease": LEASE}) as shop:
        shop.act = answer(key)
        go_on = threading.Event()
        shop.place.proxy.lose(lambda: go_on.wait(SOON))
        task = asyncio.create_task(shop.handle(key))
        await wait_until(lambda: shop.place.effects(key), description="it is committed")
        task.cancel()
        with suppress(TimeoutError):  # some drivers wait until the connection is gone
            async with asyncio.timeout(0.1):
                await asyncio.wait([task])
        go_on.set()
        with pytest.raises(
            (asyncio.CancelledError, DBAPIError)
        ):  # SQLAlchemy waits for the COMMIT, and tells of it
            await asyncio.wait_for(task, SOON)
        assert is_unsettled(await shop.record(key))
        await settles(shop, key)
        assert shop.runs == 1


@pytest.mark.parametrize("settling", ["complete", "release"])
async def test_while_the_gate_is_told(
    settling: str, opened: Opener, mortal_redis: RedisServer, key: str
) -> None:
    """Telling the gate goes on, and is done once Redis answers."""
    async with opened(gate={"timeout": 5.0}) as shop:

        async def act(transaction: Any, key: str) -> str:
            mortal_redis.freeze()
            if settling == "release":
                raise LookupError(key)
            return key

        shop.act = act
        try:
            task = asyncio.create_task(shop.handle(key))
            await wait_until(lambda: shop.runs and shop.gate.in_flight, description="the gate is being told")
            await cancelled(task)
        finally:
            mortal_redis.thaw()
        wanted = State.SUCCEEDED if settling == "complete" else State.RELEASED
        await wait_until(lambda: is_in(shop, key, wanted), description=f"the gate has it {wanted}")
        shop.act = answer(key)
        await settles(shop, key)


async def test_while_no_try_to_tell_the_gate_has_reached_it() -> None:
    """Telling goes on by itself, and is done once the gate is back."""
    store = FakeStore()
    gate = fake_dedup(store)
    claim = await gate.claim("k")
    with store.outage("refused"):
        task = asyncio.create_task(claim.settlement.mirror("done", within=MENDING))
        await wait_until(lambda: gate.breaker != "closed", description="it was refused")
        await cancelled(task)
    await wait_until(lambda: is_told(gate), description="the gate knows")


async def is_told(gate: Dedup) -> bool:
    found = await gate.claim("k")
    return found.outcome is Outcome.SUCCEEDED and found.result == "done"


async def test_between_two_attempts(opened: Opener, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(OnceRules, "pause", lambda *_: pauses.append(SOON) or 2 * SOON)
    async with opened() as shop:

        async def act(transaction: Any, key: str) -> None:
            raise RetryTransaction("again")

        shop.act = act
        task = asyncio.create_task(shop.handle(key))
        await wait_until(lambda: pauses, description="it pauses")
        await cancelled(task)
        assert (await shop.record(key)).state is State.RELEASED  # type: ignore[union-attr]
        shop.act = answer(key)
        await settles(shop, key)


async def test_a_gate_that_is_closed_under_the_work(opened: Opener, key: str) -> None:
    """The work is committed, and its caller gets the result."""
    async with opened() as shop:
        go_on, task = await at_work(shop, shop.handle(key))
        await shop.gate.aclose()
        go_on.set()
        assert await task == key
        assert shop.place.effects(key) == 1


async def is_in(shop: Shop, key: str, state: State) -> bool:
    record = await shop.record(key)
    return record is not None and record.state is state
