"""A handler that ends by a cancellation which nobody asked for is an attempt that failed.

Something that it awaits was cancelled, such as a task that it shares; or its own task was, as by a timer of its own.
That ended the consumer, without an error, a line or an event: its messages waited for nobody, and the other handlers
were cut off. A consumer ends in silence where somebody has stopped or cancelled it, and only then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
import pytest

from fastdedup import Dedup, Resolution, Takeover
from fastdedup.events import ConsumerEnded, Event
from fastdedup.integrations.redis_streams import Consumer
from fastdedup.messages.decisions import Action, Decision, Reason
from fastdedup.messages.deliveries import Deliveries
from fastdedup.messages.delivery import HandlerCancelled
from fastdedup.messages.rules import MessageRules

from ..brokers import RabbitServer
from ..messages.test_rabbitmq import shop as rabbit_shop
from ..messages.test_redis_streams import Shop, Work, shop_of
from ..servers import RedisServer
from ..waiting import cancel, wait_until


async def lay(decision: Decision) -> None:
    raise AssertionError("it is no dead letter yet")


def deliveries(dedup: Dedup, **options: Any) -> Deliveries:
    return Deliveries(MessageRules("billing", lambda message: message, **options), dedup)


async def test_it_is_tried_again() -> None:
    async def handler(message: str) -> str:
        if not shared.done():
            shared.cancel()
            await shared
        return "done"

    async with Dedup("memory://", namespace="shop") as dedup:
        shared = asyncio.get_running_loop().create_future()
        billing = deliveries(dedup)
        decision = await billing.handle("m-1", handler, lay)
        assert (decision.action, decision.reason) == (Action.RETRY, Reason.FAILED)
        assert isinstance(decision.error, HandlerCancelled)
        assert (await billing.handle("m-1", handler, lay)).reason is Reason.FIRST


async def test_a_cancelled_consumer_ends_as_ever() -> None:
    began = asyncio.Event()

    async def handler(message: str) -> None:
        began.set()
        await asyncio.get_running_loop().create_future()

    async with Dedup("memory://", namespace="shop") as dedup:
        working = asyncio.create_task(deliveries(dedup).handle("m-1", handler, lay))
        await began.wait()
        await cancel(working)


async def test_a_handler_whose_own_time_is_over_raises_that() -> None:
    async def handler(message: str) -> None:
        async with asyncio.timeout(0.01):
            await asyncio.get_running_loop().create_future()

    async with Dedup("memory://", namespace="shop") as dedup:
        decision = await deliveries(dedup).handle("m-1", handler, lay)
        assert isinstance(decision.error, TimeoutError)


async def test_a_check_that_something_cancels_is_asked_again() -> None:
    asked: list[Takeover] = []

    async def check(takeover: Takeover) -> Resolution:
        asked.append(takeover)
        if len(asked) == 1:
            raise asyncio.CancelledError  # as an awaited future that was cancelled
        return Resolution.done("done")

    async with Dedup("memory://", namespace="shop") as dedup:
        rules = MessageRules("billing", lambda message: message)
        billing = Deliveries(rules, dedup, resolve=check)
        decision = await billing.handle("m-1", handler_of_no_use, lay, failed=1)
        assert isinstance(decision.error, HandlerCancelled)
        assert (await billing.handle("m-1", handler_of_no_use, lay, failed=2)).result == "done"


async def handler_of_no_use(message: str) -> None:
    raise AssertionError("the check says that it is done")


# A consumer, and what cancels its tasks


async def itself() -> None:
    running().cancel()
    await asyncio.sleep(0)


async def by_a_timer() -> None:
    asyncio.get_running_loop().call_later(0.001, running().cancel)
    await asyncio.Event().wait()


async def by_what_it_awaits_after_one_that_it_has_swallowed() -> None:
    with suppress(asyncio.CancelledError):
        await itself()
    shared = asyncio.get_running_loop().create_future()
    shared.cancel()
    await shared


def running() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


@pytest.fixture
def events() -> list[Event]:
    return []


@asynccontextmanager
async def opened(
    server: RedisServer, url: str, events: list[Event], **options: Any
) -> AsyncIterator[tuple[Shop, Consumer]]:
    async with (
        shop_of(server) as shop,
        Dedup(url, namespace="m", on_event=events.append) as dedup,
        shop.make(dedup, **options) as consumer,
    ):
        yield shop, consumer


def ends(events: list[Event]) -> list[str]:
    return [event.reason for event in events if isinstance(event, ConsumerEnded)]


@pytest.mark.parametrize("way", [itself, by_a_timer, by_what_it_awaits_after_one_that_it_has_swallowed])
async def test_a_consumer_goes_on_and_its_other_handlers_too(
    server: RedisServer,
    redis_url: str,
    events: list[Event],
    caplog: pytest.LogCaptureFixture,
    way: Callable[[], Awaitable[None]],
) -> None:
    end = asyncio.Event()
    left: list[int] = []

    async def then(order: str) -> None:
        if order == "beside":
            await end.wait()
        elif order == "bad":
            left.append(running().cancelling())
            if len(left) == 1:
                await way()

    work = Work(then)
    async with opened(server, redis_url, events) as (shop, consumer):
        task = asyncio.create_task(consumer.run(work))
        shop.add("beside", "bad")
        await wait_until(lambda: work.done == ["bad"], description="its next attempt is done")
        end.set()
        shop.add("later")
        await wait_until(lambda: consumer.counts.first == 3, description="all are done")
        assert (consumer.counts.retried, ends(events)) == (1, [])
        consumer.stop()
        await task
    assert sorted(work.begun) == ["bad", "bad", "beside", "later"]
    assert left == [0, 0], "its timeouts and task groups would count what is left of a cancellation"
    (line,) = [line for line in caplog.messages if "attempt 1 of 5 failed" in line]
    assert "error=HandlerCancelled at " in line
    assert __file__ in line


async def test_a_cancellation_on_its_way_as_the_handler_returns_undoes_nothing(
    server: RedisServer, redis_url: str, events: list[Event]
) -> None:
    """It was delivered where the success is recorded."""

    def then(order: str) -> None:
        running().cancel()

    async with opened(server, redis_url, events) as (shop, consumer):
        task = asyncio.create_task(consumer.run(Work(then)))
        shop.add("a", "b")
        await wait_until(lambda: consumer.counts.first == 2, description="both are done")
        await wait_until(lambda: not shop.pending(), description="both are acknowledged")
        assert consumer.is_running
        consumer.stop()
        await task


async def test_an_end_that_nobody_has_asked_for_is_told(
    server: RedisServer, redis_url: str, events: list[Event], caplog: pytest.LogCaptureFixture
) -> None:
    """What was begun ends first."""
    end = asyncio.Event()
    work = Work(lambda order: end.wait())
    async with opened(server, redis_url, events) as (shop, consumer):
        task = asyncio.create_task(consumer.run(work))
        shop.add("a")
        await wait_until(lambda: work.begun, description="it is begun")
        (reading,) = [each for each in asyncio.all_tasks() if each.get_name().endswith("._live")]

        def takes_no_more() -> bool:
            if not consumer._stop.is_set():
                reading.cancel()  # again and again: redis-py may lose one, as `heeding_cancel` says
            return consumer._stop.is_set()

        await wait_until(takes_no_more, description="it takes no more")
        end.set()
        with pytest.raises(RuntimeError, match="a task of the consumer was cancelled"):
            await task
        assert not consumer.is_running
    (reason,) = ends(events)
    assert work.done == ["a"]
    assert f"consumer 'billing' has ended, and takes no more messages: {reason}" in caplog.text


async def test_a_group_that_is_cut_off_is_told_too(
    server: RedisServer, redis_url: str, events: list[Event]
) -> None:
    """A cancellation as the consumer ends what was begun cuts off what is left."""
    work = Work(lambda order: asyncio.Event().wait())
    async with opened(server, redis_url, events) as (shop, consumer):
        task = asyncio.create_task(consumer.run(work))
        shop.add("a")
        await wait_until(lambda: work.begun, description="it is begun")
        consumer._tasks.cancel_scope.cancel()
        with pytest.raises(RuntimeError, match="a task of the consumer was cancelled"):
            await task
    assert len(ends(events)) == 1


@pytest.mark.parametrize(
    "how", ["cancelled", "cancelled with all tasks", "in a scope", "timed out", "stopped"]
)
async def test_a_consumer_that_somebody_ends_ends_in_silence(
    server: RedisServer, redis_url: str, events: list[Event], caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """Its handler is cut off and leaves the key free. No line says that the attempt has failed."""
    scope, handlers = anyio.CancelScope(), list[asyncio.Task[Any]]()

    def then(order: str) -> Awaitable[Any]:
        handlers.append(running())
        return asyncio.Event().wait()

    async def run(consumer: Consumer) -> None:
        with scope:
            async with asyncio.timeout(0.2 if how == "timed out" else None):
                await consumer.run(Work(then))

    async with opened(server, redis_url, events, grace=0.01) as (shop, consumer):
        task = asyncio.create_task(run(consumer))
        shop.add("a")
        await wait_until(lambda: handlers, description="it is begun")
        if how == "cancelled with all tasks":
            handlers[0].cancel()  # as `asyncio.run` does at its end, in any order
        if how.startswith("cancelled"):
            task.cancel()
        elif how == "in a scope":
            scope.cancel()
        elif how == "stopped":
            consumer.stop()
        await asyncio.wait([task])
        assert task.cancelled() is how.startswith("cancelled")
        assert isinstance(None if task.cancelled() else task.exception(), TimeoutError) is (
            how == "timed out"
        )
        assert not consumer.is_running
    assert ends(events) == []
    assert "attempt 1 of" not in caplog.text
    assert "has ended" not in caplog.text
    async with Dedup(redis_url, namespace="m") as dedup:
        record = await dedup.get("billing|a")
    assert record is not None
    assert (record.state, record.attempt) == ("released", 1)


# RabbitMQ, whose tasks handle one message after the other


async def test_a_task_of_rabbitmq_goes_on_with_the_next_message(
    rabbitmq: RabbitServer, redis_url: str
) -> None:
    async with rabbit_shop(rabbitmq, redis_url) as orders:
        hit: list[str | None] = []

        async def then(message: Any) -> None:
            assert running().cancelling() == 0
            if message.message_id not in hit:
                hit.append(message.message_id)
                await itself()

        orders.then = then
        async with orders.consuming(prefetch=1) as consumer:
            await orders.publish("1", "2")
            await wait_until(lambda: consumer.counts.first == 2, description="both are done at last")
            assert consumer.counts.retried == 2


async def test_a_timer_that_a_handler_has_left_ends_no_consumer_of_rabbitmq(
    rabbitmq: RabbitServer, redis_url: str
) -> None:
    tasks: list[asyncio.Task[Any]] = []
    async with rabbit_shop(rabbitmq, redis_url) as orders:
        orders.then = lambda message: tasks.append(running())
        async with orders.consuming(prefetch=1) as consumer:

            def is_done(number: int) -> bool:
                return consumer.counts.first == number

            for number in (1, 2, 3):
                await orders.publish(str(number))
                await wait_until(partial(is_done, number), description="it is done, and its task is free")
                tasks[-1].cancel()
                await wait_until(lambda: not tasks[-1].cancelling(), description="that is taken back")
            assert consumer.is_running
    assert len(set(tasks)) == 1
