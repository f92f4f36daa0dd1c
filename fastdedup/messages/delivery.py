"""One delivery on its way to a decision, and what its integration lends it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ..events import DeadLettered, OnEvent, emit
from .decisions import Decision

Handler = Callable[..., Awaitable[Any]]
"""The user's own: `async def on_order(message)`, or `(transaction, message)` with an inbox."""
Lay = Callable[[Decision], Awaitable[None]]
"""Lays a message where dead letters lie. Returns once the broker has confirmed it; an error settles nothing."""
log = logging.getLogger("fastdedup.messages")


class HandlerCancelled(Exception):
    """Something that the handler awaits was cancelled, and not the handler itself."""


@dataclass(slots=True)
class Delivery:
    """One delivery.

    Attributes:
        consumer: the name of the consumer that has it.
        key: the message's key.
        mark: its fingerprint, or None.
        message: the broker's message.
        handler: the user's own.
        lay: lays the message where dead letters lie.
        failed: attempts at this message that its own headers tell of.
        again: somebody has taken it from the dead letters: work on it though it has failed for good.
        on_event: told of a dead letter.
        attempt: how often the handler was begun for the message, once it is begun by this delivery; until then 0.
        done: what was decided once the handler returned.
        is_buried: whether it lies where dead letters lie.
    """

    consumer: str
    key: str
    mark: Any
    message: Any
    handler: Handler
    lay: Lay
    failed: int
    again: bool
    on_event: OnEvent | None
    attempt: int = 0
    done: Decision | None = None
    is_buried: bool = False

    async def work(self, *transaction: Any) -> Any:
        """Return what the handler returns.

        Raises:
            HandlerCancelled: it ended by a cancellation that nobody has asked for: that would end the consumer.
            any error of the handler.
        """
        try:
            return await self.handler(*transaction, self.message)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            cancelled = error
        raise HandlerCancelled("something that the handler awaits was cancelled") from cancelled

    async def bury(self, decision: Decision) -> None:
        """Lay the message where dead letters lie, once, and say so in one line. Raises the errors of `lay`."""
        if self.is_buried:
            return
        await self.lay(decision)
        self.is_buried = True
        error = type(decision.error).__name__
        log.error(
            "dead letter: consumer=%r key=%r reason=%s attempts=%d error=%s",
            self.consumer,
            decision.key,
            decision.reason,
            decision.attempts,
            error,
        )
        emit(
            self.on_event,
            DeadLettered(self.consumer, decision.key, str(decision.reason), decision.attempts, error),
        )
