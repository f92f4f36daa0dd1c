"""A key that its body gave back while the store did not answer is free once the store answers.

It was held by nobody until its lease ended: the key of a request that had failed answered 409 for so long.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from fastdedup import Dedup, UnavailableError
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.testing import FakeStore

from ..integrations.shops import until
from ..servers import RedisServer

Waiter = Callable[..., Awaitable[Any]]


class WorkFailed(Exception):
    """What a body raises."""


async def fails(gate: Dedup, outage: Callable[[], object]) -> None:
    async with gate.claim("order:42"):
        outage()
        raise WorkFailed


async def test_after_a_restart_of_redis(redis_server: RedisServer, wait_until: Waiter) -> None:
    server = RedisServer("--appendonly", "yes", "--appendfsync", "always").start()
    try:
        async with Dedup(server.url, namespace="shop", lease=600.0, timeout=0.1) as gate:
            with pytest.raises(WorkFailed):
                await fails(gate, server.kill)
            server.start()

            async def acquired() -> bool:
                with suppress(UnavailableError):
                    return (await gate.claim("order:42")).acquired
                return False

            await wait_until(acquired, description="the key is free")
    finally:
        server.stop()


async def test_an_owner_with_a_name_keeps_its_claim(wait_until: Waiter) -> None:
    store = FakeStore()
    async with Dedup(store, namespace="shop", lease=600.0, timeout=0.05) as gate:
        with suppress(WorkFailed):
            async with gate.claim("order:42", owner="worker-7"):
                store.outage.start("refused")
                raise WorkFailed
        store.outage.stop()

        async def held() -> bool:
            with suppress(UnavailableError):
                return (await gate.claim("order:42", owner="worker-7")).acquired
            return False

        await wait_until(held, description="the same owner has it again")
        assert (await gate.claim("order:42")).outcome == "in_progress"


def test_of_synchronous_code() -> None:
    store = FakeStore()
    with SyncDedup(store, namespace="shop", lease=600.0, timeout=0.05) as gate:

        def work() -> None:
            with gate.claim("order:42"):
                store.outage.start("refused")
                raise WorkFailed

        with pytest.raises(WorkFailed):
            work()
        store.outage.stop()

        def acquired() -> bool:
            with suppress(UnavailableError):
                return gate.claim("order:42").acquired
            return False

        until(acquired, description="the key is free")


async def test_a_later_holding_of_the_same_owner_is_left_alone(wait_until: Waiter) -> None:
    """Its release takes effect without its reply, and its owner's name is handed on: what it gave up is over."""
    store = FakeStore()
    async with (
        Dedup(store, namespace="shop", lease=600.0, timeout=0.05) as gate,
        Dedup(store, namespace="shop", lease=600.0, timeout=0.05) as other,
    ):
        first = await gate.claim("order:42")
        await first._free()
        gate._namespace.connection.undo.add(first._call, first.fence)
        second = await other.claim("order:42", owner=first.owner)
        assert second.acquired
        await wait_until(
            lambda: gate._namespace.connection.undo_counts()[1] == 0, description="it was looked for"
        )
        assert (await gate.claim("order:42")).outcome == "in_progress"
        await second.complete()
