"""What the log tells of a handler that raises, and of a trouble that repeats: no text of an error, and no flood."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from fastdedup import Dedup
from fastdedup.messages import failed_attempts, rare_line
from fastdedup.messages.failed_attempts import AT_ONCE, WINDOW, FailedAttempts
from fastdedup.messages.rare_line import RareLine
from fastdedup.messages.rules import MessageRules

from ..brokers import RabbitServer
from ..servers import RedisServer
from .consumers import Waiter, Work, fault, opened
from .test_rabbitmq import shop as shop_of_rabbitmq
from .test_redis_streams import shop_of
from .test_rules import Shop as Database


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, logger="fastdedup.messages")
    return caplog


@pytest.mark.parametrize("by_inbox", [False, True])
async def test_each_attempt_of_a_consumer_has_a_line(
    streams: RedisServer,
    redis_url: str,
    wait_until: Waiter,
    told: pytest.LogCaptureFixture,
    tmp_path: Path,
    by_inbox: bool,
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
    streams: RedisServer, redis_url: str, wait_until: Waiter, told: pytest.LogCaptureFixture
) -> None:
    async with shop_of(streams) as shop, opened(redis_url) as dedup:
        for number in range(AT_ONCE + 2):
            shop.add(f"n{number}")
        work = Work(fault)
        async with shop.consumer(dedup, work, attempts=2, retry_delay=1000.0):
            await wait_until(lambda: len(work.begun) == AT_ONCE + 2, description="attempts that fail")
    assert told.messages[-1] == "consumer 'billing': attempts that failed without a line of their own: 2"


async def test_a_consumer_of_rabbitmq_that_is_cancelled_tells_it_too(
    rabbitmq: RabbitServer, redis_url: str, wait_until: Waiter, told: pytest.LogCaptureFixture
) -> None:
    async with shop_of_rabbitmq(rabbitmq, redis_url) as shop:
        shop.then = fault
        await shop.publish(*(str(number) for number in range(AT_ONCE + 2)))
        async with shop.consumer(attempts=2, retry_delay=1000.0) as consumer:
            running = asyncio.create_task(consumer.run(shop.handler))
            await wait_until(lambda: consumer.counts.retried == AT_ONCE + 2, description="attempts that fail")
            running.cancel()
            await asyncio.wait([running])
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
    monkeypatch.setattr(failed_attempts, "monotonic", lambda: now)
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


def test_a_line_at_once_and_then_one_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 7.0
    monkeypatch.setattr(rare_line, "monotonic", lambda: now)
    line = RareLine()
    told = []
    for _ in range(121):
        told.append(line.is_due())
        now += 1.0
    assert [second for second, is_told in enumerate(told) if is_told] == [0, 60, 120]


async def test_dead_letters_that_are_not_taken_have_one_line(
    server: RedisServer, redis_url: str, wait_until: Waiter, caplog: pytest.LogCaptureFixture
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
