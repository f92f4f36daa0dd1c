"""`Processing`: one message on its way through FastStream: held until it is decided, then settled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import anyio
from faststream import BaseMiddleware
from faststream.exceptions import AckMessage, RejectMessage, StopConsume
from faststream.message.source_type import SourceType

from ...errors import ConfigError, UsageError
from ...messages.decisions import Action, Decision, Reason, log
from ...messages.deliveries import Deliveries
from ...messages.delivery import NoFailure
from ...messages.headers import attempts_of, is_again
from ...messages.room import Letter, lay
from ...messages.rules import LAYING_PAUSE, DeadLetterError
from .brokers import BrokerWay
from .results import kept_if_possible, restored
from .settings import TRANSACTION, GuardSettings

CallNext = Callable[[Any], Awaitable[Any]]


class _Stop(NoFailure):
    """Carries `StopConsume` past the rules."""


class Guarded(NamedTuple):
    """One subscriber of FastStream, in the role of a consumer for the rules: its broker, and what decides."""

    broker: BrokerWay
    deliveries: Deliveries


class Processing(BaseMiddleware):
    """The work of `DedupMiddleware` for one message, or for one publication.

    FastStream calls `consume_scope`, then `publish_scope` for each publication of the handler's result, then
    `after_processed`. The message is acknowledged in the last, when its result is published.

    Args:
        msg: the broker's own message; None for a publication.
        context: FastStream's.
        find: returns the consumer of a subscriber; raises ConfigError if it cannot be guarded.
        settings: those of the middleware.
    """

    def __init__(
        self, msg: Any, /, *, context: Any, find: Callable[[Any], Guarded], settings: GuardSettings
    ) -> None:
        super().__init__(msg, context=context)
        self._find = find
        self._settings = settings
        self._retry_delay = settings.rules.retry_delay
        # Mutable: the message, its subscriber, and what came of it; what the handler returned, if it ran in the last
        # attempt; is its result published.
        self._message: Any = None
        self._subscriber: Any = None
        self._guarded: Guarded | None = None
        self._decision: Decision | None = None
        self._result: Any = None
        self._has_run = False
        self._silent = False

    # FastStream's own hooks

    async def consume_scope(self, call_next: CallNext, msg: Any) -> Any:
        """Work on a message until it is decided; return the result that FastStream shall publish."""
        if msg.source_type is SourceType.RESPONSE:
            return await call_next(msg)  # the answer to a request of ours
        self._subscriber, self._message = self._subscriber_of(msg), msg
        try:
            self._guarded = guarded = self._find(self._subscriber)
            async with guarded.broker.kept_alive(msg, self._subscriber):
                self._decision = await self._until_decided(guarded, call_next)
        except _Stop as stop:
            await self._give_back(0.0)
            raise stop.args[0] from None
        except Exception:
            await self._give_back(self._retry_delay)
            raise
        except BaseException:
            # Also when cancelled: FastStream before 0.7.8 may reject the message then.
            await self._give_back(0.0)
            raise
        return self._to_publish(guarded, self._decision)

    async def publish_scope(self, call_next: CallNext, cmd: Any) -> Any:
        """Publish, unless it is the result of a message whose result is not published."""
        return None if self._silent else await call_next(cmd)

    async def after_processed(
        self, exc_type: Any = None, exc_val: BaseException | None = None, exc_tb: Any = None
    ) -> bool:
        """Settle the message: its work is done, and its result published."""
        decision, guarded, message = self._decision, self._guarded, self._message
        if decision is None or guarded is None or (message.committed is not None and exc_val is not None):
            return False
        if exc_val is None:
            if decision.action is not Action.RETRY:
                await self._settle(guarded, decision)
        elif isinstance(exc_val, Exception) and decision.action is Action.ACK:
            await self._unpublished(guarded, decision, exc_val)
        return False

    # One message

    def _subscriber_of(self, msg: Any) -> Any:
        """Return the subscriber whose handler has the message.

        Raises:
            UsageError: no handler has it.
        """
        current = self.context.get_local("message")
        subscriber = self.context.get_local("handler_")
        if subscriber is None or getattr(current, "raw_message", None) is not msg.raw_message:
            raise UsageError(
                "DedupMiddleware guards handlers: get_one() and iteration hand a message out before its work. Read "
                "by a router or a broker without the middleware, and claim the key yourself"
            )
        return subscriber

    async def _until_decided(self, guarded: Guarded, call_next: CallNext) -> Decision:
        """Try until the message is done, is a dead letter, or the broker delivers it again."""
        msg, subscriber, deliveries = self._message, self._subscriber, guarded.deliveries
        failed, again = attempts_of(msg.headers, deliveries.rules.consumer), is_again(msg.headers)

        async def lay(decision: Decision) -> None:
            await deliveries.lay_at_last(
                partial(self._bury, guarded, decision),
                self._pause,
                # Another delivery begins anew.
                lambda error: guarded.broker.is_lost(error) or not subscriber.running,
            )

        while True:
            self._has_run = False
            try:
                decision = await deliveries.handle(
                    msg, self._handler(call_next), lay, failed=failed, again=again
                )
            except (ConfigError, UsageError):
                raise
            except Exception as error:
                if guarded.broker.delivers_again(subscriber):
                    raise
                log.exception("a message is held, because its dead letter was not published: %s", error)
            else:
                if decision.action is not Action.RETRY:
                    return decision
                if await guarded.broker.retry(msg, subscriber, self._retry_delay):
                    return decision
                failed = max(failed, decision.attempts)
            await self._pause()
            if not subscriber.running:  # it stops: another one gets the message
                await self._give_back(0.0)
                return Decision(Action.RETRY, Reason.LOST)

    def _handler(self, call_next: CallNext) -> Callable[..., Awaitable[Any]]:
        """Return a handler that runs the rest of FastStream's way; it takes a message, or a transaction too."""

        async def handler(*given: Any) -> Any:
            self._has_run, self._silent = True, False
            self._message.clear_cache()  # an attempt before may have changed the decoded body
            own = self.context.scope(TRANSACTION, given[0]) if len(given) > 1 else nullcontext()
            try:
                with own:
                    self._result = await call_next(self._message)
            except AckMessage:
                self._silent = True
                return None
            except RejectMessage as error:
                raise DeadLetterError("the handler rejected the message") from error
            except StopConsume as error:
                raise _Stop(error) from None
            return kept_if_possible(self._result) if self._settings.keep_result else None

        return handler

    def _to_publish(self, guarded: Guarded, decision: Decision) -> Any:
        """Return the result that is published; be silent if there is none."""
        is_first = decision.action is Action.ACK and decision.reason is Reason.FIRST
        if is_first and self._has_run:
            return self._result
        # The first, whose handler has not run: its result comes from `resolve=`.
        is_known = is_first or (decision.reason is Reason.DUPLICATE and self._settings.keep_result)
        if is_known and decision.result is not None:
            return restored(decision.result)
        self._silent = True
        return None

    async def _unpublished(self, guarded: Guarded, decision: Decision, error: Exception) -> None:
        """The work is done, and its result was not published."""
        if self._settings.keep_result:
            await self._give_back(self._retry_delay)  # the duplicate publishes it
            return
        log.error(
            "consumer %r: the work of %r is done, and its result was not published: %s. With keep_result=True it is "
            "published again",
            guarded.deliveries.rules.consumer,
            decision.key,
            error,
        )
        await self._settle(guarded, decision)

    async def _bury(self, guarded: Guarded, decision: Decision) -> None:
        """Publish a dead letter, if the settings name a place for it."""
        if (destination := self._settings.destination) is None:
            return
        publisher = self.context.get_local("broker") or self.context.get("broker")
        await lay(
            Letter(self._message.headers.items()),
            decision,
            guarded.deliveries.rules.consumer,
            lambda some: guarded.broker.bury(
                self._message, self._subscriber, publisher, destination, dict(some)
            ),
            guarded.broker.is_too_large,
        )

    async def _settle(self, guarded: Guarded, decision: Decision) -> None:
        """Tell the broker. A dead letter that was published, or is discarded, is acknowledged; else it is refused."""
        if decision.action is Action.DEAD_LETTER and self._settings.dead_letter is None:
            await self._message.reject()
        else:
            await guarded.broker.ack(self._message, self._subscriber)

    async def _pause(self) -> None:
        """Wait before another try; for a moment only if the subscriber stops."""
        ends = anyio.current_time() + self._retry_delay
        await anyio.sleep(LAYING_PAUSE)
        while self._subscriber.running and anyio.current_time() < ends:  # noqa: ASYNC110 -- there is no notice
            await anyio.sleep(LAYING_PAUSE)

    async def _give_back(self, pause: float) -> None:
        """Let the broker deliver the message again, not at once."""
        if pause:
            await anyio.sleep(pause)
        try:
            await self._message.nack()
        except Exception as error:  # noqa: BLE001 -- its channel is lost, so the broker has it again
            log.info("a message could not be given back: %s", error)
