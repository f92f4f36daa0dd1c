"""Turns: no turn is lost when a caller in the queue is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from fastdedup.core.wakeups import LookTurns

from ..waiting import cancel, wait_until


@pytest.mark.parametrize("is_given", [False, True])
async def test_a_cancelled_caller_passes_its_turn_on(is_given: bool) -> None:
    """`is_given`: the caller has the turn already, and has not run since."""
    turns = LookTurns(1)
    async with asyncio.timeout(10.0):
        assert turns.take()
        assert not turns.take()
        first, second = asyncio.ensure_future(turns.queue()), asyncio.ensure_future(turns.queue())
        await wait_until(lambda: len(turns) == 2, description="both queue")
        if not is_given:
            await cancel(first)
        turns.give_back()
        first.cancel()
        await second
    assert first.cancelled()
    assert not turns.take(), "the second has it"
    turns.give_back()
    assert turns.take()
