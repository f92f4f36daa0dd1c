"""`Guarded`: one subscriber, in the role of a consumer for the rules."""

from __future__ import annotations

from typing import Any

import anyio

from ...messages.decisions import Action, Decision
from ...messages.delivery import Handler
from ...messages.room import Letter, lay
from ...messages.rules import LAYING_PAUSE
from .brokers import broker_of
from .settings import GuardSettings


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
        if patience := self.broker.redelivers_after(subscriber):
            self.deliveries.check_memory(*patience)

    async def handle(
        self, message: Any, subscriber: Any, handler: Handler, publisher: Any, *, failed: int, again: bool
    ) -> Decision:
        """Decide on a delivery; `publisher` publishes dead letters. Arguments and errors as `Deliveries.handle`."""

        async def lay(decision: Decision) -> None:
            await self.deliveries.lay_at_last(
                lambda: self._bury(message, subscriber, publisher, decision),
                lambda: self._pause(subscriber),
                # Another delivery begins anew.
                lambda error: self.broker.is_lost(error) or not subscriber.running,
            )

        return await self.deliveries.handle(message, handler, lay, failed=failed, again=again)

    async def settle(self, message: Any, subscriber: Any, decision: Decision) -> None:
        """Tell the broker. A dead letter that was published, or is discarded, is acknowledged; else it is refused."""
        if decision.action is Action.DEAD_LETTER and self.settings.dead_letter is None:
            await message.reject()
        else:
            await self.broker.ack(message, subscriber)

    async def _pause(self, subscriber: Any) -> None:
        ends = anyio.current_time() + self.deliveries.rules.retry_delay
        await anyio.sleep(LAYING_PAUSE)
        while subscriber.running and anyio.current_time() < ends:  # noqa: ASYNC110 -- FastStream tells of no stop
            await anyio.sleep(LAYING_PAUSE)

    async def _bury(self, message: Any, subscriber: Any, publisher: Any, decision: Decision) -> None:
        """Publish a dead letter, if the settings name a place for it."""
        if (destination := self.settings.destination) is None:
            return
        await lay(
            Letter(message.headers.items()),
            decision,
            self.deliveries.rules.consumer,
            lambda some: self.broker.bury(message, subscriber, publisher, destination, dict(some)),
            self.broker.is_too_large,
        )
