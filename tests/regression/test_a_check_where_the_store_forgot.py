"""`resolve=` of a consumer was not asked where the store had forgotten the key, and the message told of attempts.

The gate counted the attempt as the message did, by its header or its task's retries. The check looked at the count of
the store alone, in which a failover or a restart without data leaves nothing. So the work ran again unasked.
"""

from __future__ import annotations

from typing import Any

import pytest
import redis

from fastdedup import Dedup, Resolution, Takeover, sync
from fastdedup.messages import MessageRules
from fastdedup.messages.blocking import Attempt, BlockingWay
from fastdedup.messages.decisions import Action, Decision
from fastdedup.messages.deliveries import Deliveries


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


async def test_a_consumer_asks_by_the_messages_count(redis_url: str) -> None:
    provider, runs = Provider(), []

    async def work(message: str) -> None:
        runs.append(message)
        raise ConnectionError("after the charge")

    async def lay(decision: Decision) -> None:
        raise AssertionError(decision)

    async with Dedup(redis_url, namespace="m", timeout=5.0) as dedup:
        ours = rules(keep_result=True)
        provider.key = (await dedup.claim(ours.gate_key("m-1"), lease=0.01)).downstream("bank")
        forget(redis_url)
        deliveries = Deliveries(ours, dedup, resolve=provider.look_up)
        first = await deliveries.handle("m-1", work, lay)
        assert (first.action, first.attempts) == (Action.RETRY, 1)
        forget(redis_url)
        second = await deliveries.handle("m-1", work, lay, failed=first.attempts)
        assert (second.action, second.attempts, second.result) == (Action.ACK, 2, "charged before")
        assert (await deliveries.handle("m-1", work, lay)).result == "charged before"
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

    async def look_up(takeover: Takeover) -> Resolution:
        heard.append(takeover)
        return Resolution.not_done()

    async def work(message: str) -> None:
        pass

    async def lay(decision: Decision) -> None:
        raise AssertionError(decision)

    async with Dedup(redis_url, namespace="m", timeout=5.0) as dedup:
        ours = rules()
        last = await dedup.claim(ours.gate_key("m-1"))
        await last.release()
        deliveries = Deliveries(ours, dedup, resolve=look_up)
        assert (await deliveries.handle("m-1", work, lay, failed=3)).attempts == 4
    assert [(each.attempt, each.last_owner) for each in heard] == [(4, last.owner)]


@pytest.mark.parametrize("failed", [0, 1])
async def test_a_first_attempt_asks_nothing(failed: int) -> None:
    asked = []

    async def look_up(takeover: Takeover) -> Resolution:
        asked.append(takeover)
        return Resolution.not_done()

    async def work(message: str) -> None:
        pass

    async def lay(decision: Decision) -> None:
        raise AssertionError(decision)

    async with Dedup("memory://", namespace="m") as dedup:
        await Deliveries(rules(), dedup, resolve=look_up).handle("m-1", work, lay, failed=failed)
    assert len(asked) == failed
