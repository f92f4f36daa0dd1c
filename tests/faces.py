"""One test for asyncio and for synchronous code, which a thread of its own calls: so each is awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial, wraps
from inspect import isawaitable
from typing import Any

import pytest

from fastdedup import Dedup
from fastdedup.sync import Dedup as SyncDedup

each_face = pytest.mark.parametrize("face", ["asyncio", "synchronous"])


@asynccontextmanager
async def gate_of(face: str, *args: Any, **options: Any) -> AsyncIterator[Any]:
    """Open a gate of this face."""
    if face == "asyncio":
        async with Dedup(*args, **options) as dedup:
            yield dedup
    else:
        with SyncDedup(*args, **options) as dedup:
            yield dedup


def once_of(
    face: str, once: Callable[[Any], Callable[..., Any]], work: Callable[..., Any]
) -> Callable[..., Awaitable[Any]]:
    """Decorate work by what `once()` of a gate or an inbox of this face returned."""
    if face == "synchronous":
        return partial(asyncio.to_thread, once(work))

    @wraps(work)
    async def asynchronous(*args: Any, **options: Any) -> Any:
        return work(*args, **options)

    return once(asynchronous)


async def told(answer: Any) -> Any:
    """Return the answer of a call of either face: synchronous code has it at once."""
    return await answer if isawaitable(answer) else answer
