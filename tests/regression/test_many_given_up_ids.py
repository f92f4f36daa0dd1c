"""Fault: where a call was given up after some 1,100 ids had been taken back, only its first id was taken back.

A list of places was tidied while it was read, so a RuntimeError ended the loop, in place of the caller's own error.
The other ids stayed remembered for the whole window, though nobody had been told that they were the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fastdedup import Dedup, Ledger


async def give_up(ledger: Ledger, ids: list[str]) -> None:
    """Ask for ids, and go as soon as they are asked for."""
    call = asyncio.ensure_future(ledger.first_many(ids))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_all_ids_of_a_later_call_are_taken_back(redis_url: str, wait_until: Callable[..., Any]) -> None:
    async with Dedup(redis_url, namespace="t") as dedup:
        ledger = dedup.ledger("orders", window=60, capacity=10_000)
        await ledger.seen("the ledger is founded")

        async def is_empty() -> bool:
            return not len(dedup._namespace.connection.undo) and (await ledger.stats()).ids == 0

        await give_up(ledger, [f"former-{number}" for number in range(2_000)])
        await wait_until(is_empty, description="the former ids are taken back")
        await give_up(ledger, [f"later-{number}" for number in range(20)])
        await wait_until(is_empty, description="the later ids are taken back")
        assert await ledger.first_many([f"later-{number}" for number in range(20)]) == [True] * 20
