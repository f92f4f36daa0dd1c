"""A handler that ends by a cancellation which nobody asked for is an attempt that failed.

Something that it awaits was cancelled, such as a task that it shares. That ended the consumer, without an error, a
line or an event: its messages waited for nobody.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fastdedup import Dedup
from fastdedup.messages.decisions import Action, Decision, Reason
from fastdedup.messages.deliveries import Deliveries
from fastdedup.messages.delivery import HandlerCancelled
from fastdedup.messages.rules import MessageRules


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

    async with Dedup(namespace="shop") as dedup:
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

    async with Dedup(namespace="shop") as dedup:
        working = asyncio.create_task(deliveries(dedup).handle("m-1", handler, lay))
        await began.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working


async def test_a_handler_whose_own_time_is_over_raises_that() -> None:
    async def handler(message: str) -> None:
        async with asyncio.timeout(0.01):
            await asyncio.get_running_loop().create_future()

    async with Dedup(namespace="shop") as dedup:
        decision = await deliveries(dedup).handle("m-1", handler, lay)
        assert isinstance(decision.error, TimeoutError)
