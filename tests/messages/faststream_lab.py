"""A FastStream application on a real broker, and the cases that hold on every one of them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from faststream import Context

from fastdedup import Dedup
from fastdedup.integrations.faststream import DedupMiddleware, header
from fastdedup.messages import DeadLetterError
from fastdedup.messages.headers import ATTEMPTS, CONSUMER
from fastdedup.messages.keys import gate_key
from fastdedup.messages.room import lay

from ..waiting import wait_until

HEADERS = Context("message.headers")
RAW = Context("message.raw_message")


class Lab(ABC):
    """An application with one guarded place, and what lies among its dead letters.

    Attributes:
        limit: bytes of a message, or of its headers, that the broker takes or the application publishes; 0 for any.
        makes_places: the broker makes each place that something is published to.
    """

    limit = 0
    makes_places = True

    def __init__(self, server: Any, dedup: Dedup, **options: Any) -> None:
        self.server = server
        self.place = server.name("orders")
        self.dead_place = f"{self.place}-dead"
        self.dedup = dedup
        self.options = {
            "key": header("order-id"),
            "wait": 2.0,
            "retry_delay": 0.05,
            "dead_letter": self.dead_place,
            **options,
        }
        self.guard = DedupMiddleware(dedup, **self.options)
        self.runs: list[Any] = []
        self.raws: list[Any] = []
        self.dead: list[dict[str, Any]] = []
        self.then: Callable[[], Any] = lambda: None

    async def on_order(self, order: Any, raw: Any = RAW) -> Any:
        self.runs.append(order)
        self.raws.append(raw)
        found = self.then()
        return await found if asyncio.iscoroutine(found) else found

    async def on_dead(self, order: Any, headers: dict[str, Any] = HEADERS) -> None:
        self.dead.append({"body": order, **headers})

    @abstractmethod
    def broker(self, *middlewares: Any) -> Any:
        """Make a broker, not connected yet."""

    @abstractmethod
    def subscribe(self, broker: Any, **options: Any) -> Any:
        """Return a subscriber of the guarded place."""

    @abstractmethod
    def subscribe_dead(self, broker: Any) -> Any:
        """Return a subscriber of the dead letters, which nothing guards."""

    @abstractmethod
    async def publish(self, order: Any, headers: dict[str, str]) -> None:
        """Publish a message by the broker without a guard."""

    @abstractmethod
    async def left(self) -> int:
        """Count the messages that the broker would deliver again; the application has stopped."""

    @asynccontextmanager
    async def open(self, **options: Any) -> AsyncIterator[None]:
        """Run the application, and an observer beside it."""
        async with self.observed(), self.consumer(**options):
            yield

    @asynccontextmanager
    async def observed(self) -> AsyncIterator[None]:
        """Run a broker without a guard, which publishes, and takes the dead letters."""
        self.observer = self.broker()
        self.subscribe_dead(self.observer)(self.on_dead)
        await self.observer.start()
        try:
            yield
        finally:
            await self.observer.stop()

    @asynccontextmanager
    async def consumer(self, handler: Any = None, **options: Any) -> AsyncIterator[Any]:
        """Run one process of the application."""
        broker = self.broker(self.guard)
        self.subscribe(broker, **options)(handler or self.on_order)
        self.guard.check(broker)
        await broker.start()
        try:
            yield broker
        finally:
            await broker.stop()

    async def order(self, number: int) -> None:
        await self.publish(number, {"order-id": f"order-{number}"})

    @property
    def counts(self) -> Any:
        (found,) = self.guard.counts.values()
        return found

    @property
    def gate_key(self) -> str:
        (name,) = self.guard.counts
        return gate_key(name, "order-7")


Make = Callable[..., AbstractAsyncContextManager[Any]]


def maker(kind: type[Lab], server: Any, redis_url: str) -> Make:
    """Return what opens a lab with a gate of its own, of this kind unless another one is given."""

    @asynccontextmanager
    async def make(
        *, kind: type[Lab] = kind, url: str = redis_url, timeout: float = 5.0, **options: Any
    ) -> AsyncIterator[Any]:
        async with Dedup(url, namespace="f", timeout=timeout) as dedup:
            yield kind(server, dedup, **options)

    return make


def fault() -> None:
    raise ValueError("no such customer")


def give_up() -> None:
    raise DeadLetterError("no such customer")


async def bury_large(lab: Lab) -> None:
    """Let a message fail whose dead letter would exceed the limit."""

    def fail() -> None:
        raise ValueError("e" * 600)

    lab.then = fail
    trace = "t" * (lab.limit - 700)
    async with lab.open():
        await lab.publish(7, {"order-id": "order-7", "trace": trace})
        await wait_until(lambda: lab.dead, description="a dead letter")
    (dead,) = lab.dead
    assert (dead["body"], dead["trace"], str(dead["x-fastdedup-attempts"])) == (7, trace, "1")
    assert len(dead["x-fastdedup-error"]) == 100
    assert await lab.left() == 0


class Cases:
    """What holds on every broker. A subclass gives the fixture `make`, which makes its lab."""

    async def test_a_message_published_twice_is_worked_on_once(self, make: Make) -> None:
        async with make() as lab:
            async with lab.open():
                for number in (7, 7, 8):
                    await lab.order(number)
                await wait_until(
                    lambda: lab.counts.first + lab.counts.duplicate == 3, description="all three"
                )
                await wait_until(lambda: len(lab.runs) == 2, description="two runs")
            assert sorted(lab.runs) == [7, 8]
            assert (lab.counts.duplicate, lab.counts.delivered, lab.dead) == (1, 3, [])
            assert await lab.left() == 0

    async def test_a_dead_letter_is_no_larger_than_the_broker_takes(self, make: Make) -> None:
        async with make(attempts=1) as lab:
            if lab.limit:  # Redis takes any
                await bury_large(lab)

    async def test_a_failing_message_ends_among_the_dead_letters(self, make: Make) -> None:
        async with make(attempts=3) as lab:
            lab.then = fault
            async with lab.open():
                await lab.order(7)
                await wait_until(lambda: lab.dead, description="a dead letter")
            (dead,) = lab.dead
            assert len(lab.runs) == 3
            assert dead["body"] == 7
            assert dead["order-id"] == dead["x-fastdedup-key"] == "order-7"
            assert str(dead["x-fastdedup-attempts"]) == "3"
            assert dead["x-fastdedup-error"] == "ValueError: no such customer"
            assert dead["x-fastdedup-consumer"] == next(iter(lab.guard.counts))
            assert await lab.left() == 0

    async def test_a_dead_letter_that_is_published_late_has_its_cause(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The next delivery would be a further attempt, which would run the handler again or not know its error."""
        async with make() as lab:
            refused: list[Any] = []

            async def refuse_twice(*given: Any, **more: Any) -> None:
                if len(refused) < 2:
                    refused.append(given)
                    raise TimeoutError("the broker does not take it")
                await lay(*given, **more)

            monkeypatch.setattr("fastdedup.integrations.faststream.processing.lay", refuse_twice)
            lab.then = give_up
            async with lab.open():
                await lab.order(7)
                await wait_until(lambda: lab.dead, description="a dead letter")
            assert (lab.runs, lab.counts.delivered, len(refused)) == ([7], 1, 2)
            assert lab.dead[0]["x-fastdedup-reason"] == "failed"
            assert lab.dead[0]["x-fastdedup-error"] == "DeadLetterError: no such customer"
            assert await lab.left() == 0

    async def test_a_dead_letter_without_a_place_leaves_the_message(
        self, make: Make, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with make(dead_letter="nowhere", attempts=1) as lab:
            if lab.makes_places:
                return
            lab.then = fault
            async with lab.open():
                await lab.order(7)
                told = "cannot lay a dead letter down: "
                await wait_until(lambda: told in caplog.text, description="it is told, and held")
            assert (len(lab.runs), lab.counts.delivered, lab.counts.dead_lettered) == (1, 1, 0)
            assert await lab.left() == 1

    async def test_attempts_of_another_consumer_do_not_count(self, make: Make) -> None:
        async with make() as lab:
            async with lab.open():
                about = {"order-id": "order-7", ATTEMPTS: "5", CONSUMER: "another"}
                await lab.publish(7, about)
                await wait_until(lambda: lab.counts.first, description="it is done")
                about = {"order-id": "order-8", ATTEMPTS: "5", CONSUMER: next(iter(lab.guard.counts))}
                await lab.publish(8, about)
                await wait_until(lambda: lab.dead, description="a dead letter")
            assert (lab.runs, lab.dead[0]["x-fastdedup-reason"]) == ([7], "exhausted")

    async def test_a_message_without_a_key_is_a_dead_letter(self, make: Make) -> None:
        async with make() as lab:
            async with lab.open():
                await lab.publish(7, {})
                await wait_until(lambda: lab.dead, description="a dead letter")
            assert lab.runs == []
            assert lab.dead[0]["x-fastdedup-reason"] == "no_key"
            assert await lab.left() == 0

    async def test_a_message_waits_for_the_lease_of_a_consumer_that_died(self, make: Make) -> None:
        async with make() as lab:
            async with lab.open():
                await lab.order(8)
                await wait_until(lambda: lab.counts.first, description="it consumes")
                assert (await lab.dedup.claim(lab.gate_key, lease=0.3)).acquired
                await lab.order(7)
                await wait_until(lambda: lab.counts.first == 2, description="a run")
            assert (lab.runs, lab.counts.delivered, lab.counts.held) == ([8, 7], 2, 1)
            assert await lab.left() == 0

    async def test_a_twin_at_work_costs_few_deliveries(self, make: Make) -> None:
        async with make(wait=0.1, retry_delay=0.2) as lab:
            async with lab.open():
                claim = await lab.dedup.claim(lab.gate_key, lease=5.0)
                await lab.order(7)
                await wait_until(lambda: lab.counts.delivered == 2, description="a second try")
                await claim.complete()
                await wait_until(lambda: lab.counts.duplicate, description="a duplicate")
            assert (lab.runs, lab.dead) == ([], [])
            assert lab.counts.delivered <= 3
            assert await lab.left() == 0

    async def test_a_failing_message_comes_back_and_is_done(self, make: Make) -> None:
        async with make() as lab:
            lab.then = lambda: fault() if len(lab.runs) == 1 else None
            async with lab.open():
                await lab.order(7)
                await wait_until(lambda: lab.counts.first, description="it is done")
            assert (lab.runs, lab.dead) == ([7, 7], [])
            assert await lab.left() == 0
