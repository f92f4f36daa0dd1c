"""RabbitMQ's consumer among messages whose headers are forged."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from aiormq.base import FutureStore

from fastdedup.integrations.rabbitmq import header
from fastdedup.integrations.rabbitmq.replies import reply

from ..brokers import RabbitServer
from ..waiting import wait_until
from .test_rabbitmq import fault, shop

ODD: dict[str, Any] = {
    "float": 1.5,
    "big": 2**62,
    "negative": -(2**40),
    "decimal": Decimal("1.25"),
    "time": datetime(2020, 1, 1, tzinfo=UTC),
    "bytes": bytearray(b"\xff\x00"),
    "void": None,
    "list": [1, "a", [None, {"b": True}]],
    "table": {"a": {"b": [1]}},
}
FORGED = {
    "x-death": "no",
    "x-first-death-queue": 7,
    "x-fastdedup-exchange": 7,
    "x-fastdedup-routing-key": [1],
}


async def test_a_forged_count_of_attempts_counts_for_nothing(rabbitmq: RabbitServer, redis_url: str) -> None:
    forged: list[Any] = [-1, "9" * 50, None, [3], {"a": 1}, bytearray(b"\xff"), 2**62]
    async with shop(rabbitmq, redis_url) as orders:
        for number, attempts in enumerate(forged):
            await orders.publish(str(number), headers={"x-fastdedup-attempts": attempts})
        async with orders.consuming() as consumer:
            await wait_until(lambda: consumer.counts.first == len(forged), description="each is worked on")


async def test_headers_of_any_type_reach_the_dead_letters(rabbitmq: RabbitServer, redis_url: str) -> None:
    async with shop(rabbitmq, redis_url) as orders:
        orders.then = fault
        await orders.publish("7", headers={**ODD, **FORGED})
        async with orders.consuming(attempts=2) as consumer:
            await wait_until(lambda: consumer.counts.dead_lettered, description="it is a dead letter")
        (dead,) = await orders.dead()
        assert {name: dead.headers[name] for name in ODD} == ODD
        assert orders.runs["7"] == 2


async def test_a_key_that_is_too_long_is_a_dead_letter(rabbitmq: RabbitServer, redis_url: str) -> None:
    async with shop(rabbitmq, redis_url) as orders:
        await orders.publish("7", headers={"order": "k" * 2000})
        async with orders.consuming(key=header("order")) as consumer:
            await wait_until(lambda: consumer.counts.dead_lettered, description="it is a dead letter")
        assert not orders.runs
        (dead,) = await orders.dead()
        assert dead.headers["x-fastdedup-key"] == "k" * 2000


# Fault: a consumer whose connection was lost ended in aiormq's bare `Exception`, which says nothing.


@pytest.mark.parametrize("late", [False, True], ids=["as it waits", "after the close"])
async def test_a_call_that_a_closing_channel_rejects_is_a_lost_connection(late: bool) -> None:
    loop = asyncio.get_running_loop()
    futures, waited_for = FutureStore(loop), loop.create_future()
    if late:
        await futures.reject_all(None)
    futures.add(waited_for)
    await futures.reject_all(None)
    with pytest.raises(ConnectionError, match="was closed before"):
        await reply(waited_for)


async def test_a_connection_that_is_lost_as_a_retry_is_written_ends_no_consumer(
    rabbitmq: RabbitServer, redis_url: str
) -> None:
    """Nothing is written from then on, so the copy's publication is rejected by the close."""
    async with shop(rabbitmq, redis_url, robust=True) as orders:
        unsent = asyncio.Queue[Any]()
        underlay: Any = await orders.channel.get_underlay_channel()

        def fail_first(message: Any) -> None:
            if orders.runs["7"] == 1:
                underlay.write_queue = unsent
                fault(message)

        orders.then = fail_first
        await orders.publish("7")
        async with orders.consuming() as consumer:
            await wait_until(lambda: not unsent.empty(), description="the copy is under way")
            await underlay.connection.close(None)
            await wait_until(lambda: consumer.counts.first, description="it is done")
            assert consumer.is_running


async def test_another_error_stays_as_it_is() -> None:
    waited_for = asyncio.get_running_loop().create_future()
    waited_for.set_exception(Exception("the broker's own words"))
    with pytest.raises(Exception, match="own words"):
        await reply(waited_for)
