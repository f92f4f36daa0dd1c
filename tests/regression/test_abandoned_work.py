"""The check of abandoned work: asked whenever it may be needed, heeded, and its result published."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis
from faststream import Response
from faststream.rabbit import RabbitBroker, RabbitQueue, RabbitRouter, TestRabbitBroker
from pydantic import BaseModel, model_serializer

from fastdedup import (
    ClaimLostError,
    Dedup,
    Outcome,
    Resolution,
    ResultError,
    ResultTooLargeError,
    Takeover,
    sync,
)
from fastdedup.codec import UNSTORABLE
from fastdedup.events import Event, LeaseLost
from fastdedup.integrations.faststream import DedupMiddleware, message_id
from fastdedup.messages import MessageRules
from fastdedup.messages.blocking import Attempt, BlockingWay
from fastdedup.messages.decisions import Action, Decision, Reason
from fastdedup.messages.deliveries import Deliveries
from fastdedup.stores.memory import MemoryStore
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.testing import FakeStore

from ..brokers import RabbitServer
from ..contract.test_abandoned_work import answering
from ..virtual import Link, virtual
from ..waiting import lease_of, wait_until

# The check of abandoned work: asked whenever it may be needed, and never answered under a lost lease.


# A consumer worked under a lost lease where the check of `resolve=` had swallowed its cancellation. A lost
# lease cancels the check. asyncio.wait_for of Python 3.11 may lose that, as may a broad `except`; the check
# then answers as if nothing had happened. The consumer took the answer: it began the handler beside the new
# owner, or laid a dead letter down for a message that the new owner was at work on.


LEASE = 1.0
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


# `resolve=` of a consumer was not asked where the store had forgotten the key, and the message told of
# attempts. The gate counted the attempt as the message did, by its header or its task's retries. The check
# looked at the count of the store alone, in which a failover or a restart without data leaves nothing. So
# the work ran again unasked.


class Provider:
    """Knows that the work was done before; keeps what it was asked."""

    def __init__(self) -> None:
        self.heard: list[Takeover] = []

    async def look_up(self, takeover: Takeover) -> Resolution:
        return self.look_up_now(takeover)

    def look_up_now(self, takeover: Takeover) -> Resolution:
        self.heard.append(takeover)
        return Resolution.done("charged before")

    def check(self) -> None:
        """See that it was asked once, and told what is known."""
        (takeover,) = self.heard
        assert takeover.attempt == 2
        assert (takeover.last_owner, takeover.last_fence, takeover.last_holder) == (None, None, None)
        assert takeover.fence > 0
        assert takeover.downstream("bank") == self.key

    key = ""
    """What the work's first attempt has sent to the next hop."""


def rules(**options: Any) -> MessageRules:
    return MessageRules("orders", str, wait=0.0, **options)


def forget(redis_url: str) -> None:
    """Let Redis forget everything, as a failover to an empty replica does."""
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()


async def nothing(message: str) -> None:
    """Work of no effect."""


async def no_dead_letter(decision: Decision) -> None:
    raise AssertionError(decision)


async def test_a_consumer_asks_by_the_messages_count(redis_url: str) -> None:
    provider, runs = Provider(), []

    async def work(message: str) -> None:
        runs.append(message)
        raise ConnectionError("after the charge")

    async with Dedup(redis_url, namespace="m", timeout=5.0) as dedup:
        ours = rules(keep_result=True)
        provider.key = (await dedup.claim(ours.gate_key("m-1"), lease=0.01)).downstream("bank")
        forget(redis_url)
        deliveries = Deliveries(ours, dedup, resolve=provider.look_up)
        first = await deliveries.handle("m-1", work, no_dead_letter)
        assert (first.action, first.attempts) == (Action.RETRY, 1)
        forget(redis_url)
        second = await deliveries.handle("m-1", work, no_dead_letter, failed=first.attempts)
        assert (second.action, second.attempts, second.result) == (Action.ACK, 2, "charged before")
        assert (await deliveries.handle("m-1", work, no_dead_letter)).result == "charged before"
    assert runs == ["m-1"]
    provider.check()


def test_a_task_asks_by_its_retries(redis_url: str) -> None:
    provider = Provider()
    with sync.Dedup(redis_url, namespace="m", timeout=5.0) as dedup:
        way = BlockingWay(rules(), dedup, resolve=provider.look_up_now)
        first = way.begin("7")
        assert isinstance(first, Attempt)
        provider.key = first.claim.downstream("bank")
        first.fail(ConnectionError("after the charge"))
        forget(redis_url)
        second = way.begin("7", failed=1)
        assert isinstance(second, Attempt)
        assert second.done == ("charged before",)
        second.succeed("charged before")
    provider.check()


async def test_the_higher_count_is_told(redis_url: str) -> None:
    """The store knows of one attempt, the message of three; who held the key last is told as before."""
    heard: list[Takeover] = []
    async with Dedup(redis_url, namespace="m", timeout=5.0) as dedup:
        ours = rules()
        last = await dedup.claim(ours.gate_key("m-1"))
        await last.release()
        deliveries = Deliveries(ours, dedup, resolve=answering(Resolution.not_done(), heard))
        assert (await deliveries.handle("m-1", nothing, no_dead_letter, failed=3)).attempts == 4
    assert [(each.attempt, each.last_owner) for each in heard] == [(4, last.owner)]


@pytest.mark.parametrize("failed", [0, 1])
async def test_a_first_attempt_asks_nothing(failed: int) -> None:
    asked: list[Takeover] = []
    async with Dedup("memory://", namespace="m") as dedup:
        deliveries = Deliveries(rules(), dedup, resolve=answering(Resolution.not_done(), asked))
        await deliveries.handle("m-1", nothing, no_dead_letter, failed=failed)
    assert len(asked) == failed


# What follows the check of `resolve=`: the lease is looked at, is whole again, and an answer cannot hold
# the key. Synchronous work ran although the lease was lost during the check, and beside the new owner; the
# check's time was taken from the lease of the work; and an answer that cannot be stored left a claim that
# was renewed until the garbage collector came.


@pytest.fixture
def abandoned(store: FakeStore) -> Iterator[SyncDedup]:
    with SyncDedup(store, namespace="shop", lease=30.0) as dedup:
        dedup.claim("order:42")
        store.clock.advance(31)  # its owner died
        yield dedup


async def left_behind(dedup: Dedup, store: FakeStore) -> None:
    await dedup.claim("order:42")
    store.clock.advance(31)


def test_synchronous_work_does_not_begin_under_a_lost_lease(abandoned: SyncDedup, store: FakeStore) -> None:
    def check(takeover: Takeover) -> Resolution:
        with store.outage("refused"):
            store.clock.advance(31)  # no renewal gets through
        assert abandoned.claim("order:42", wait=5.0).acquired, "another worker takes over"
        return Resolution.not_done()

    with pytest.raises(ClaimLostError):
        abandoned.claim("order:42", resolve=check, renew=True)
    assert abandoned.claim("order:42").outcome is Outcome.IN_PROGRESS


@virtual
async def test_work_does_not_begin_when_the_lease_ends_before_it_is_renewed() -> None:
    """The store hung while the check ran; the block began when the renewal after it gave up, and was not stopped."""
    link = Link(MemoryStore(clock=asyncio.get_running_loop().time))

    async def check(takeover: Takeover) -> Resolution:
        link.freeze()
        return Resolution.not_done()

    async with Dedup(link, namespace="shop", lease=1.0, timeout=5.0) as dedup:
        await (await dedup.claim("order:42")).release()
        with pytest.raises(ClaimLostError) as lost:
            async with dedup.claim("order:42", resolve=check):
                raise AssertionError("the work began")
        assert lost.value.outage


async def test_the_work_has_a_whole_lease(redis_url: str) -> None:
    async with Dedup(redis_url, namespace="shop", lease=5.0) as dedup:
        owner = await dedup.claim("order:42")
        await owner.release()  # the next one is attempt 2
        seen: list[float] = []

        async def check(takeover: Takeover) -> Resolution:
            while (left := await lease_of(dedup, "order:42")) > 4.9:
                pass
            seen.append(left)
            return Resolution.not_done()

        claim = await dedup.claim("order:42", resolve=check)
        assert await lease_of(dedup, "order:42") > seen[0], "although time has passed since"
        await claim.complete()


@pytest.mark.parametrize(
    ("answer", "error"),
    [(Resolution.done(object()), ResultError), (Resolution.unknown("x" * 2000), ResultTooLargeError)],
)
async def test_an_answer_that_cannot_be_stored_is_a_failure(
    answer: Resolution, error: Any, store: FakeStore
) -> None:
    """As a result is that cannot be stored: the work was done."""

    async def check(takeover: Takeover) -> Resolution:
        return answer

    async with Dedup(store, namespace="shop", max_result=1000) as dedup:
        await left_behind(dedup, store)
        with pytest.raises(error):
            await dedup.claim("order:42", resolve=check)
        found = await dedup.claim("order:42")
        assert (found.outcome, found.error["message"]) == (Outcome.FAILED, UNSTORABLE)


def test_without_asyncio_too(abandoned: SyncDedup) -> None:
    with pytest.raises(ResultError):
        abandoned.claim("order:42", resolve=lambda takeover: Resolution.done(object()))
    assert abandoned.claim("order:42").outcome is Outcome.FAILED


async def test_a_result_that_cannot_be_stored_leaves_no_cycle(store: FakeStore) -> None:
    """So a claim that the program forgot is gone at once, and its renewal with it."""
    async with Dedup(store, namespace="shop") as dedup:
        claim = await dedup.claim("order:42")
        before = sys.getrefcount(claim)
        with suppress(ResultError):
            await claim.complete(object())
        assert sys.getrefcount(claim) == before


# FastStream: the result that `Resolution.done(result)` told was not published, and crashed each later
# duplicate. The publisher sent an empty message in its place, as the handler, which had not run, had
# returned nothing. With `keep_result=True` the result was recorded bare, where a duplicate expects the form
# of a handler's: a KeyError.


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


def opened(redis_url: str) -> Dedup:
    return Dedup(redis_url, namespace="f", timeout=5.0)


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
    redis_url: str, rabbitmq: RabbitServer, keep_result: bool
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
