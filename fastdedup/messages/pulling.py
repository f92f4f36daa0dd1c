"""A consumer that asks its broker for messages, and tells it which ones are at work. Main path: `_consume`."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Final

import anyio

from ..checks import check_count
from ..gateway import Dedup
from .consumer import BrokerConsumer, Message, MessageJob
from .keys import KeyRule
from .settings import ConsumerSettings

_AWAY_PAUSE: Final = 1.0
"""Seconds until a broker that does not answer is asked again."""


class PullingConsumer(BrokerConsumer[Message, MessageJob[Message]]):
    """A consumer that asks its broker for messages while it has room for more.

    Args:
        limit: messages in hand at once. The other arguments are those of `BrokerConsumer`.
    """

    def __init__(
        self, name: str, dedup: Dedup | None, key: KeyRule, settings: ConsumerSettings, *, limit: int
    ) -> None:
        super().__init__(name, dedup, key, settings)
        self._limit = check_count(limit, "limit")
        # Mutable, until it is open.
        self._sign_after = math.inf
        """Seconds between two calls of `_keep`."""

    @abstractmethod
    async def _take(self, room: int) -> Sequence[Message]:
        """Return at most `room` messages; an empty sequence if none comes for a moment."""

    @abstractmethod
    async def _keep(self, messages: Sequence[Message]) -> None:
        """Tell the broker that these messages are at work, so it does not deliver them again."""

    def _outage_of(self, error: Exception) -> str | None:
        """Return what an error of `_take` says if the broker does not answer; None for any other error."""
        return None

    async def _consume(self) -> None:
        while not self._stop.is_set():
            room = await self._room()
            try:
                messages = await self._take(room)
            except Exception as error:
                if (reason := self._outage_of(error)) is None:
                    raise
                self._deliveries.broker_is_away(reason)
                with anyio.move_on_after(_AWAY_PAUSE):
                    await self._stop.wait()
                continue
            self._deliveries.broker_is_back()
            for message in messages:
                self._start(MessageJob(message))

    async def _beside(self) -> None:
        while True:
            await anyio.sleep(self._sign_after)
            await self._keep([job.message for job in self._jobs if job.is_at_work])

    async def _room(self) -> int:
        """Wait until there is room for a message; return how many messages fit."""
        while len(self._jobs) >= self._limit:
            await self._one_ended.wait()
        return self._limit - len(self._jobs)
