"""Whether a consumer's `run` is at work: its figure, and what is told where an error ends it. On a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from redis import ResponseError

from fastdedup import ConfigError, Dedup, UsageError
from fastdedup.events import ConsumerEnded, Event
from fastdedup.integrations.prometheus import watch
from fastdedup.integrations.redis_streams import Consumer

from ..otel import Otel
from ..servers import RedisServer
from .consumers import Waiter, a_handler
from .test_redis_streams import Shop, shop_of
from .test_rules import Shop as Database


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
    async def running(self, wait_until: Waiter) -> AsyncIterator[asyncio.Task[None]]:
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


async def test_a_stream_that_comes_back_empty_ends_its_consumer_and_is_told(
    server: RedisServer, redis_url: str, wait_until: Waiter, caplog: pytest.LogCaptureFixture
) -> None:
    """Once an incident: a line, an event, and figures of 0. Before, no figure and no line told of it."""
    async with shop_of(server) as shop:
        watched = Watched(shop, redis_url)
        async with watched.running(wait_until) as task:
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
    server: RedisServer, redis_url: str, wait_until: Waiter, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    async with shop_of(server) as shop:
        watched = Watched(shop, redis_url)
        async with watched.running(wait_until) as task:
            if how == "stopped":
                watched.consumer.stop()
                await task
            else:
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert watched.figures() == {0}
    assert watched.ended() == []
    assert "has ended" not in caplog.text


async def test_a_consumer_whose_gate_is_closed_is_told_as_ended(
    server: RedisServer, redis_url: str, wait_until: Waiter
) -> None:
    async with shop_of(server) as shop:
        watched = Watched(shop, redis_url)
        async with watched.running(wait_until) as task:
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
        async with watched.dedup, watched.consumer:
            with pytest.raises(ConfigError, match="async def"):
                await watched.consumer.run(print)  # type: ignore[arg-type]
    assert watched.ended() == []
    assert "has ended" not in caplog.text


async def test_a_consumer_without_a_gate_has_a_line_and_a_figure(
    server: RedisServer, tmp_path: Any, wait_until: Waiter, caplog: pytest.LogCaptureFixture
) -> None:
    registry = CollectorRegistry()

    def figure() -> float | None:
        return registry.get_sample_value("fastdedup_consumer_running", {"consumer": "billing"})

    async with shop_of(server) as shop:
        consumer = shop.make(None, inbox=Database(tmp_path / "shop.db").inbox)
        watch(consumer, registry=registry)
        async with consumer:
            task = asyncio.create_task(consumer.run(a_handler))
            await wait_until(lambda: figure() == 1, description="it runs")
            shop.raw.xgroup_destroy(shop.stream, "billing")
            with pytest.raises(ResponseError):
                await task
            assert figure() == 0
    assert "consumer 'billing' has ended" in caplog.text


async def test_a_new_consumer_of_the_name_runs_in_place_of_one_that_ended(
    server: RedisServer, redis_url: str, wait_until: Waiter
) -> None:
    """As a program's supervisor makes it: the one that ended counts no more."""
    async with shop_of(server) as shop:
        watched = Watched(shop, redis_url)
        async with watched.running(wait_until) as task:
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
