"""`Guarded`: one subscriber, in the role of a consumer for the rules."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from ...log_throttle import LogThrottle
from ...messages.decisions import Action, Decision
from ...messages.headers import dead_letter_headers
from ...messages.room import lay_down
from ...messages.rules import LAYING_PAUSE
from .brokers import broker_of
from .settings import GuardSettings

Handler = Callable[..., Awaitable[Any]]
log = logging.getLogger("fastdedup.messages")


class Guarded:
    """One subscriber of FastStream, with its consumer's name, its broker and its settings.

    Raises:
        ConfigError: the subscriber cannot be guarded.
    """

    def __init__(self, subscriber: Any, settings: GuardSettings) -> None:
        # Not the subscriber itself: FastStream lets go of one that ends before its broker.
        self.settings = settings
        self.broker = broker_of(subscriber)
        self.broker.check(subscriber, settings)
        self.deliveries = settings.deliveries(self.broker.name_of(subscriber))
        self._unlaid = LogThrottle()
        if patience := self.broker.redelivers_after(subscriber):
            self.deliveries.check_memory(*patience)

    async def handle(
        self, message: Any, subscriber: Any, handler: Handler, publisher: Any, *, failed: int, again: bool
    ) -> Decision:
        """Decide on a delivery; `publisher` publishes dead letters. Arguments and errors as `Deliveries.handle`."""

        async def lay(decision: Decision) -> None:
            await self._bury_at_last(message, subscriber, publisher, decision)

        return await self.deliveries.handle(message, handler, lay, failed=failed, again=again)

    async def settle(self, message: Any, subscriber: Any, decision: Decision) -> None:
        """Tell the broker. A dead letter that was published, or is discarded, is acknowledged; else it is refused."""
        if decision.action is Action.DEAD_LETTER and self.settings.dead_letter is None:
            await message.reject()
        else:
            await self.broker.ack(message, subscriber)

    async def _bury_at_last(self, message: Any, subscriber: Any, publisher: Any, decision: Decision) -> None:
        """Publish a dead letter as soon as the broker takes it: the next delivery would not know its cause."""
        rules = self.deliveries.rules
        while True:
            try:
                return await self._bury(message, subscriber, publisher, decision)
            except Exception as error:
                if self.broker.is_lost(error) or not subscriber.running:  # another delivery begins anew
                    raise
                if self._unlaid.passes():
                    log.error("consumer %r cannot lay a dead letter down: %r", rules.consumer, error)
            ends = anyio.current_time() + rules.retry_delay
            await anyio.sleep(LAYING_PAUSE)
            while subscriber.running and anyio.current_time() < ends:  # noqa: ASYNC110 -- FastStream tells of no stop
                await anyio.sleep(LAYING_PAUSE)

    async def _bury(self, message: Any, subscriber: Any, publisher: Any, decision: Decision) -> None:
        """Publish a dead letter, if the settings name a place for it."""
        if (destination := self.settings.destination) is None:
            return
        headers = dead_letter_headers(message.headers, decision, self.deliveries.rules.consumer)
        await lay_down(
            headers.items(),
            lambda some: self.broker.bury(message, subscriber, publisher, destination, dict(some)),
            self.broker.is_too_large,
        )
