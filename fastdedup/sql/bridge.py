"""The steps of an inbox's flows that differ between async and synchronous code; see `fastdedup.flows`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, ClassVar, Final, TypeVar

from ..errors import ConfigError, UsageError
from .drivers import Driver, driver_of

T = TypeVar("T")
Begin = Callable[[], AbstractAsyncContextManager[Any]]
"""Begins a transaction: returns an async context manager that yields it, commits it, or on an error rolls it back."""
SyncBegin = Callable[[], AbstractContextManager[Any]]
"""Begins a transaction: returns a context manager that yields it, commits it, and rolls it back on an error."""


class AsyncInboxBridge:
    """The way in which async code uses its transactions."""

    is_async: ClassVar[bool] = True

    async def enter(self, block: AbstractAsyncContextManager[Any]) -> Any:
        """Begin the transaction of a context manager that `begin` has returned; return what it yields."""
        if not hasattr(block, "__aenter__"):
            raise ConfigError(
                f"begin= must return an async context manager, such as async_sessionmaker(engine).begin, got "
                f"{block!r}: with a synchronous one use Inbox of fastdedup.sync.sql"
            )
        return await block.__aenter__()

    async def exit(self, block: AbstractAsyncContextManager[Any], error: BaseException | None) -> None:
        """Commit the transaction of a context manager, or roll it back because of an error."""
        await block.__aexit__(*facts_of(error))

    async def pause(self, seconds: float) -> None:
        """Wait in the event loop."""
        await asyncio.sleep(seconds)


class SyncInboxBridge:
    """The way in which synchronous code uses its transactions."""

    is_async: ClassVar[bool] = False

    async def enter(self, block: AbstractContextManager[Any]) -> Any:
        """See `AsyncInboxBridge.enter`."""
        if not hasattr(block, "__enter__"):
            raise ConfigError(
                f"begin= must return a context manager, such as sessionmaker(engine).begin, got {block!r}: with "
                "an async one use Inbox of fastdedup.sql"
            )
        return block.__enter__()

    async def exit(self, block: AbstractContextManager[Any], error: BaseException | None) -> None:
        """See `AsyncInboxBridge.exit`."""
        block.__exit__(*facts_of(error))

    async def pause(self, seconds: float) -> None:
        """Block the thread."""
        time.sleep(seconds)  # noqa: ASYNC251 -- no event loop runs here


InboxBridge = AsyncInboxBridge | SyncInboxBridge


def facts_of(error: BaseException | None) -> tuple[Any, Any, Any]:
    """Return the arguments of `__exit__` for an error, or for a block that ends without one."""
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


def driver_over(bridge: InboxBridge, transaction: Any) -> Driver:
    """Return the driver for a transaction.

    Raises:
        UsageError: it is a synchronous transaction in async code, or the reverse.
    """
    driver = driver_of(transaction)
    if driver.is_async == bridge.is_async:
        return driver
    kind = type(transaction).__name__
    if driver.is_async:
        raise UsageError(f"{kind} is async: use Inbox of fastdedup.sql, or a synchronous connection")
    raise UsageError(f"{kind} is synchronous: use Inbox of fastdedup.sync.sql, or an async connection")


async def within(bridge: InboxBridge, begin: Any, body: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
    """Run `body` within the block that `begin` returns, a transaction's or a lock's; return the result of `body`.

    An error of `body` is raised, even if the block only logs it: nothing was committed, and the caller must know. If
    the end of the block then has an error of its own, that is raised; but a cancellation, or what else ends a task or
    the process, is raised even then.
    """
    block = begin()
    entered = await bridge.enter(block)
    try:
        done = await body(entered)
    except BaseException as error:
        try:
            await bridge.exit(block, error)
        except Exception:
            if isinstance(error, Exception):
                raise
        raise
    await bridge.exit(block, None)
    return done


AWAITING: Final = AsyncInboxBridge()
BLOCKING: Final = SyncInboxBridge()
