"""`DedupMiddleware`: taskiq tasks that do their work once for each key, for any number of messages and deliveries.

Main path: the function that `DedupMiddleware.once` makes → `Deliveries.handle` → the task's own function. The
middleware itself only gives that function its message.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final, ParamSpec, TypeVar

from ..admin.resolving import Check
from ..checks import Seconds, check_decorated, check_dedup, check_wait
from ..errors import ConfigError
from ..extras import needs
from ..gateway import Dedup
from ..ledger.client import Ledger
from ..log_throttle import LogThrottle
from ..messages.decisions import Action, Decision, Reason, log
from ..messages.deliveries import Deliveries
from ..messages.delivery import lay_nothing
from ..messages.keys import of_arguments
from ..messages.memory import check_broker, check_ledger, seconds_known
from ..messages.rules import ATTEMPTS, REFUSED_PAUSE, WAIT, MessageRules
from ..results.declared import Results

with needs(__name__, "taskiq", "'fastdedup[taskiq]'"):
    from taskiq import AsyncBroker, InMemoryBroker, TaskiqMessage, TaskiqMiddleware
    from taskiq.exceptions import NoResultError

P = ParamSpec("P")
T = TypeVar("T")
_LEAST_WAIT: Final = 0.1
"""Many taskiq brokers cannot delay a message, so only this wait keeps a twin from coming again at once."""
_current: ContextVar[TaskiqMessage | None] = ContextVar("fastdedup.taskiq", default=None)


class DedupMiddleware(TaskiqMiddleware):
    """Runs the tasks that `once` decorates once for each key.

        gate = DedupMiddleware(dedup)
        broker = RedisStreamBroker(url).with_middlewares(gate)

        @broker.task
        @gate.once(key=lambda order_id: f"order:{order_id}")
        async def charge(order_id: str): ...

    Args:
        dedup: the gate.
        wait: seconds to hold a message while another delivery of it is at work; then it is sent again.
        remember: the ledger in which the gate remembers finished messages; without it each message's record stays. A
            duplicate that comes more than a minute later then returns None.

    Raises:
        ConfigError: a setting is wrong.
    """

    def __init__(self, dedup: Dedup, *, wait: Seconds | None = WAIT, remember: Ledger | None = None) -> None:
        super().__init__()
        self._dedup = check_dedup(dedup, Dedup, "taskiq is asynchronous: dedup")
        check_ledger(remember, Ledger, dedup.gate.connection, dedup.settings.namespace)
        self._remember = remember
        self._wait = check_wait(wait, WAIT, least=_LEAST_WAIT)
        self._refusals, self._faults = LogThrottle(), LogThrottle()

    def set_broker(self, broker: AsyncBroker) -> None:
        """Note the broker; taskiq calls this when the middleware is added.

        Raises:
            ConfigError: the broker may deliver a message again after the gate has forgotten its key.
        """
        check_broker(seconds_known(self._dedup, self._remember), broker, "taskiq_redis", "idle_timeout")
        super().set_broker(broker)

    def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        """Note the message for the function that is called next."""
        _current.set(message)
        return message

    def once(
        self,
        key: Callable[..., str] | None = None,
        *,
        attempts: int = ATTEMPTS,
        fingerprint: Callable[..., Any] | None = None,
        keep_result: bool = True,
        resolve: Check | None = None,
    ) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Awaitable[T]]]:
        """Decorate a task's async function, below `broker.task`. A direct call of it is a plain call.

        Args:
            key: a function of the task's arguments, called with those that it names. By default the key is the task's
                id, which taskiq keeps in retries and redeliveries, but not when a client sends twice.
            attempts: how often the function is begun for a key, crashes included; then the key has failed.
            fingerprint: a function of the task's arguments; another message with the same key and another
                fingerprint ends in a MismatchError.
            keep_result: keep the result for duplicates, with the type that the function is declared to return.
            resolve: an async function, called with a `Takeover` before the task's function runs again, after a crash
                or a retry: it says whether an earlier attempt has done the work; see `Dedup.claim`. "done" gives the
                task its result, and "unknown" fails for good.

        Raises:
            ConfigError: a setting is wrong, or results of the declared type cannot come back.
        """

        def decorate(function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
            check_decorated(function)
            if not inspect.iscoroutinefunction(function):
                raise ConfigError(f"once() decorates async functions, got {function!r}: write async def")
            name = f"{function.__module__}:{function.__qualname__}"
            signature = inspect.signature(function)
            results = Results(function, self._dedup.settings.codec)
            rules = MessageRules(
                name,
                (lambda call: call[0].task_id) if key is None else of_arguments(key, signature),
                wait=self._wait,
                attempts=attempts,
                fingerprint=None
                if fingerprint is None
                else of_arguments(fingerprint, signature, "fingerprint"),
                keep_result=keep_result,
                results=results,
            )
            # taskiq logs the errors of a task.
            deliveries = Deliveries(
                rules, self._dedup, remember=self._remember, resolve=resolve, logs_attempts=False
            )

            @functools.wraps(function)
            async def run(*args: P.args, **kwargs: P.kwargs) -> T:
                message = self._message_of(run)
                if message is None:
                    return await function(*args, **kwargs)
                if not results.are_known:
                    results.prepare()
                has_begun = False

                def begun(_: Any) -> Awaitable[T]:
                    nonlocal has_begun
                    has_begun = True
                    return function(*args, **kwargs)

                while True:
                    try:
                        decision = await deliveries.handle(
                            (message, args, kwargs), begun, lay_nothing, failed=_retries_of(message)
                        )
                    except Exception as error:
                        if has_begun or isinstance(self.broker, InMemoryBroker):
                            raise
                        decision = await self._held(message, error)
                    if decision.action is not Action.RETRY or decision.reason is Reason.FAILED:
                        break
                    if await self._is_sent_again(message):
                        raise NoResultError
                if decision.error is not None:
                    if decision.action is not Action.RETRY:
                        # No attempt can help, so taskiq's retry middlewares shall not send it again.
                        message.labels["retry_on_error"] = False
                    raise decision.error
                return decision.result  # type: ignore[no-any-return]

            return run

        return decorate

    async def _held(self, message: TaskiqMessage, error: Exception) -> Decision:
        """Hold a message for a moment if the gate cannot be asked: it would be the error of a task that never ran."""
        if self._faults.passes():
            text = "task %r: a message is held, because the gate cannot be asked: %r"
            log.error(text, message.task_name, error)
        await asyncio.sleep(REFUSED_PAUSE)
        return Decision(Action.RETRY, Reason.UNAVAILABLE, error=error)

    async def _is_sent_again(self, message: TaskiqMessage) -> bool:
        """Send a message again; return False, a moment later, if the broker does not take it: it is held then."""
        try:
            await self.broker.kick(self.broker.formatter.dumps(message))
        except Exception as error:  # noqa: BLE001 -- after any error, taskiq would acknowledge what has not run
            if self._refusals.passes():
                text = "task %r: a message is held, because the broker does not take it: %r"
                log.warning(text, message.task_name, error)
            await asyncio.sleep(REFUSED_PAUSE)
            return False
        return True

    def _message_of(self, function: Callable[..., Any]) -> TaskiqMessage | None:
        """Return the message that a function is called for; None if other code calls it."""
        message = _current.get()
        task = None if message is None else self.broker.find_task(message.task_name)
        if task is None or task.original_func is not function:
            return None
        _current.set(None)  # a call of the task within its own body is a plain call
        return message


def _retries_of(message: TaskiqMessage) -> int:
    """Return how often taskiq's retry middlewares have sent the message again."""
    text = str(message.labels.get("_retries", 0))
    return int(text[:9]) if text.isdecimal() else 0  # Python reads no number of thousands of digits
