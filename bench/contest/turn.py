"""Plays one turn: callers share keys that were made before the clock started."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fastdedup.cli.bench import caller_of

from .model import Numbered, Ops, Right, Spent, Turn, Verb, WrongReplayError

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
        won = ops.won if verb == "claim" else bool
        replays = verb == "replay" and spent is None
        caller = (
            _replaying(ops.right, op, enumerate(keys))
            if replays
            else caller_of(op, won, enumerate(keys), spent)
        )
        async with asyncio.timeout(TURN_LIMIT), asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(caller())
    else:
        raise NotImplementedError(f"offers no {verb}")
    if seconds is not None:
        return Turn(len(keys), seconds, None)
    return Turn(len(keys), time.perf_counter() - began, time.process_time() - cpu)


def _replaying(right: Right, op: Verb, source: Numbered) -> Callable[[], Coroutine[Any, Any, None]]:
    async def replaying() -> None:
        for _, key in source:
            if not right(key, await op(key)):
                raise WrongReplayError(key)

    return replaying
