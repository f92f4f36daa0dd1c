"""Plays one turn: callers share keys that were made before the clock started."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fastdedup.cli.bench import ClaimedTwiceError

from .model import Numbered, Ops, Spent, Turn, Verb, WrongReplayError

TURN_LIMIT = 60.0  # seconds; a turn is meant to take about one second


async def drive(
    ops: Ops, verb: str, keys: Sequence[str], callers: int, spent: "Spent[int] | None" = None
) -> Turn:
    """Let `callers` callers share the keys, each with one operation under way."""
    cpu, began = time.process_time(), time.perf_counter()
    seconds = None
    if ops.drive:
        seconds = await ops.drive(verb, keys, spent)
    elif op := getattr(ops, verb):
        caller = _caller(ops, verb, op, enumerate(keys), spent)
        async with asyncio.timeout(TURN_LIMIT), asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(caller())
    else:
        raise NotImplementedError(f"offers no {verb}")
    if seconds is not None:
        return Turn(len(keys), seconds, None)
    return Turn(len(keys), time.perf_counter() - began, time.process_time() - cpu)


def _caller(
    ops: Ops, verb: str, op: Verb, source: Numbered, spent: "Spent[int] | None"
) -> Callable[[], Coroutine[Any, Any, None]]:
    """Return the loop that each caller runs: one of three, so that a loop does only the necessary between claims."""
    won, right, now = ops.won if verb == "claim" else bool, ops.right, time.perf_counter_ns

    async def plain() -> None:
        for _, key in source:
            if not won(await op(key)):
                raise ClaimedTwiceError(key)

    async def replaying() -> None:
        for _, key in source:
            if not right(key, await op(key)):
                raise WrongReplayError(key)

    async def timed() -> None:
        assert spent is not None
        for i, key in source:
            began = now()
            answer = await op(key)
            spent[i] = now() - began
            if not won(answer):
                raise ClaimedTwiceError(key)

    return timed if spent is not None else replaying if verb == "replay" else plain
