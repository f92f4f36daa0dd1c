"""What is told of a consumer: attempts that fail, without an error's text and without a flood, and its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from redis import ResponseError

from fastdedup import ConfigError, Dedup, UsageError, log_throttle
from fastdedup.events import ConsumerEnded, Event
from fastdedup.integrations.prometheus import watch
from fastdedup.integrations.redis_streams import Consumer
from fastdedup.messages.failed_attempts import AT_ONCE, WINDOW, FailedAttempts
from fastdedup.messages.rules import MessageRules

from ..brokers import RabbitServer
from ..otel import Otel
from ..servers import RedisServer
from ..waiting import cancel, wait_until
from .consumers import Open, Work, a_handler, fault, opened
from .test_rabbitmq import shop as shop_of_rabbitmq
from .test_redis_streams import Shop, shop_of
from .test_rules import Shop as Database


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, logger="fastdedup.messages")
    return caplog


@pytest.mark.parametrize("by_inbox", [False, True])
async def test_each_attempt_of_a_consumer_has_a_line(
    streams: RedisServer, redis_url: str, told: pytest.LogCaptureFixture, tmp_path: Path, by_inbox: bool
) -> None:
    options: dict[str, Any] = {"inbox": Database(tmp_path / "db").inbox} if by_inbox else {}
    async with shop_of(streams) as shop, opened(redis_url) as dedup:
        shop.add("a")
        async with shop.consumer(dedup, Work(fault), attempts=2, dead_letter=shop.dead, **options):
            await wait_until(shop.dead_letters, description="a dead letter")
    first, last, dead = [record for record in told.records if record.name == "fastdedup.messages"]
    begins, _, where = first.getMessage().partition(" at ")
    assert begins == "attempt 1 of 2 failed: consumer='billing' key='a' error=ValueError"
    assert where.startswith("__call__ (")
    assert "> fault (" in where
    assert "/fastdedup/" not in where
    assert last.getMessage().startswith("attempt 2 of 2 failed")
    assert dead.getMessage().startswith("dead letter")
    assert first.exc_info is None
    assert "no such customer" not in told.text


async def test_a_consumer_that_ends_tells_how_many_had_no_line(
    streams: RedisServer, redis_url: str, told: pytest.LogCaptureFixture
) -> None:
    async with shop_of(streams) as shop, opened(redis_url) as dedup:
        for number in range(AT_ONCE + 2):
            shop.add(f"n{number}")
        work = Work(fault)
        async with shop.consumer(dedup, work, attempts=2, retry_delay=1000.0):
            await wait_until(lambda: len(work.begun) == AT_ONCE + 2, description="attempts that fail")
    assert told.messages[-1] == "consumer 'billing': attempts that failed without a line of their own: 2"


async def test_a_consumer_of_rabbitmq_that_is_cancelled_tells_it_too(
    rabbitmq: RabbitServer, redis_url: str, told: pytest.LogCaptureFixture
) -> None:
    async with shop_of_rabbitmq(rabbitmq, redis_url) as shop:
        shop.then = fault
        await shop.publish(*(str(number) for number in range(AT_ONCE + 2)))
        async with shop.consumer(attempts=2, retry_delay=1000.0) as consumer:
            running = asyncio.create_task(consumer.run(shop.handler))
            await wait_until(lambda: consumer.counts.retried == AT_ONCE + 2, description="attempts that fail")
            await cancel(running)
    (count,) = [line for line in told.messages if "without a line" in line]
    assert count.endswith(": 2")


def failed() -> ValueError:
    try:
        raise ValueError("no such customer")
    except ValueError as error:
        return error


def test_a_handler_that_always_raises_floods_no_log(
    told: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(log_throttle, "monotonic", lambda: now)
    attempts, error = FailedAttempts(MessageRules("orders", lambda message: "k")), failed()
    for _ in range(AT_ONCE + 7):
        attempts.tell("k", 1, error)
    assert len(told.messages) == AT_ONCE
    now += WINDOW
    attempts.tell("k", 1, error)
    count, line = told.messages[AT_ONCE:]
    assert count == "consumer 'orders': attempts that failed without a line of their own: 7"
    assert line.startswith("attempt 1 of 5 failed")


def test_the_count_is_told_once(told: pytest.LogCaptureFixture) -> None:
    attempts, error = FailedAttempts(MessageRules("orders", lambda message: "k")), failed()
    attempts.tell_count()
    assert told.messages == []
    for _ in range(AT_ONCE + 1):
        attempts.tell("k", 1, error)
    attempts.tell_count()
    attempts.tell_count()
    assert told.messages[AT_ONCE:] == [
        "consumer 'orders': attempts that failed without a line of their own: 1"
    ]


def test_at_level_debug_each_attempt_has_its_traceback(told: pytest.LogCaptureFixture) -> None:
    told.set_level(logging.DEBUG, logger="fastdedup.messages")
    attempts = FailedAttempts(MessageRules("orders", lambda message: "k"))
    for _ in range(AT_ONCE + 1):
        attempts.tell("k", 1, failed())
    assert len(told.messages) == AT_ONCE + 1
    assert told.text.count("ValueError: no such customer") == AT_ONCE + 1
    attempts.tell_count()
    assert len(told.messages) == AT_ONCE + 1


# A trouble that repeats


async def test_dead_letters_that_are_not_taken_have_one_line(
    server: RedisServer, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each is tried again and again, and none is lost."""
    caplog.set_level(logging.ERROR, logger="fastdedup.messages")
    async with shop_of(server) as shop, Dedup(redis_url, namespace="m", timeout=5.0) as dedup:
        tries = 0

        async with shop.consumer(
            dedup, Work(fault), attempts=1, dead_letter=shop.dead, retry_delay=0.0
        ) as consumer:
            lay = consumer._lay

            async def refused(*given: Any) -> None:
                nonlocal tries
                if (tries := tries + 1) < 8:
                    raise ConnectionError("the place is full")
                await lay(*given)

            consumer._lay = refused  # type: ignore[method-assign]
            shop.add("a", "b")
            await wait_until(lambda: consumer.counts.dead_lettered == 2, description="both are laid down")
    assert tries >= 9
    assert len([line for line in caplog.messages if "cannot lay a dead letter down" in line]) == 1


# Whether a consumer's `run` is at work: its figure, and what is told where an error ends it


class Watched:
    """A consumer whose figures and events are kept."""

    def __init__(self, shop: Shop, url: str) -> None:
        self.events: list[Event] = []
        self.registry = CollectorRegistry()
        self.otel = Otel()
        self.dedup = Dedup(url, namespace="m", timeout=5.0, on_event=self.events.append)
        self.consumer: Consumer = shop.make(self.dedup)
        watch(self.consumer, registry=self.registry)
        self.otel.instrument(self.dedup, self.consumer)

    def figures(self) -> set[Any]:
        """What every watcher says, which is one thing."""
        (point,) = self.otel.points("fastdedup.consumer.running")
        assert point.attributes == {"fastdedup.consumer": "billing"}
        return {
            self.registry.get_sample_value("fastdedup_consumer_running", {"consumer": "billing"}),
            point.value,
            int(self.consumer.is_running),
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        """Run within; its error is the block's to await."""
        async with self.dedup, self.consumer:
            assert self.figures() == {0}
            task = asyncio.create_task(self.consumer.run(a_handler))
            await wait_until(lambda: self.figures() == {1}, description="it runs")
            yield task
            task.cancel()
            with suppress(asyncio.CancelledError, ResponseError, UsageError):
                await task
            assert self.figures() == {0}

    def ended(self) -> list[ConsumerEnded]:
        return [event for event in self.events if isinstance(event, ConsumerEnded)]


@pytest.fixture
def open_watched(server: RedisServer, redis_url: str) -> Open:
    """Opens a stream with a consumer of it that is watched, and runs."""

    @asynccontextmanager
    async def open_one() -> AsyncIterator[tuple[Shop, Watched, asyncio.Task[None]]]:
        async with shop_of(server) as shop:
            watched = Watched(shop, redis_url)
            async with watched.running() as task:
                yield shop, watched, task

    return open_one


async def test_a_stream_that_comes_back_empty_ends_its_consumer_and_is_told(
    open_watched: Open, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Once an incident: a line, an event, and figures of 0. Before, no figure and no line told of it."""
    async with open_watched() as (_, watched, task):
        server.kill()
        await wait_until(lambda: watched.consumer.is_paused, description="it waits for its Redis")
        assert watched.figures() == {1}, "a paused consumer runs: it goes on by itself"
        server.start()
        with pytest.raises(ResponseError, match="NOGROUP"):
            await task
        assert watched.figures() == {0}
    (event,) = watched.ended()
    assert event.consumer == "billing"
    assert event.reason.startswith("ResponseError: NOGROUP ")
    lines = [(each.levelname, each.getMessage()) for each in caplog.records if "ended" in each.getMessage()]
    told = f"consumer 'billing' has ended, and takes no more messages: {event.reason}"
    assert lines == [("ERROR", told)]


@pytest.mark.parametrize("how", ["stopped", "cancelled"])
async def test_a_consumer_that_somebody_ends_is_no_incident(
    open_watched: Open, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    async with open_watched() as (_, watched, task):
        if how == "stopped":
            watched.consumer.stop()
            await task
        else:
            await cancel(task)
        assert watched.figures() == {0}
    assert watched.ended() == []
    assert "has ended" not in caplog.text


async def test_a_consumer_whose_gate_is_closed_is_told_as_ended(open_watched: Open) -> None:
    async with open_watched() as (shop, watched, task):
        await watched.dedup.aclose()
        shop.add("a")
        with pytest.raises(UsageError):
            await task
    assert [event.reason.partition(":")[0] for event in watched.ended()] == ["UsageError"]


async def test_a_run_that_never_begins_is_not_told(
    server: RedisServer, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller's mistake is his to see."""
    async with shop_of(server) as shop:
        watched = Watched(shop, redis_url)
        with pytest.raises(UsageError, match="not open"):
            await watched.consumer.run(a_handler)
        async with watched.consumer:
            with pytest.raises(UsageError, match="this Dedup is not open"):
                await watched.consumer.run(a_handler)
        other = Watched(shop, redis_url)
        async with other.dedup, other.consumer:
            with pytest.raises(ConfigError, match="async def"):
                await other.consumer.run(print)  # type: ignore[arg-type]
    assert watched.ended() == other.ended() == []
    assert "has ended" not in caplog.text


async def in_a_transaction(transaction: Any, message: Any) -> None:
    """A handler of an inbox's consumer."""


async def test_a_consumer_without_a_gate_has_a_line_and_a_figure(
    server: RedisServer, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    registry = CollectorRegistry()

    def figure() -> float | None:
        return registry.get_sample_value("fastdedup_consumer_running", {"consumer": "billing"})

    async with shop_of(server) as shop:
        consumer = shop.make(None, inbox=Database(tmp_path / "shop.db").inbox)
        watch(consumer, registry=registry)
        async with consumer:
            task = asyncio.create_task(consumer.run(in_a_transaction))
            await wait_until(lambda: figure() == 1, description="it runs")
            shop.raw.xgroup_destroy(shop.stream, "billing")
            with pytest.raises(ResponseError):
                await task
            assert figure() == 0
    assert "consumer 'billing' has ended" in caplog.text


async def test_a_new_consumer_of_the_name_runs_in_place_of_one_that_ended(open_watched: Open) -> None:
    """As a program's supervisor makes it: the one that ended counts no more."""
    async with open_watched() as (shop, watched, task):
        shop.raw.xgroup_destroy(shop.stream, "billing")
        with pytest.raises(ResponseError):
            await task
        shop.raw.xgroup_create(shop.stream, "billing", id="0")
        consumer = shop.make(watched.dedup)
        watch(consumer, registry=watched.registry)
        name = "fastdedup_consumer_running"

        def count() -> float | None:
            return watched.registry.get_sample_value(name, {"consumer": "billing"})

        async with consumer:
            task = asyncio.create_task(consumer.run(a_handler))
            await wait_until(lambda: count() == 1, description="the new one runs")
            consumer.stop()
            await task
        assert count() == 0
