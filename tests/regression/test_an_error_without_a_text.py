"""An exception whose `__str__` fails ended its consumer as the dead letter was laid down, again at each start."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from fastdedup import Dedup, FailedError, Resolution, ResultError
from fastdedup.events import ConsumerEnded, Event
from fastdedup.messages import MessageRules
from fastdedup.messages.blocking import Attempt, BlockingWay
from fastdedup.messages.decisions import Action, Decision
from fastdedup.messages.deliveries import Deliveries
from fastdedup.messages.headers import ERROR, dead_letter_headers
from fastdedup.sync import Dedup as SyncDedup

from ..messages.test_redis_streams import shop_of
from ..servers import RedisServer

TEXT = "without a text: its own code raised KeyError"


class Mute(Exception):
    def __str__(self) -> str:
        return str({}["text"])

    __repr__ = __str__


def fail(*_: Any) -> Any:
    raise Mute


class Codec:
    dumps = loads = fail


async def work(*_: Any) -> None:
    raise Mute


def rules(**options: Any) -> MessageRules:
    return MessageRules("orders", str, wait=0.0, **options)


async def test_its_dead_letter_is_laid_down(server: RedisServer, wait_until: Callable[..., Any]) -> None:
    async with (
        shop_of(server) as shop,
        Dedup(server.url, namespace="m", timeout=5.0) as dedup,
        shop.consumer(dedup, work, attempts=1, dead_letter=shop.dead) as consumer,
    ):
        shop.add("m-1")
        await wait_until(shop.dead_letters, description="a dead letter")
        await wait_until(lambda: not shop.pending(), description="its entry is acknowledged")
        assert consumer.is_running
        (letter,) = shop.dead_letters()
        assert letter[ERROR.encode()].decode() == f"Mute: Mute {TEXT}"


async def test_rules_that_raise_it_make_dead_letters() -> None:
    async def lay(decision: Decision) -> None:
        assert TEXT in dead_letter_headers({}, decision, "orders")[ERROR]

    async with Dedup("memory://", namespace="m") as dedup:
        for ours in (MessageRules("orders", fail), rules(fingerprint=fail)):
            decision = await Deliveries(ours, dedup).handle("m-1", work, lay)
            assert decision.action is Action.DEAD_LETTER


async def test_the_end_of_a_consumer_is_told(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Event] = []
    async with Dedup("memory://", namespace="m", on_event=told.append) as dedup:
        with caplog.at_level(logging.ERROR, "fastdedup.messages"):
            Deliveries(rules(), dedup).tell_end(Mute())
    assert TEXT in caplog.text
    assert [type(event) for event in told] == [ConsumerEnded]


async def test_it_is_recorded_as_an_error() -> None:
    async with Dedup("memory://", namespace="m") as dedup:
        await (await dedup.claim("failed")).fail(Mute())
        with pytest.raises(FailedError, match=TEXT):
            (await dedup.claim("failed")).replay()
        assert TEXT in Resolution.unknown(Mute()).value["message"]


def test_a_task_that_raises_it_is_recorded() -> None:
    with SyncDedup("memory://", namespace="m") as dedup:
        way = BlockingWay(rules(attempts=1), dedup)
        attempt = way.begin("m-1")
        assert isinstance(attempt, Attempt)
        assert attempt.fail(Mute()).action is Action.DEAD_LETTER
        again = way.begin("m-1")
        assert isinstance(again, Decision)
        assert TEXT in str(again.error)


async def test_a_codec_that_raises_it_is_told() -> None:
    async with Dedup("memory://", namespace="m", codec=Codec()) as dedup:
        with pytest.raises(ResultError, match=TEXT):
            await (await dedup.claim("key")).complete(1)
