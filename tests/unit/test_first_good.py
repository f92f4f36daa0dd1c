"""Asking several at once: the first good answer counts, and nothing of the others is left."""

from __future__ import annotations

import asyncio

import pytest

from fastdedup.stores.redis.first_good import NoneGoodError, first_good


async def answer(value: str, turns: int = 0) -> str:
    for _ in range(turns):
        await asyncio.sleep(0)
    return value


async def fail(error: Exception) -> str:
    raise error


async def hang(ended: list[str] | None = None) -> str:
    try:
        await asyncio.Event().wait()
    finally:
        if ended is not None:
            ended.append("ended")
    return "never"


async def stubborn() -> str:
    """As redis-py, which takes a cancellation for its own timeout."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return "late"
    return "never"


async def test_the_first_good_answer_counts() -> None:
    """Whatever the others do; those that hang have ended by then."""
    ended: list[str] = []
    errors = (fail(ValueError()), fail(OSError()))
    assert await first_good([*errors, hang(ended), answer("good", 3), hang(ended)]) == "good"
    assert ended == ["ended", "ended"]


async def test_without_a_good_answer_all_errors_are_told() -> None:
    """In the order of the attempts."""
    with pytest.raises(NoneGoodError) as caught:
        await first_good([fail(ValueError("a")), fail(OSError("b"))])
    assert [str(error) for error in caught.value.errors] == ["a", "b"]


async def test_what_comes_second_is_discarded() -> None:
    """In the same moment, or in spite of being given up."""
    discarded: list[str] = []

    async def discard(value: str) -> None:
        discarded.append(value)

    winner = await first_good([answer("a"), answer("b"), stubborn()], discard)
    assert sorted([winner, *discarded]) == ["a", "b", "late"]


async def test_who_is_cancelled_leaves_nothing_behind() -> None:
    """Also where it is cancelled again while it tidies up."""
    ended: list[str] = []
    discarded: list[str] = []

    async def discard(value: str) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        discarded.append(value)

    task = asyncio.create_task(first_good([hang(ended), stubborn(), hang(ended)], discard))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)
    assert task.cancelled()
    assert (ended, discarded) == (["ended", "ended"], ["late"])
    assert not [left for left in asyncio.all_tasks() if left.get_name() == "fastdedup-race"]


async def test_who_is_cancelled_when_the_answer_has_come_discards_it() -> None:
    """Nobody would close that connection."""
    discarded: list[str] = []

    async def discard(value: str) -> None:
        discarded.append(value)

    slow = asyncio.Event()

    async def slow_to_end() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            await slow.wait()
        return "never"

    task = asyncio.create_task(first_good([answer("good"), slow_to_end()], discard))
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    slow.set()
    await asyncio.wait([task])
    assert task.cancelled()
    assert discarded == ["good"]
