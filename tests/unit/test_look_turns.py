"""Turns: no turn is lost when a caller in the queue is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from fastdedup.core.look_turns import LookTurns

from ..waiting import cancel, wait_until


@pytest.mark.parametrize("is_given", [False, True])
async def test_a_cancelled_caller_passes_its_turn_on(is_given: bool) -> None:
    """`is_given`: the caller has the turn already, and has not run since."""
    turns = LookTurns(1)
    queued: list[bool] = []

    async def take() -> None:
        async with turns as has_queued:
            queued.append(has_queued)

    async with asyncio.timeout(10.0):
        async with turns as has_queued:
            assert not has_queued
            first, second = asyncio.ensure_future(take()), asyncio.ensure_future(take())
            await wait_until(lambda: len(turns) == 2, description="both queue")
            if not is_given:
                await cancel(first)
        first.cancel()
        await second
        await take()
    assert first.cancelled()
    assert queued == [True, False]
