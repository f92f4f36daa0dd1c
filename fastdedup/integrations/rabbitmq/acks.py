"""Acknowledging messages: all acks of one turn of the event loop go to the broker in one write.

aiormq's own ack is a write to the socket, a future and two turns of the loop for each message: a third of the cost of
a bare consumer.
"""

from __future__ import annotations

import logging
import struct
from typing import Any, Final

import anyio
from aio_pika import IncomingMessage
from aiormq.abc import AbstractChannel, ChannelFrame

from .replies import LOST, reply

_ACK: Final = struct.Struct(">BHIHHQBB")
"""A frame of AMQP 0-9-1: kind, channel, size, class, method, delivery tag, flags, end."""
_METHOD, _SIZE, _BASIC, _BASIC_ACK, _END = 1, 13, 60, 80, 0xCE
_PROCESSED: Final = "_IncomingMessage__processed"
"""The attribute with which aio-pika refuses to settle a message twice."""
log = logging.getLogger("fastdedup.messages")


class Acks:
    """The finished messages of one consumer whose acks are not sent yet."""

    def __init__(self, consumer: str) -> None:
        self._consumer = consumer
        # Mutable: the acks to write, by the channel that the messages came by, and an event: there are some.
        self._waiting: dict[AbstractChannel, list[bytes]] = {}
        self._something = anyio.Event()

    def add(self, message: IncomingMessage) -> None:
        """Acknowledge a message soon.

        Raises:
            ChannelInvalidStateError: its channel is closed: the broker delivers it again.
        """
        channel: Any = message.channel
        frame = _ACK.pack(
            _METHOD, channel.number, _SIZE, _BASIC, _BASIC_ACK, message.delivery_tag or 0, 0, _END
        )
        setattr(message, _PROCESSED, True)
        waiting = self._waiting.get(channel)
        if waiting is not None:
            waiting.append(frame)
            return
        self._waiting[channel] = [frame]
        self._something.set()

    async def run(self) -> None:
        """Write the added acks, until cancelled."""
        while True:
            await self._something.wait()
            self._something = anyio.Event()
            await self.flush()

    async def flush(self) -> None:
        """Write the acks that were added so far; return once they have left this process."""
        waiting, self._waiting = self._waiting, {}
        for channel, frames in waiting.items():
            try:
                await reply(_write(channel, b"".join(frames)))
            except LOST as error:
                log.info("consumer %r: the channel of a message was lost: %s", self._consumer, error)


async def _write(channel: Any, payload: bytes) -> None:
    if channel.is_closed:
        return
    written = channel.create_future()
    await channel.write_queue.put(ChannelFrame(payload=payload, should_close=False, drain_future=written))
    await written
