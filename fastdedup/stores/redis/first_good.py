"""Asks several servers at once and takes the first good answer, so that a frozen server costs no time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from ...tasks import stop, until_done
from .connection import RedisConnection

T = TypeVar("T")


class NoneGoodError(Exception):
    """No attempt succeeded. `errors`: the error of each attempt, in the order of the attempts."""

    def __init__(self, errors: list[BaseException]) -> None:
        super().__init__(*errors)
        self.errors = errors


async def first_good(
    attempts: Iterable[Coroutine[Any, Any, T]], discard: Callable[[T], Awaitable[None]] | None = None
) -> T:
    """Start all attempts at once, return the first result, and cancel the other attempts.

    `discard`: called with each further result that an attempt still brings.

    Raises:
        NoneGoodError: no attempt succeeded.
    """
    tasks = [asyncio.create_task(attempt, name="fastdedup-race") for attempt in attempts]
    winner: asyncio.Task[T] | None = None
    try:
        pending = set(tasks)
        while pending and winner is None:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            winner = next((task for task in done if succeeded(task)), None)
    finally:
        try:
            await until_done(
                asyncio.gather(*(_give_up(task, discard) for task in tasks if task is not winner))
            )
        except asyncio.CancelledError:
            if winner is not None and discard is not None:
                await discard(winner.result())
            raise
    if winner is None:
        raise NoneGoodError([error for task in tasks if (error := task.exception()) is not None])
    return winner.result()


async def drop(connection: RedisConnection) -> None:
    """Discard a connection."""
    connection.abort("another connection was opened first")


def succeeded(task: asyncio.Task[Any]) -> bool:
    """True for a task that ended with a result."""
    return task.done() and not task.cancelled() and task.exception() is None


async def _give_up(task: asyncio.Task[T], discard: Callable[[T], Awaitable[None]] | None) -> None:
    await stop(task)
    if succeeded(task) and discard is not None:
        await discard(task.result())
