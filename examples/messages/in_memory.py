"""The messages on FastStream's broker in memory: a consumer is a group of tasks, and killed by a cancellation.

What the broker in memory does not do, `deliver` does: it delivers again what a killed consumer had in hand.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any, Final

import anyio
from faststream.rabbit import RabbitBroker, TestRabbitBroker

from fastdedup import Dedup
from fastdedup.integrations.faststream import DedupMiddleware, Transaction, message_id

from .database import pay, paying
from .run import DEADLINE, MessageRun

QUEUE: Final = "payments"
CONSUMERS: Final = 2
_AT_ONCE: Final = 16
"""Messages that a consumer has in hand."""
_LEASE: Final = 1.0
_ATTEMPTS: Final = 50
_LOOK: Final = 0.02


def deliver(run: MessageRun) -> None:
    """Publish, and let consumers do the work."""
    anyio.run(_deliver, run)


async def _deliver(run: MessageRun) -> None:
    async with (
        Dedup(run.gate, namespace=run.namespace, lease=_LEASE, timeout=5.0) as dedup,
        paying(str(run.payments.path)) as inbox,
    ):
        guard = DedupMiddleware(
            dedup, key=message_id, inbox=inbox, wait=2 * _LEASE, attempts=_ATTEMPTS, retry_delay=0.05
        )
        broker = RabbitBroker(middlewares=[guard], logger=None)

        @broker.subscriber(QUEUE)
        async def on_message(body: str, transaction: Transaction) -> None:
            await pay(transaction, body)

        async with TestRabbitBroker(broker):
            crew = ConsumerTasks(run, broker)
            with anyio.move_on_after(DEADLINE):
                await crew.work_off()
        run.duplicates = sum(counts.duplicate for counts in guard.counts.values())


class ConsumerTasks:
    """The consumers, and the messages that none of them has acknowledged."""

    def __init__(self, run: MessageRun, broker: Any) -> None:
        self._run = run
        self._broker = broker
        # Mutable: what waits, how many are in hand, and by what each consumer is killed.
        self._waiting = deque(run.deliveries())
        self._in_hand = 0
        self._consumers: list[anyio.CancelScope] = []

    async def work_off(self) -> None:
        """Return once everything is acknowledged."""
        moments = deque(self._run.moments())
        async with anyio.create_task_group() as group:
            while self._waiting or self._in_hand:
                while len(self._consumers) < CONSUMERS:
                    self._consumers.append(anyio.CancelScope())
                    group.start_soon(self._consume, self._consumers[-1])
                if moments and self._run.payments.count() > moments[0]:
                    moments.popleft()
                    self._consumers.pop(random.randrange(CONSUMERS)).cancel()
                    self._run.kills += 1
                await anyio.sleep(_LOOK)
            group.cancel_scope.cancel()

    async def _consume(self, scope: anyio.CancelScope) -> None:
        """Be one consumer, until its scope is cancelled."""
        with scope:
            async with anyio.create_task_group() as group:
                for _ in range(_AT_ONCE):
                    group.start_soon(self._work)

    async def _work(self) -> None:
        while True:
            if not self._waiting:
                await anyio.sleep(_LOOK)
                continue
            message = self._waiting.popleft()
            self._in_hand += 1
            try:
                await self._broker.publish(message, QUEUE, message_id=message)
            except BaseException:  # killed: it is delivered again
                self._waiting.appendleft(message)
                raise
            finally:
                self._in_hand -= 1
