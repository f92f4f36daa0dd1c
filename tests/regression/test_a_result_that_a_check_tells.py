"""FastStream: the result that `Resolution.done(result)` told was not published, and crashed each later duplicate.

The publisher sent an empty message in its place, as the handler, which had not run, had returned nothing. With
`keep_result=True` the result was recorded bare, where a duplicate expects the form of a handler's: a KeyError.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from faststream import Response
from faststream.rabbit import RabbitBroker, RabbitQueue, RabbitRouter, TestRabbitBroker
from pydantic import BaseModel, model_serializer

from fastdedup import Dedup, Resolution, Takeover
from fastdedup.integrations.faststream import DedupMiddleware, message_id

from ..brokers import RabbitServer

KEPT = pytest.mark.parametrize("keep_result", [True, False])


class Invoice(BaseModel):
    number: int


class Unkept(BaseModel):
    @model_serializer
    def refuse(self) -> Any:
        raise ValueError("not as JSON")


class Shop:
    """A guarded place whose first attempt dies, a check that knows its result, and what was published.

    Args:
        dedup: the gate.
        result: what the check tells.
        name: gives places their names.
    """

    def __init__(self, dedup: Dedup, result: Any, name: Callable[[str], str] = str, **options: Any) -> None:
        async def look_up(takeover: Takeover) -> Resolution:
            return Resolution.done(result)

        self.guard = DedupMiddleware(
            dedup,
            key=message_id,
            wait=0.0,
            retry_delay=0.01,
            dead_letter=name("dead"),
            resolve=look_up,
            **options,
        )
        self.orders, invoices = name("orders"), name("invoices")
        self.runs = 0
        self.invoices: list[Any] = []
        router = RabbitRouter(middlewares=[self.guard])

        @router.publisher(invoices)
        @router.subscriber(RabbitQueue(self.orders))
        async def on_order(order: Any) -> Any:
            self.runs += 1
            raise ConnectionError("after the work was done")

        async def on_invoice(invoice: Any) -> None:
            self.invoices.append(invoice)

        self.router = router
        self.subscribe = lambda broker: broker.subscriber(RabbitQueue(invoices))(on_invoice)

    def join(self, broker: RabbitBroker) -> RabbitBroker:
        """Make the broker that of this shop."""
        self.subscribe(broker)
        broker.include_router(self.router)
        return broker

    @property
    def counts(self) -> Any:
        (found,) = self.guard.counts.values()
        return found


@asynccontextmanager
async def opened(redis_url: str) -> AsyncIterator[Dedup]:
    async with Dedup(redis_url, namespace="f", timeout=5.0) as dedup:
        yield dedup


@KEPT
@pytest.mark.parametrize(
    ("result", "published"),
    [
        ({"invoice": 7}, {"invoice": 7}),
        ({"body": 7}, {"body": 7}),
        (b"PDF", b"PDF"),
        (Invoice(number=7), {"number": 7}),
        (Response({"invoice": 7}, headers={"kind": "invoice"}), {"invoice": 7}),
    ],
    ids=["JSON", "a name of ours", "bytes", "a model", "a response"],
)
async def test_the_result_that_a_check_tells_is_published(
    redis_url: str, result: Any, published: Any, keep_result: bool
) -> None:
    async with opened(redis_url) as dedup:
        shop = Shop(dedup, result, keep_result=keep_result)
        async with TestRabbitBroker(shop.join(RabbitBroker())) as broker:
            for _ in range(3):
                await broker.publish(7, shop.orders, message_id="order-7")
        assert (shop.runs, shop.counts.first, shop.counts.duplicate) == (1, 1, 2)
        assert shop.invoices == [published] * (3 if keep_result else 1)


async def test_a_result_that_cannot_be_kept_is_told_and_not_published(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The work is done, so the message is done as well."""
    async with opened(redis_url) as dedup:
        shop = Shop(dedup, Unkept(), keep_result=True)
        with caplog.at_level(logging.WARNING, "fastdedup.messages"):
            async with TestRabbitBroker(shop.join(RabbitBroker())) as broker:
                for _ in range(2):
                    await broker.publish(7, shop.orders, message_id="order-7")
        assert (shop.runs, shop.counts.first, shop.counts.duplicate, shop.invoices) == (1, 1, 1, [])
        assert "a result is not kept" in caplog.text


@KEPT
async def test_the_result_is_published_on_a_real_broker(
    redis_url: str, rabbitmq: RabbitServer, wait_until: Any, keep_result: bool
) -> None:
    async with opened(redis_url) as dedup:
        shop = Shop(dedup, {"invoice": 7}, rabbitmq.name, keep_result=keep_result)
        async with shop.join(RabbitBroker(rabbitmq.url)) as broker:
            await broker.start()
            for _ in range(2):
                await broker.publish(7, shop.orders, message_id="order-7")
            await wait_until(lambda: shop.guard.counts and shop.counts.duplicate, description="a duplicate")
            await wait_until(lambda: len(shop.invoices) == 1 + keep_result, description="each result")
        assert shop.runs == 1
        assert shop.invoices == [{"invoice": 7}] * (1 + keep_result)
