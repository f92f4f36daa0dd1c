"""A handler's error that is no `Exception`, such as a panic of Rust code, is a failed attempt, and no end of all.

It ended the consumer without a line or an event, and cut off the other handlers; the message waited for nobody, and
ended the next consumer, too. What ends the process, such as `sys.exit()`, ends `run`, and that is told.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fastdedup import Dedup
from fastdedup.events import ConsumerEnded, DeadLettered, Event
from fastdedup.messages import Action, Reason

from ..brokers import RabbitServer
from ..messages.test_rabbitmq import shop as rabbit_shop
from ..messages.test_redis_streams import Waiter, Work, shop_of
from ..messages.test_rules import Billing
from ..messages.test_rules import Consumer as BareConsumer
from ..messages.test_rules import Shop as Database
from ..servers import RedisServer


class Panic(BaseException):
    """As PyO3's PanicException, and what `pytest.fail` raises."""


async def panics() -> None:
    raise Panic("index out of range")


async def panics_in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(panics())


@pytest.mark.parametrize("work_of", [panics, panics_in_a_group])
async def test_it_is_tried_again_then_dead_lettered(
    server: RedisServer,
    redis_url: str,
    wait_until: Waiter,
    caplog: pytest.LogCaptureFixture,
    work_of: Callable[[], Awaitable[None]],
) -> None:
    events: list[Event] = []
    end = asyncio.Event()
    work = Work(lambda order: work_of() if order == "bad" else end.wait())
    async with (
        shop_of(server) as shop,
        Dedup(redis_url, namespace="m", on_event=events.append) as dedup,
        shop.consumer(dedup, work, attempts=2, dead_letter=shop.dead) as consumer,
    ):
        shop.add("beside", "bad")
        await wait_until(lambda: consumer.counts.dead_lettered, description="it is a dead letter")
        end.set()
        await wait_until(lambda: consumer.counts.first, description="the other one is done")
        assert consumer.is_running
    assert sorted(work.begun) == ["bad", "bad", "beside"]
    name = "Panic" if work_of is panics else "BaseExceptionGroup"
    assert [event for event in events if isinstance(event, DeadLettered)] == [
        DeadLettered("billing", "bad", "failed", 2, name)
    ]
    assert f"attempt 1 of 2 failed: consumer='billing' key='bad' error={name} at " in caplog.text


async def test_a_consumer_of_rabbitmq_goes_on(
    rabbitmq: RabbitServer, redis_url: str, wait_until: Waiter
) -> None:
    async with rabbit_shop(rabbitmq, redis_url) as orders:
        orders.then = lambda message: panics() if message.message_id == "bad" else None
        async with orders.consuming(prefetch=1, attempts=2) as consumer:
            await orders.publish("bad", "later")
            await wait_until(lambda: consumer.counts.dead_lettered, description="it is a dead letter")
            await wait_until(lambda: consumer.counts.first, description="the next one is done")
        assert orders.runs["bad"] == 2
        assert len(await orders.dead()) == 1


@pytest.mark.parametrize("gated", [True, False])
async def test_its_transaction_is_rolled_back(redis_url: str, tmp_path: Path, gated: bool) -> None:
    shop = Database(tmp_path / "shop.db")
    async with Dedup(redis_url, namespace="m") as dedup:
        consumer = Billing(dedup if gated else None, inbox=shop.inbox)
        consumer.then = panics
        decision = await consumer.get()
        assert (decision.action, decision.reason) == (Action.RETRY, Reason.FAILED)
        assert isinstance(decision.error, Panic)
        assert shop.effects() == 0
        consumer.then = lambda: None
        assert (await consumer.get()).reason is Reason.FIRST
        assert shop.effects() == 1


@pytest.mark.parametrize("inbox", [True, False])
@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt, GeneratorExit])
async def test_what_ends_the_process_is_no_failed_attempt(
    redis_url: str, tmp_path: Path, end: type[BaseException], inbox: bool
) -> None:
    """Alone, or beside others in a group of anyio's."""
    shop = Database(tmp_path / "shop.db")
    async with Dedup(redis_url, namespace="m") as dedup:
        consumer = Billing(dedup, inbox=shop.inbox) if inbox else BareConsumer(dedup)
        for error in (end(), BaseExceptionGroup("of anyio's", [ValueError(), end()])):
            with pytest.raises(type(error)):
                await consumer.deliveries.handle({"id": "order-7"}, raising(error), consumer.lay)
        assert (await consumer.get()).attempts == 3, "its key was free at once"


def raising(error: BaseException) -> Callable[..., Awaitable[Any]]:
    async def handler(*given: Any) -> None:
        raise error

    return handler


def test_an_end_of_the_process_is_told(
    server: RedisServer, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[Event] = []

    async def main() -> None:
        async with (
            shop_of(server) as shop,
            Dedup(redis_url, namespace="m", on_event=events.append) as dedup,
            shop.make(dedup) as consumer,
        ):
            shop.add("a")
            await consumer.run(Work(lambda order: sys.exit(3)))

    with pytest.raises(SystemExit) as ended:
        asyncio.run(main())
    assert ended.value.code == 3
    assert [event for event in events if isinstance(event, ConsumerEnded)] == [
        ConsumerEnded("billing", "SystemExit: 3")
    ]
    assert "consumer 'billing' has ended, and takes no more messages: SystemExit: 3" in caplog.text
