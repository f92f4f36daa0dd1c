"""One coroutine serves async and synchronous code: `drive` runs it over steps that block."""

from __future__ import annotations

import asyncio

import pytest

from fastdedup.flows import drive, step


async def half(number: int) -> int:
    if number % 2:
        raise StopIteration(number)
    return number // 2


def test_a_flow_over_blocking_steps_is_a_function() -> None:
    async def flow() -> list[int]:
        return [await step(len)(text) for text in ("a", "bc")]

    assert drive(flow()) == [1, 2]


def test_its_error_is_the_step_s_own() -> None:
    async def flow() -> None:
        await step(int)("x")

    with pytest.raises(ValueError, match="invalid literal"):
        drive(flow())


def test_a_stop_iteration_of_a_step_stays_what_it_is() -> None:
    """A coroutine makes a RuntimeError of it, which a caller who writes `next()` does not expect."""

    async def flow() -> int:
        return await step(next)(iter([]))

    with pytest.raises(StopIteration):
        drive(flow())
    with pytest.raises(StopIteration):
        drive(half(3))


def test_another_runtime_error_stays_as_it_is() -> None:
    async def flow() -> None:
        try:
            next(iter([]))
        except StopIteration as error:
            raise RuntimeError("the user's own") from error

    with pytest.raises(RuntimeError, match="the user's own"):
        drive(flow())


def test_a_flow_that_waits_for_a_loop_is_told() -> None:
    with pytest.raises(RuntimeError, match="waited for an event loop"):
        drive(asyncio.sleep(0))
