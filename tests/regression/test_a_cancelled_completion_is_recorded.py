"""An outcome whose caller is cancelled while the store does not answer is recorded once the store is back.

It was dropped: the work was done, the key was freed by the end of the lease, and a retry did the work again.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from fastdedup import Claim, ConfigError, Dedup, UnavailableError, UsageError
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.testing import FakeStore

Waiter = Callable[..., Awaitable[Any]]


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


def gate(store: FakeStore) -> Dedup:
    return Dedup(store, namespace="shop", lease=30.0)


async def cancelled(work: Callable[[], Awaitable[Any]]) -> None:
    """Do work until it waits for the store, then cancel its caller."""
    task = asyncio.ensure_future(work())
    done, _ = await asyncio.wait([task], timeout=0.05)
    assert not done, "the store does not answer"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def recorded(dedup: Dedup, key: str) -> Claim:
    """Return what a duplicate is told, once the store is back."""
    return await dedup.claim(key, wait=10.0)


async def test_a_failure(store: FakeStore) -> None:
    async with gate(store) as dedup:
        claim = await dedup.claim("order:42")
        with store.outage("refused"):
            await cancelled(lambda: claim.fail("declined"))
        assert (await recorded(dedup, "order:42")).error == "declined"


async def test_in_a_block(store: FakeStore) -> None:
    async with gate(store) as dedup:

        async def work() -> None:
            async with dedup.claim("order:42", renew=True) as claim:
                store.outage.start("refused")
                await claim.complete({"id": 7})

        await cancelled(work)
        store.outage.stop()
        assert (await recorded(dedup, "order:42")).result == {"id": 7}


async def test_a_body_that_goes_on_leaves_when_it_is_recorded(store: FakeStore) -> None:
    async with gate(store) as dedup:
        async with dedup.claim("order:42") as claim:
            with store.outage("refused"), pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await claim.complete({"id": 7})
        assert (await dedup.claim("order:42")).result == {"id": 7}


async def test_its_caller_may_decide_anew(store: FakeStore) -> None:
    async with gate(store) as dedup:
        claim = await dedup.claim("order:42")
        with store.outage("refused"):
            await cancelled(lambda: claim.complete("first"))
            await cancelled(lambda: claim.complete("second"))
        await claim.complete("third")
        assert (await dedup.claim("order:42")).result == "third"


async def test_its_caller_may_decide_anew_within_its_block(store: FakeStore) -> None:
    async with gate(store) as dedup:
        async with dedup.claim("order:42") as claim:
            with store.outage("refused"):
                await cancelled(lambda: claim.complete("first"))
            await claim.complete("second")
        assert (await dedup.claim("order:42")).result in ("first", "second")


@pytest.mark.parametrize("raises", [False, True])
async def test_a_renewal_meanwhile_leaves_it_alone(raises: bool, store: FakeStore) -> None:
    """The lease is renewed at its thirds, and the body goes on."""
    async with Dedup(store, namespace="shop", lease=0.3) as dedup:
        with suppress(RuntimeError):
            async with dedup.claim("order:42", renew=True) as claim:
                with store.outage("refused"):
                    await cancelled(lambda: claim.complete({"id": 7}))
                    with pytest.raises(UsageError):
                        await claim.renew()  # as the gate itself does
                if raises:
                    raise RuntimeError
        assert (await recorded(dedup, "order:42")).result == {"id": 7}


async def test_a_second_try_that_cannot_be_sent_leaves_it_alone(store: FakeStore) -> None:
    async with gate(store) as dedup:
        async with dedup.claim("order:42") as claim:
            with store.outage("refused"):
                await cancelled(lambda: claim.complete({"id": 7}))
                with pytest.raises(ConfigError):
                    await claim.complete({"id": 8}, ttl=-1)
        assert (await dedup.claim("order:42")).result == {"id": 7}


async def test_what_was_replaced_does_not_undo_the_second(store: FakeStore) -> None:
    async with gate(store) as dedup:
        claim = await dedup.claim("order:42")
        with store.outage("refused"):
            await cancelled(lambda: claim.complete("first"))
        await claim.complete("second")
        with pytest.raises(UsageError):
            await claim.complete("third")


async def test_its_block_ends_well_where_another_task_decides_anew(
    store: FakeStore, wait_until: Waiter
) -> None:
    """The recording that the block waits for is replaced: the block's task was cancelled, by nobody."""
    claims: list[Claim] = []

    async def work() -> None:
        async with dedup.claim("order:42") as claim:
            store.outage.start("refused")
            await cancelled(lambda: claim.complete("first"))
            claims.append(claim)

    async with gate(store) as dedup:
        leaving = asyncio.create_task(work())
        await wait_until(lambda: bool(claims), description="the block waits for its recording")
        other = asyncio.create_task(claims[0].complete("second"))
        await asyncio.wait([leaving], timeout=0.05)
        store.outage.stop()
        await leaving
        await other
        assert (await dedup.claim("order:42")).result == "second"


@pytest.mark.parametrize("within_a_block", [False, True])
async def test_a_loss_is_a_line_where_the_block_completes_too(
    within_a_block: bool, store: FakeStore, caplog: pytest.LogCaptureFixture, wait_until: Waiter
) -> None:
    caplog.set_level(logging.WARNING)
    async with Dedup(store, namespace="shop", lease=0.4, timeout=0.05) as dedup:

        async def work() -> None:
            async with dedup.claim("order:42") as claim:
                store.outage.start("refused")
                if not within_a_block:
                    await claim.complete()

        await cancelled(work)
        told = "order:42: its caller was cancelled, and its result could not be recorded"
        await wait_until(lambda: told in caplog.text, description="the log tells")


async def test_a_gate_that_closes_waits_for_it(store: FakeStore) -> None:
    async with Dedup(store, namespace="shop", lease=30.0) as dedup:
        claim = await dedup.claim("order:42")
        with store.outage("refused"):
            await cancelled(lambda: claim.complete({"id": 7}))
    async with Dedup(store, namespace="shop") as again:
        assert (await again.claim("order:42")).result == {"id": 7}


async def test_what_was_in_vain_is_a_line(store: FakeStore, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with Dedup(store, namespace="shop", lease=0.3) as dedup:
        claim = await dedup.claim("order:42")
        with store.outage("refused"):
            await cancelled(lambda: claim.complete({"id": 7}, within=0.1))
            with pytest.raises(UnavailableError):
                await claim._recording
    assert "order:42: its caller was cancelled, and its result could not be recorded" in caplog.text


@pytest.mark.parametrize("earlier", [False, True])
def test_a_loop_that_ends_in_the_outage_is_a_line(
    earlier: bool, store: FakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Asyncio said that a task was destroyed, and nothing said whose result was lost. `earlier`: cancelled before."""
    dedup = Dedup(store, namespace="shop", lease=30.0, timeout=0.1)
    caplog.set_level(logging.WARNING)

    async def main() -> None:
        await dedup.open()
        claim = await dedup.claim("order:42")
        store.outage.start("refused")
        if earlier:
            await cancelled(lambda: claim.complete({"id": 7}))
        else:
            completing = asyncio.create_task(claim.complete({"id": 7}))
            await asyncio.wait([completing], timeout=0.05)

    asyncio.run(main())
    gc.collect()
    assert "order:42: its caller was cancelled, and its result could not be recorded: " in caplog.text
    assert "destroyed" not in caplog.text


class Interrupted(Exception):
    """What a signal's handler raises, as Celery's soft time limit does."""


def test_without_asyncio(store: FakeStore) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted

    former = signal.signal(signal.SIGALRM, interrupt)
    try:
        with SyncDedup(store, namespace="shop", lease=30.0) as dedup:
            claim = dedup.claim("order:42")
            store.outage.start("refused")
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(Interrupted):
                claim.complete({"id": 7})
            store.outage.stop()
            assert dedup.claim("order:42", wait=5.0).result == {"id": 7}
    finally:
        signal.signal(signal.SIGALRM, former)
