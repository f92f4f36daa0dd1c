"""What settles a claim in an outage takes effect once the store is back, also if its caller is gone."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from fastdedup import Claim, ConfigError, Dedup, Outcome, UnavailableError, UsageError
from fastdedup.events import Event, LeaseLost
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.testing import FakeStore

from ..integrations.shops import until
from ..proxy import Proxy, proxied
from ..servers import RedisServer
from ..waiting import acquired, cancel, wait_until
from .test_interrupts_of_synchronous_code import TimeLimit, interrupts  # noqa: F401 -- a fixture
from .test_lifecycle import Moody

# An outcome whose caller is cancelled while the store does not answer is recorded once the store is back.
# It was dropped: the work was done, the key was freed by the end of the lease, and a retry did the work
# again.


def gate(store: FakeStore) -> Dedup:
    return Dedup(store, namespace="shop", lease=30.0)


async def cancelled(work: Callable[[], Awaitable[Any]]) -> None:
    """Do work until it waits for the store, then cancel its caller."""
    task = asyncio.ensure_future(work())
    done, _ = await asyncio.wait([task], timeout=0.05)
    assert not done, "the store does not answer"
    await cancel(task)


async def recorded(dedup: Dedup, key: str) -> Claim:
    """Return what a duplicate is told, once the store is back."""
    return await dedup.claim(key, wait=10.0)


async def test_a_cancelled_caller_may_decide_anew(store: FakeStore) -> None:
    async with gate(store) as dedup:
        claim = await dedup.claim("order:42")
        with store.outage("refused"):
            await cancelled(lambda: claim.complete("first"))
            await cancelled(lambda: claim.complete("second"))
        await claim.complete("third")
        assert (await dedup.claim("order:42")).result == "third"


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


async def test_a_block_ends_well_if_another_task_decides_anew(store: FakeStore) -> None:
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
    within_a_block: bool, store: FakeStore, caplog: pytest.LogCaptureFixture
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


async def test_an_outcome_that_was_not_recorded_is_a_line(
    store: FakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with Dedup(store, namespace="shop", lease=0.3) as dedup:
        claim = await dedup.claim("order:42")
        with store.outage("refused"):
            await cancelled(lambda: claim.complete({"id": 7}, within=0.1))
            with pytest.raises(UnavailableError):
                await claim.settlement.recording
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


@pytest.mark.usefixtures("interrupts")
def test_a_completion_without_asyncio(store: FakeStore) -> None:
    with SyncDedup(store, namespace="shop", lease=30.0) as dedup:
        claim = dedup.claim("order:42")
        store.outage.start("refused")
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(TimeLimit):
            claim.complete({"id": 7})
        store.outage.stop()
        assert dedup.claim("order:42", wait=5.0).result == {"id": 7}


# A release whose caller is cancelled while the store is silent frees the key once the store is back. It was
# forgotten: the key stayed held for the rest of the lease, a second release said "released already", and
# leaving the block did nothing.


@asynccontextmanager
async def cut_off(server: RedisServer) -> AsyncIterator[tuple[Dedup, Proxy]]:
    """Yield a gate, and the proxy that can keep it from its Redis."""
    async with (
        proxied(server) as proxy,
        Dedup(proxy.url, namespace="t", timeout=0.15, lease=60.0) as dedup,
    ):
        yield dedup, proxy


async def release_in_silence(claim: Claim, proxy: Proxy) -> None:
    """Release while nothing passes, and cancel that before it has an answer."""
    proxy.swallow()
    task = asyncio.ensure_future(claim.release())
    await asyncio.sleep(0)
    await cancel(task)


async def test_the_key_of_a_named_owner_is_free_once_the_store_is_back(
    redis_url: str, redis_server: RedisServer
) -> None:
    """The model has claims whose owner is drawn: a named one is left alone, unless it has asked for its release."""
    async with cut_off(redis_server) as (dedup, proxy), Dedup(redis_url, namespace="t") as other:
        await release_in_silence(await dedup.claim("k", owner="w1"), proxy)
        proxy.forward()
        await acquired(other, "k")


@pytest.mark.parametrize("cancelled", [True, False])
async def test_leaving_the_block_never_completes_a_release(
    redis_url: str, redis_server: RedisServer, cancelled: bool
) -> None:
    """Not where the release was cancelled, and not where it had no answer."""
    async with cut_off(redis_server) as (dedup, proxy), Dedup(redis_url, namespace="t") as other:
        async with dedup.claim("k") as claim:
            if cancelled:
                await release_in_silence(claim, proxy)
            else:
                proxy.swallow()
                with pytest.raises(UnavailableError):
                    await claim.release()
            proxy.forward()

        async def taken() -> bool:
            found = await other.claim("k")
            assert found.outcome is not Outcome.SUCCEEDED
            return found.acquired

        await wait_until(taken, description="another caller gets the key")


@pytest.mark.usefixtures("interrupts")
def test_a_release_without_asyncio() -> None:
    store = Moody()
    with SyncDedup(store, namespace="shop", lease=60.0, timeout=0.3) as dedup:
        claim = dedup.claim("k")
        store.hangs = True
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(TimeLimit):
            claim.release()
        store.hangs = False
        assert dedup.claim("k", wait=10.0).acquired


# A key that its body gave back while the store did not answer is free once the store answers. It was held
# by nobody until its lease ended: the key of a request that had failed answered 409 for so long.


class WorkFailed(Exception):
    """What a body raises."""


async def test_a_named_owner_that_could_not_release_keeps_its_claim(store: FakeStore) -> None:
    async with Dedup(store, namespace="shop", lease=600.0, timeout=0.05) as gate:
        with suppress(WorkFailed):
            async with gate.claim("order:42", owner="worker-7"):
                store.outage.start("refused")
                raise WorkFailed
        store.outage.stop()
        await acquired(gate, "order:42", is_away=True, owner="worker-7")
        assert (await gate.claim("order:42")).outcome == "in_progress"


def test_a_release_of_synchronous_code_takes_effect(store: FakeStore) -> None:
    with SyncDedup(store, namespace="shop", lease=600.0, timeout=0.05) as gate:

        def work() -> None:
            with gate.claim("order:42"):
                store.outage.start("refused")
                raise WorkFailed

        with pytest.raises(WorkFailed):
            work()
        store.outage.stop()

        def acquired() -> bool:
            with suppress(UnavailableError):
                return gate.claim("order:42").acquired
            return False

        until(acquired, description="the key is free")


async def test_a_later_holding_of_the_same_owner_is_left_alone(store: FakeStore) -> None:
    """Its release takes effect without its reply, and its owner's name is handed on: what it gave up is over."""
    async with (
        Dedup(store, namespace="shop", lease=600.0, timeout=0.05) as gate,
        Dedup(store, namespace="shop", lease=600.0, timeout=0.05) as other,
    ):
        first = await gate.claim("order:42")
        await first.settlement.free()
        gate.gate.connection.orphans.add(first.settlement.op, first.fence)
        second = await other.claim("order:42", owner=first.owner)
        assert second.acquired
        await wait_until(
            lambda: gate.gate.connections.orphan_counts()[1] == 0, description="it was looked for"
        )
        assert (await gate.claim("order:42")).outcome == "in_progress"
        await second.complete()


# Fault: a renewal that came while its claim was released told of a lost lease: an ERROR in the log, and an
# event.


@pytest.mark.parametrize("how", ["release", "complete"])
async def test_no_lease_is_lost(redis_url: str, redis_server: RedisServer, how: str) -> None:
    events: list[Event] = []
    async with (
        proxied(redis_server) as proxy,
        Dedup(proxy.url, namespace="t", timeout=5.0, lease=1.5, on_event=events.append) as dedup,
    ):
        claim = await dedup.claim(how, renew=True)
        with redis_server.frozen():
            ending = asyncio.ensure_future(getattr(claim, how)())
            renewal = claim.settlement.renewal
            await wait_until(
                lambda: renewal.task is not None and renewal.task.done(), description="the renewal came"
            )
        await ending
        assert not claim.lost
    assert not [event for event in events if isinstance(event, LeaseLost)]
