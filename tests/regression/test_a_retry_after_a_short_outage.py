"""A message whose handler failed while its gate's store was away is tried again soon after the store is back.

Neither the short lease nor the release of its key had reached the store, and nobody sent them again: with a lease of
30 seconds an outage of one second delayed the next attempt by 30. Without a delay between attempts it was right.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from fastdedup import Dedup, LocalLRU, Record, UnavailableError
from fastdedup.messages import Decision, MessageRules, Reason
from fastdedup.messages.deliveries import Deliveries
from fastdedup.sql import Inbox
from fastdedup.testing import FakeStore

from ..messages.test_redis_streams import Waiter, Work, shop_of
from ..messages.test_rules import Shop as Database
from ..servers import RedisServer

DELAY = 0.3
NEVER = 600.0


class Message:
    """A message whose handler fails at its first attempt, as an outage begins."""

    def __init__(
        self, dedup: Dedup, outage: Callable[[], object], delay: float, inbox: Inbox | None = None
    ) -> None:
        rules = MessageRules("billing", lambda message: "m-1", wait=0.0, retry_delay=delay)
        self._deliveries = Deliveries(rules, dedup, inbox)
        self._dedup = dedup
        self._outage = outage
        self._key = rules.gate_key("m-1") if inbox is None else inbox.gate_key("m-1")
        self.attempts = 0

    async def handler(self, *given: Any) -> None:
        self.attempts += 1
        if self.attempts == 1:
            self._outage()
            raise ValueError("no such customer")

    async def deliver(self) -> Reason:
        return (await self._deliveries.handle(None, self.handler, lay)).reason

    async def record(self) -> Record | None:
        """Return what the store holds of its key; None also while the store does not answer."""
        with suppress(UnavailableError):
            return await self._dedup.get(self._key)
        return None

    async def is_held(self, at_most: float) -> bool:
        """True where the key is held, and for so many seconds at most."""
        record = await self.record()
        return record is not None and record.state == "processing" and (record.lease or 0.0) <= at_most


async def lay(decision: Decision) -> None:
    raise AssertionError("it is no dead letter yet")


@asynccontextmanager
async def durable() -> AsyncIterator[RedisServer]:
    """A Redis that keeps its data when it is killed."""
    server = RedisServer("--appendonly", "yes", "--appendfsync", "always").start()
    try:
        yield server
    finally:
        server.stop()


async def test_a_killed_redis_delays_no_retry_by_a_lease(server: RedisServer, wait_until: Waiter) -> None:
    def outage(order: str) -> None:
        if len(work.begun) == 1:
            redis.kill()
            raise ValueError("no such customer")

    work = Work(outage)
    async with (
        durable() as redis,
        shop_of(server) as shop,
        Dedup(redis.url, namespace="m", lease=NEVER, timeout=0.1) as dedup,
        shop.consumer(dedup, work, retry_delay=DELAY) as consumer,
    ):
        shop.add("order-7")
        await wait_until(lambda: consumer.is_paused, description="the next attempt waits for its gate")
        redis.start()
        await wait_until(lambda: work.done, description="it begins")
        assert work.begun == ["order-7"] * 2


@pytest.mark.parametrize("gated_inbox", [False, True], ids=["gate", "gate and inbox"])
@pytest.mark.parametrize("way", ["refused", "frozen", "lost_reply"])
async def test_no_attempt_comes_before_the_delay_is_over(
    way: str, gated_inbox: bool, tmp_path: Path, wait_until: Waiter
) -> None:
    """The outage is shorter than the delay: the key is then held until that is over."""
    store = FakeStore()
    inbox = Database(tmp_path / "shop.db").inbox if gated_inbox else None
    async with Dedup(store, namespace="m", lease=2 * NEVER, timeout=0.05) as dedup:
        message = Message(dedup, lambda: store.outage.start(way), NEVER, inbox)
        assert await message.deliver() is Reason.FAILED
        store.outage.stop()
        await wait_until(lambda: message.is_held(at_most=NEVER), description="it has the shorter lease")
        assert await message.deliver() is Reason.IN_PROGRESS
        store.clock.advance(NEVER)
        assert await message.deliver() is Reason.FIRST
        assert message.attempts == 2


async def test_a_delay_that_is_over_frees_the_key_at_once(wait_until: Waiter) -> None:
    store = FakeStore()
    async with Dedup(store, namespace="m", lease=NEVER, timeout=0.05) as dedup:
        message = Message(dedup, lambda: store.outage.start("refused"), 0.01)
        assert await message.deliver() is Reason.FAILED
        store.outage.stop()

        async def is_free() -> bool:
            record = await message.record()
            return record is not None and record.state == "released"

        await wait_until(is_free, description="the key is free")
        assert await message.deliver() is Reason.FIRST


@pytest.mark.virtual_time
async def test_a_gate_that_closes_sets_the_shorter_lease_first() -> None:
    store = FakeStore()
    async with Dedup(store, namespace="m", lease=2 * NEVER, timeout=1.0) as dedup:
        message = Message(dedup, lambda: store.outage.start("refused"), NEVER)
        assert await message.deliver() is Reason.FAILED
        assert dedup._namespace.connection.undo_counts()[1] == 1
        store.outage.stop()
    async with dedup:
        assert await message.is_held(at_most=NEVER)


async def test_a_policy_that_frees_the_key_leaves_nothing_to_send_again() -> None:
    store = FakeStore()
    async with Dedup(store, namespace="m", lease=NEVER, timeout=0.05, on_unavailable=LocalLRU()) as dedup:
        message = Message(dedup, lambda: store.outage.start("refused"), DELAY)
        assert await message.deliver() is Reason.FAILED
        assert dedup._namespace.connection.undo_counts()[1] == 0
        assert await message.deliver() is Reason.FIRST
        store.outage.stop()
