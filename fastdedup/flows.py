"""Flows: coroutines for the code that async and synchronous use share, so that it is written once.

If the two differ, the flow awaits a step. In async code a step waits in the event loop. In synchronous code it
blocks its thread and never suspends, so `drive` runs the flow to its end like any function.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def step(function: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Turn a function that blocks into a step of a flow."""

    async def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    return run


def drive(flow: Coroutine[Any, Any, T]) -> T:
    """Run a flow whose steps block. It raises the flow's errors."""
    try:
        flow.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    except RuntimeError as error:
        # A coroutine cannot raise a StopIteration. The user's function that raised this one is not a coroutine.
        if isinstance(error.__cause__, StopIteration) and error.args == ("coroutine raised StopIteration",):
            raise error.__cause__ from None
        raise
    flow.close()
    raise RuntimeError("a flow of synchronous code waited for an event loop")
