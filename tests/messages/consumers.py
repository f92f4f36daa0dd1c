"""What the tests of every consumer share: an open gate, and a handler that notes what it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from fastdedup import Dedup, Takeover

Handler = Callable[..., Awaitable[Any]]


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[Dedup]:
    async with Dedup(url, namespace="m", timeout=5.0, **options) as dedup:
        yield dedup


Open = Callable[..., AbstractAsyncContextManager[tuple[Any, Dedup]]]


def opener(shop_of: Callable[..., AbstractAsyncContextManager[Any]], server: Any, redis_url: str) -> Open:
    """Return what opens a shop on a broker, and a gate on Redis."""

    @asynccontextmanager
    async def open_both(**options: Any) -> AsyncIterator[tuple[Any, Dedup]]:
        async with shop_of(server, **options) as shop, opened(redis_url) as dedup:
            yield shop, dedup

    return open_both


class Work:
    """A handler: remembers what it did; `then` is what each message does."""

    def __init__(self, then: Callable[[str], Any] = lambda order: None) -> None:
        self.done: list[str] = []
        self.begun: list[str] = []
        self.then = then

    async def __call__(self, *given: Any) -> None:
        order = order_of(given[-1])
        self.begun.append(order)
        found = self.then(order)
        if asyncio.iscoroutine(found):
            await found
        self.done.append(order)


@asynccontextmanager
async def at_work(consumer: Any, handler: Handler) -> AsyncIterator[Any]:
    """Let a consumer run within the block, and end what it has begun."""
    running = asyncio.create_task(consumer.run(handler))
    try:
        yield consumer
    finally:
        consumer.stop()
        await running


class Answers:
    """A check of `resolve=`: gives its answers one after the other, and raises those that are errors."""

    def __init__(self, *answers: Any) -> None:
        self.left = list(answers)
        self.heard: list[Takeover] = []

    def __call__(self, takeover: Takeover) -> Any:
        self.heard.append(takeover)
        answer = self.left.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def later(self, takeover: Takeover) -> Any:
        """The check of async code."""
        return self(takeover)

    @property
    def attempts(self) -> list[int]:
        return [takeover.attempt for takeover in self.heard]


def order_of(message: Any) -> str:
    """Return which order a message of any broker is about."""
    if hasattr(message, "fields"):  # of a Redis stream
        fields = message.fields
        return str(fields["id"]) if "id" in fields else str(fields[b"id"].decode())
    if hasattr(message, "system"):  # of Amazon SQS
        return str(message.body)
    if hasattr(message, "message_id"):  # of RabbitMQ
        return str(message.message_id)
    content: bytes = message.data if hasattr(message, "data") else message.value  # of NATS, of Kafka
    return content.decode()


def fault(order: str) -> None:
    raise ValueError("no such customer")


def long_fault(order: str) -> None:
    raise ValueError("e" * 600)


async def a_handler(message: Any) -> None:
    """Do nothing."""
