"""A consumer's life, for every broker: it takes messages while it has room, and ends what it began when it stops.

Main path: `BrokerConsumer.run` → `take` → a `MessageJob` for each message → `work_on`, which an integration brings.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from ..checks import check_seconds
from ..errors import UsageError
from ..gateway import Dedup
from .decisions import Action, Counts, Decision
from .delivery import Handler, is_failure
from .headers import attempts_of, is_again
from .keys import KeyRule
from .rules import LAYING_PAUSE
from .settings import GRACE, ConsumerSettings, deliveries_of

GOODBYE: Final = 5.0
"""Seconds that a broker gets at least for a read under way, and for messages that go back, when its consumer ends."""
_CANCELLED: Final = "a task of the consumer was cancelled, without a cancelled run() or a call of stop()"
T = TypeVar("T")
Message = TypeVar("Message")
JobT = TypeVar("JobT", bound="MessageJob[Any]")


class MessageJob(Generic[Message]):
    """A message in hand.

    Attributes:
        message: the broker's message.
        scope: ends the work on it, at once.
        is_begun: its handler was called, or a copy of it is under way, and its outcome is not settled yet.
        is_given_up: its handler must not be called any more: the broker delivers the message again.
        is_at_work: it is not decided yet, so the broker must not deliver the message again.
    """

    __slots__ = ("is_at_work", "is_begun", "is_given_up", "message", "scope")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.scope = anyio.CancelScope()
        self.is_begun = False
        self.is_given_up = False
        self.is_at_work = True

    def give_up(self) -> None:
        """Let the handler end if it was begun; else end the work on the message at once."""
        self.is_given_up = True
        if not self.is_begun:
            self.scope.cancel()


class BrokerConsumer(ABC, Generic[Message, JobT]):
    """The base of the consumers of all brokers. Each message in hand is a job, by default in a task of its own.

    Args:
        name: the broker's own name for it, if the settings have none.
        dedup: the gate; None if an inbox decides alone.
        key: a function of the message that returns its key, or None.
        settings: those of all consumers.

    Raises:
        ConfigError: a setting is wrong; the message names it.
    """

    def __init__(self, name: str, dedup: Dedup | None, key: KeyRule, settings: ConsumerSettings) -> None:
        parameters = inspect.signature(type(self)).parameters.values()
        own = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
        self._deliveries = deliveries_of(name, dedup, key, settings, own)
        self.name = self._deliveries.rules.consumer
        """The consumer's name, which logs and figures show."""
        self._grace = check_seconds(settings.get("grace", GRACE), "grace", least=0.0)
        self._retry_delay = self._deliveries.rules.retry_delay
        self._counts_deliveries = dedup is None
        self._stop = anyio.Event()
        # Mutable: whether `run` may be called, whether it may never be called again, whether it is at work, and why
        # it cannot go on; its task, and how often that task had been cancelled before.
        self._is_open = False
        self._has_ended = False
        self._is_running = False
        self._fault: BaseException | None = None
        self._runner: asyncio.Task[Any] | None = None
        self._cancelled_before = 0
        # Mutable: the messages in hand, and what says that one of them has ended; when handlers must have ended.
        self._jobs: set[JobT] = set()
        self._one_ended = anyio.Event()
        self._ends = math.inf

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    async def __aenter__(self) -> Self:
        """Check that the broker is set up for this consumer.

        Raises:
            ConfigError: the broker is not set up; the message says what is missing.
            UsageError: the consumer has ended before.
        """
        if self._has_ended:
            raise self._over()
        await heeding_cancel(self._open())
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        self._is_open = False
        self._has_ended = True

    @property
    def counts(self) -> Counts:
        """The outcomes so far: a `fastdedup.messages.Counts`, for example `consumer.counts.dead_lettered`."""
        return self._deliveries.counts

    @property
    def is_paused(self) -> bool:
        """True while messages are held for a store that does not answer, or its broker is known not to answer."""
        return self._deliveries.is_paused

    @property
    def is_running(self) -> bool:
        """True while `run` is at work: False before, and once it has returned or raised."""
        return self._is_running

    def stop(self) -> None:
        """Take no more messages; `run` returns once the handlers at work have ended, or `grace` seconds are over.

        A message whose handler was not begun goes back: the broker delivers it again.
        """
        self._stop.set()
        self._ends = min(self._ends, monotonic() + self._grace)
        for job in tuple(self._jobs):
            job.give_up()

    def _over(self) -> UsageError:
        """Return the error for a consumer that has ended: a `run` would return at once, and take no message."""
        return UsageError(f"the consumer {self.name!r} has ended, and cannot begin again: make a new one")

    def _checked(self, handler: Any) -> Handler:
        """Return the handler, if `run` may begin.

        Raises:
            ConfigError: the handler is not async, or takes other arguments.
            UsageError: the consumer or its gate is not open, it has ended, or `run` is at work already.
        """
        checked = self._deliveries.check_handler(handler)
        if self._is_running:
            raise UsageError(
                f"the consumer {self.name!r} runs already: give each handler a consumer of its own"
            )
        if not self._is_open:
            raise UsageError("the consumer is not open: write `async with Consumer(…) as consumer:`")
        if self._stop.is_set() and self._runner is not None:
            raise self._over()
        self._deliveries.check_open()
        return checked

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Count as running inside the block; report an end that neither `stop` nor the caller asked for.

        Raises:
            RuntimeError: a cancellation ended it, though neither `stop` nor the caller asked for one.
        """
        self._runner = asyncio.current_task()
        assert self._runner is not None
        self._cancelled_before = self._runner.cancelling()
        self._is_running = True
        try:
            try:
                yield
            except asyncio.CancelledError as error:
                if self._is_cancelled():
                    raise
                raise RuntimeError(_CANCELLED) from error
            if not self._stop.is_set():  # one of its tasks was cancelled, and with that the group
                raise RuntimeError(_CANCELLED)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            self._is_running = False
            self._deliveries.tell_end(error)
            raise
        finally:
            self._is_running = False

    def _is_cancelled(self) -> bool:
        """True if the caller has cancelled `run`, or a scope of anyio around the running task was cancelled."""
        assert self._runner is not None
        is_ours = anyio.current_effective_deadline() == -math.inf
        return is_ours or self._runner.cancelling() > self._cancelled_before

    async def _guarded(self, call: Callable[..., Awaitable[None]], *given: Any) -> None:
        """Await a call; an error of it stops the consumer, and `run` raises it."""
        try:
            await call(*given)
        except BaseException as error:
            if self._passes(error):
                raise
            self._give_up(error)

    def _passes(self, error: BaseException) -> bool:
        """True if an error ends its task because the caller or `stop` asked for that, or if it ends the process."""
        return self._is_cancelled() if isinstance(error, asyncio.CancelledError) else not is_failure(error)

    def _give_up(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            if self._stop.is_set():  # it ends in any case
                return
            cancelled, error = error, RuntimeError(_CANCELLED)
            error.__cause__ = cancelled
        self._fault = self._fault or error
        self.stop()

    async def run(self, handler: Handler) -> None:
        """Consume until `stop` is called.

        Raises:
            ConfigError: the handler is not async; the gate or the inbox is set up wrongly.
            UsageError: the consumer or its gate is not open, it has ended, or `run` is at work already.
            RuntimeError: one of its own tasks was cancelled, and not `run`.
            an error of the broker's client that a retry cannot fix.
        """
        self._handler = self._checked(handler)
        with self._at_work():
            try:
                async with anyio.create_task_group() as self._tasks:
                    # In a task of the group: the group repeats a cancellation to it until it ends. The caller's own
                    # task gets it once, and a broker's client may lose that one: see `heeding_cancel`.
                    self._tasks.start_soon(self._live)
            finally:
                self._deliveries.end()
                with anyio.CancelScope(shield=True):
                    await self._leave_all()
            if self._fault is not None:
                raise self._fault

    # An integration implements these

    @abstractmethod
    async def _open(self) -> None:
        """Raise ConfigError unless the broker is set up for this consumer."""

    @abstractmethod
    async def _consume(self) -> None:
        """Take messages and `start` a job for each, until `_stop` is set."""

    @abstractmethod
    async def _work_on(self, job: JobT) -> None:
        """Decide on a message by `decide`, and tell the broker."""

    @abstractmethod
    async def _lay(self, message: Message, decision: Decision) -> None:
        """Publish a message as a dead letter, by `lay`; return once the broker has confirmed it."""

    def _is_lost(self, error: Exception) -> bool:
        """True if an error of `_lay` says that the broker delivers the message again."""
        return False

    async def _comes_again(self, job: JobT, decision: Decision) -> bool:
        """Return whether the broker can deliver this one message again. If not, it is tried again here."""
        return True

    async def _give_back(self, job: JobT) -> None:
        """Tell the broker that a message was given up; by default the broker finds out by itself."""

    async def _beside(self) -> None:
        """Run beside the work until cancelled: heartbeats, commits."""

    async def _last(self) -> None:
        """Run once all work has ended."""

    async def _leave_all(self) -> None:
        """Run after that, also if `run` was cancelled."""

    # An integration uses these

    async def _live(self) -> None:
        """Consume until `stop` is called; then end the work that was begun."""
        self._tasks.start_soon(self._guarded, self._beside)
        with anyio.CancelScope() as taking:
            self._tasks.start_soon(self._cut_off, taking)
            await self._guarded(self._consume)
        await self._finish()
        with anyio.move_on_after(self._grace):
            await self._guarded(self._last)
        self._tasks.cancel_scope.cancel()

    async def _cut_off(self, taking: anyio.CancelScope) -> None:
        """End a read that lasts after `stop`: its broker does not answer, and its client waits without a limit."""
        await self._stop.wait()
        await anyio.sleep(max(self._grace, GOODBYE))
        taking.cancel()

    def _start(self, job: JobT) -> None:
        """Work on a message in a task of its own."""
        self._jobs.add(job)
        if self._stop.is_set():
            job.give_up()
        self._tasks.start_soon(self._guarded, self._run_job, job)

    async def _decide(self, job: JobT, headers: Mapping[str, Any], deliveries: int = 1) -> Decision:
        """Do the work of a delivery if it is the first; return the decision, which the broker gets.

        Args:
            job: the message in hand.
            headers: the message's own.
            deliveries: how often the broker has delivered it. They count as attempts if there is no gate to count.
        """

        async def handler(*given: Any) -> Any:
            job.is_begun = True
            return await self._handler(*given)

        async def lay(decision: Decision) -> None:
            async def publish() -> None:
                job.is_begun = True  # a copy that is under way is not cut off
                await self._lay(job.message, decision)

            async def pause() -> None:
                job.is_begun = False
                await self._pause(job, max(self._retry_delay, LAYING_PAUSE))

            await self._deliveries.lay_at_last(publish, pause, self._is_lost)

        failed = max(attempts_of(headers, self.name), deliveries - 1 if self._counts_deliveries else 0)
        again = is_again(headers)
        while True:
            decision = await self._deliveries.handle(
                job.message, handler, lay, failed=failed, again=again, is_cancelled=self._is_cancelled
            )
            if decision.action is Action.RETRY:  # a copy counts also what was tried here, before a twin
                failed = max(failed, decision.attempts)
                decision = replace(decision, attempts=failed)
            if decision.action is not Action.RETRY or await self._comes_again(job, decision):
                job.is_at_work = False
                return decision
            job.is_begun = False
            await self._pause(job, self._retry_delay)

    async def _pause(self, job: JobT, seconds: float) -> None:
        """Wait before another try. A message that was given up is not tried again: here its work ends."""
        if job.is_given_up:
            job.scope.cancel()
        await anyio.sleep(seconds)

    def _start_beside(self, call: Callable[..., Awaitable[None]]) -> None:
        """Run a call in a task of its own, until it or all the work ends; an error of it stops the consumer."""
        self._tasks.start_soon(self._guarded, call)

    async def _run_job(self, job: JobT) -> None:
        try:
            with job.scope:
                await self._work_on(job)
            if job.scope.cancelled_caught:
                job.is_at_work = False
                await self._give_back(job)
        finally:
            self._jobs.discard(job)
            self._one_ended.set()
            self._one_ended = anyio.Event()

    async def _finish(self) -> None:
        """Let the work that was begun end; then cancel the rest: the broker delivers those messages again."""
        with anyio.move_on_after(self._ends - monotonic()):
            await self._until_ended(self._jobs)
        for job in tuple(self._jobs):
            job.scope.cancel()
        with anyio.move_on_after(GOODBYE):  # they go back, unless the broker does not answer
            await self._until_ended(self._jobs)

    async def _until_ended(self, jobs: set[JobT]) -> None:
        """Wait until all these jobs have ended."""
        while not jobs.isdisjoint(self._jobs):
            await self._one_ended.wait()


async def heeding_cancel(call: Awaitable[T]) -> T:
    """Return what a call of a broker's client returns, unless the task was cancelled meanwhile.

    A client may lose a cancellation. On Python 3.11 `asyncio.wait_for` drops one that comes right after its awaitable
    has ended. redis-py sends each command with it, and nats-py waits for each reply with it. A task that goes on in
    spite of its cancellation may never end.

    Raises:
        CancelledError: the client has lost a cancellation.
        any error of the call.
    """
    task = asyncio.current_task()
    assert task is not None
    cancelled = task.cancelling()
    found = await call
    if task.cancelling() > cancelled:
        # This raises if a scope of anyio was cancelled; the scope knows its own error.
        await checkpoint_if_cancelled()
        raise asyncio.CancelledError
    return found
