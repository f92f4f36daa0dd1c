"""A trouble that repeats fills no log."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from fastdedup import Dedup
from fastdedup.messages import rare_line
from fastdedup.messages.rare_line import RareLine

from ..servers import RedisServer
from .consumers import Waiter, Work, fault
from .test_redis_streams import shop_of


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
