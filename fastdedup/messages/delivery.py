"""One delivery on its way to a decision, and what its integration gives to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ..claim import Claim
from ..events import DeadLettered, OnEvent, emit
from .decisions import Decision, log

Handler = Callable[..., Awaitable[Any]]
"""The user's function: `async def on_order(message)`, or `(transaction, message)` with an inbox."""
Lay = Callable[[Decision], Awaitable[None]]
"""Publishes a message as a dead letter. Returns once the broker has confirmed it; an error settles nothing."""
T = TypeVar("T")


class HandlerCancelled(Exception):
    """The handler, or something that it awaits, was cancelled, and not the consumer."""


async def lay_nothing(decision: Decision) -> None:
    """Do nothing with a dead letter. A poller lays it down itself: it gets DEAD_LETTER at each delivery.

    taskiq has no place for it, and its result has the error.
    """


class NoFailure(BaseException):
    """Raised by an integration, through the rules, if its handler has not failed."""


_NO_FAILURES: Final = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit, NoFailure)


def is_failure(error: BaseException) -> bool:
    """True if an error of the user's code is a failed attempt, even if it is not an Exception (a panic of Rust code).

    False if it ends the task or the process.
    """
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(_NO_FAILURES) is None
    return not isinstance(error, _NO_FAILURES)


def take_back_cancels(task: asyncio.Task[Any], *, but: int = 0) -> None:
    """Undo all but `but` cancellations of a task: timeouts and task groups would count them as their own."""
    while task.cancelling() > but:
        task.uncancel()


@dataclass(slots=True)
class Delivery:
    """One delivery.

    Attributes:
        consumer: the name of the consumer that has it.
        key: the message's key.
        mark: its fingerprint, or None.
        message: the broker's message.
        handler: the user's function.
        lay: publishes the message as a dead letter.
        failed: the attempts that the message's own headers count.
        again: an operator has taken it from the dead letters: work on it though it has failed for good.
        on_event: called with the event of a dead letter.
        is_cancelled: returns whether the running task was cancelled by its consumer, or with it; None if the task
            is a framework's: then each cancellation of it counts.
        claim: the key's claim, if the loss of its lease cancels the task.
        attempt: how often the handler was begun for the message; 0 until this delivery begins it.
        done: the decision that was made when the handler returned.
        is_buried: whether the message is a dead letter.
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
    is_cancelled: Callable[[], bool] | None = None
    claim: Claim | None = None
    attempt: int = 0
    done: Decision | None = None
    is_buried: bool = False

    def work(self, *transaction: Any) -> Awaitable[Any]:
        """Return an awaitable of the handler's call. It raises the errors of `result_of`."""
        return self.result_of(self.handler(*transaction, self.message))

    async def result_of(self, call: Awaitable[T]) -> T:
        """Return what the user's code returns.

        Raises:
            HandlerCancelled: it was cancelled, but not by the consumer or its caller: that would end the consumer.
            any error of the user's code.
        """
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        try:
            return await call
        except asyncio.CancelledError as error:
            if self._was_cancelled(task, before):
                raise
            cancelled = error
        finally:
            if task.cancelling() > before and not self._was_cancelled(task, before):
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)  # else a cancellation still on its way would end what comes next
                take_back_cancels(task, but=before)
        text = "it was cancelled, or something that it awaits, and not the consumer"
        raise HandlerCancelled(text).with_traceback(cancelled.__traceback__) from cancelled

    def _was_cancelled(self, task: asyncio.Task[Any], before: int) -> bool:
        """True if the consumer or its caller has cancelled the running task since it had `before` cancellations."""
        if self.is_cancelled is None:
            return task.cancelling() > before
        return self.is_cancelled() or (self.claim is not None and self.claim.lost)

    def is_ended_by(self, error: BaseException) -> bool:
        """True if an error ends the task, or the process; a cancellation only if it is that of the consumer."""
        if isinstance(error, asyncio.CancelledError) and self.is_cancelled is not None:
            return self.is_cancelled()
        return not is_failure(error)

    async def bury(self, decision: Decision) -> None:
        """Publish the message as a dead letter, once, and log that in one line. Raises the errors of `lay`."""
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
