"""The messages on a RabbitMQ: consumers are processes, and are killed by SIGKILL. Main path: `deliver`."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aio_pika
import anyio
import orjson
from aio_pika import DeliveryMode, Message
from aio_pika.abc import AbstractChannel

from . import consumer
from .run import DEADLINE, MessageRun

QUEUE: Final = "payments"
CONSUMERS: Final = 2
_LOOK: Final = 0.05
"""Seconds between looks at the database and the queue."""
_ENDING: Final = 10.0
_IN_FLIGHT: Final = 250
"""Messages that are published at once."""


def deliver(run: MessageRun, broker: str) -> None:
    """Publish, and let consumers work the queue off.

    Raises:
        RuntimeError: a consumer ended that was not killed.
    """
    anyio.run(_deliver, run, broker)


async def _deliver(run: MessageRun, broker: str) -> None:
    async with await aio_pika.connect(broker) as connection:
        channel = await connection.channel()
        await channel.declare_queue(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
        await _publish(channel, run.deliveries())
        crew = ConsumerProcesses(run, broker)
        try:
            with anyio.move_on_after(DEADLINE):
                await _work_off(run, crew, channel)
        finally:
            crew.end()
            run.duplicates = crew.duplicates()


async def _publish(channel: AbstractChannel, ids: list[str]) -> None:
    async def publish(name: str) -> None:
        message = Message(b"", message_id=name, delivery_mode=DeliveryMode.PERSISTENT)
        await channel.default_exchange.publish(message, QUEUE)

    for first in range(0, len(ids), _IN_FLIGHT):
        async with anyio.create_task_group() as group:
            for name in ids[first : first + _IN_FLIGHT]:
                group.start_soon(publish, name)


async def _work_off(run: MessageRun, crew: ConsumerProcesses, channel: AbstractChannel) -> None:
    moments = deque(run.moments())
    while True:
        crew.fill()
        paid = run.payments.count()
        if moments and paid > moments[0]:
            moments.popleft()
            crew.kill_one()
        elif paid >= len(run.messages) and await _ready(channel) == 0:
            crew.end()  # they finish what they have in hand; what they were sent too late is back then
            if await _ready(channel) == 0:
                return
        await anyio.sleep(_LOOK)


async def _ready(channel: AbstractChannel) -> int:
    queue = await channel.declare_queue(QUEUE, passive=True)
    return queue.declaration_result.message_count or 0


@dataclass(slots=True)
class ConsumerProcesses:
    """The consumers: each a process that writes its counts into a file."""

    run: MessageRun
    broker: str
    working: list[subprocess.Popen[bytes]] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)

    def fill(self) -> None:
        """Start consumers, until enough of them work.

        Raises:
            RuntimeError: one has ended that was not killed.
        """
        for process in self.working:
            if process.poll() is not None:
                raise RuntimeError(f"a consumer ended with {process.returncode}: {self._last_words()}")
        while len(self.working) < CONSUMERS:
            self.working.append(self._start())

    def kill_one(self) -> None:
        """Kill one where it stands."""
        process = self.working.pop(random.randrange(len(self.working)))
        process.kill()
        process.wait()
        self.run.kills += 1

    def end(self) -> None:
        """Let all finish what they have in hand, and end; kill the one that takes too long."""
        for process in self.working:
            process.terminate()
        for process in self.working:
            try:
                process.wait(_ENDING)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.working.clear()

    def duplicates(self) -> int:
        """Return how many duplicates the consumers told of."""
        return sum(_last_count(log) for log in self.logs)

    def _start(self) -> subprocess.Popen[bytes]:
        run, log = self.run, self.run.payments.path.with_name(f"consumer-{len(self.logs)}")
        self.logs.append(log)
        arguments = (self.broker, QUEUE, str(run.payments.path), run.gate, run.namespace)
        with log.open("wb") as out, log.with_suffix(".errors").open("wb") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", consumer.__name__],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                env=os.environ | {consumer.VARIABLE: "\n".join(arguments)},
            )

    def _last_words(self) -> str:
        errors = [log.with_suffix(".errors").read_text(errors="replace").strip() for log in self.logs]
        return next((text.splitlines()[-1] for text in reversed(errors) if text), "it said nothing")


def _last_count(log: Path) -> int:
    """Return the duplicates in the last whole line; a consumer may be killed as it writes."""
    lines = log.read_bytes().split(b"\n")[:-1]
    return int(orjson.loads(lines[-1])["duplicate"]) if lines else 0
