"""A consumer worked under a lost lease where the check of `resolve=` had swallowed its cancellation.

A lost lease cancels the check. asyncio.wait_for of Python 3.11 may lose that, as may a broad `except`; the check then
answers as if nothing had happened. The consumer took the answer: it began the handler beside the new owner, or laid a
dead letter down for a message that the new owner was at work on.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

from fastdedup import Dedup, Resolution, Takeover, sync
from fastdedup.events import Event, LeaseLost
from fastdedup.messages import MessageRules
from fastdedup.messages.blocking import BlockingWay
from fastdedup.messages.decisions import Action, Decision, Reason
from fastdedup.messages.deliveries import Deliveries

LEASE = 0.2
RULES = MessageRules("orders", str, wait=0.0, attempts=2)
KEY = RULES.gate_key("m-1")


class LostLeases(threading.Event):
    """Set once the gate tells that a lease is lost."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, LeaseLost):
            self.set()


def fault() -> Resolution:
    raise TimeoutError("the provider is away")


ANSWERS = pytest.mark.parametrize(
    "answer",
    [
        Resolution.not_done,
        pytest.param(lambda: Resolution.done("charged"), id="done"),
        Resolution.unknown,
        fault,
    ],
)


@ANSWERS
async def test_a_lost_lease_goes_before_the_checks_answer(answer: Callable[[], Resolution]) -> None:
    async def check(takeover: Takeover) -> Resolution:
        await dedup.forget(KEY)
        assert (await dedup.claim(KEY, lease=30)).acquired
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return answer()

    async def never(given: Any) -> None:
        raise AssertionError(given)

    async with Dedup("memory://", namespace="m", lease=LEASE) as dedup:
        await (await dedup.claim(KEY)).release()
        decision = await Deliveries(RULES, dedup, resolve=check).handle("m-1", never, never)
        assert (decision.action, decision.reason) == (Action.RETRY, Reason.LOST)
        record = await dedup.get(KEY)
        assert record is not None
        assert record.state == "processing"  # it is the new owner's
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_handler_that_raises_under_a_lost_lease_makes_no_dead_letter() -> None:
    async def handler(message: str) -> None:
        await dedup.forget(KEY)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("no such customer") from None

    async def never(decision: Decision) -> None:
        raise AssertionError(decision)

    async with Dedup("memory://", namespace="m", lease=LEASE) as dedup:
        decision = await Deliveries(RULES, dedup).handle("m-1", handler, never, failed=1)
        assert (decision.action, decision.reason, decision.attempts) == (Action.RETRY, Reason.LOST, 2)


@ANSWERS
def test_a_task_looks_at_its_lease_too(answer: Callable[[], Resolution]) -> None:
    def check(takeover: Takeover) -> Resolution:
        dedup.forget(KEY)
        other = dedup.claim(KEY, lease=30)
        claims.append(other)
        lost.wait(10)
        return answer()

    claims: list[Any] = []
    lost = LostLeases()
    with sync.Dedup("memory://", namespace="m", lease=LEASE, on_event=lost) as dedup:
        dedup.claim(KEY).release()
        decision = BlockingWay(RULES, dedup, resolve=check).begin("m-1")
        assert isinstance(decision, Decision)
        assert (decision.action, decision.reason) == (Action.RETRY, Reason.LOST)
        claims[0].complete("theirs")
