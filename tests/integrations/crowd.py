"""A crowd in front of the shop: buyers who each click three times at once, over kept-alive connections."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

CLICKS = 3
LANES = 22
"""Buyers at the same time, each with a connection for each click: 66 connections."""
BODY = b'{"quantity": 1}'


@dataclass(frozen=True, slots=True)
class Answer:
    """What one click was answered."""

    status: int
    body: bytes
    replayed: bool


@dataclass
class Report:
    """What the crowd saw."""

    buyers: int
    statuses: Counter[int] = field(default_factory=Counter)
    served: int = 0  # buyers who have an order
    unlike: int = 0  # buyers whose clicks were not all answered alike
    not_replayed: int = 0  # buyers whose clicks were not one answer and its replays
    orders: set[bytes] = field(default_factory=set)

    def violations(self, stock: int) -> Iterator[str]:
        """Name what should not have happened."""
        sold = min(stock, self.buyers)
        if self.served != sold or len(self.orders) != sold:
            yield f"{self.served} buyers have {len(self.orders)} orders; there were {sold} to have"
        if odd := {status: count for status, count in self.statuses.items() if status not in (201, 410)}:
            yield f"answers other than an order or sold out: {odd}"
        if self.unlike or self.not_replayed:
            yield f"{self.unlike} buyers were told different things, {self.not_replayed} had no replays"


class Connection:
    """One connection of HTTP/1.1, with one request at a time on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader = reader
        self._writer = writer
        self._host = host

    @classmethod
    async def open(cls, url: str) -> Self:
        where = urlsplit(url)
        assert where.hostname
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        return cls(reader, writer, where.netloc)

    async def order(self, buyer: str, key: str) -> Answer:
        """Send an order; return the answer."""
        head = (
            f"POST /api/orders HTTP/1.1\r\nHost: {self._host}\r\nX-Buyer: {buyer}\r\n"
            f'Idempotency-Key: "{key}"\r\nContent-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n'
        )
        self._writer.write(head.encode() + BODY)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        headers = dict(line.split(b": ", 1) for line in lines[1:] if line)
        body = await self._reader.readexactly(int(headers[b"content-length"]))
        return Answer(int(lines[0].split()[1]), body, headers.get(b"idempotency-replayed") == b"true")

    async def close(self) -> None:
        """Hang up."""
        self._writer.close()
        await self._writer.wait_closed()


async def send_crowd(url: str, buyers: int) -> Report:
    """Send `buyers`, each of whom clicks three times at once, on as many connections."""
    report = Report(buyers)
    numbers = iter(range(buyers))
    async with asyncio.TaskGroup() as lanes:
        for _ in range(min(LANES, buyers)):
            lanes.create_task(_lane(url, numbers, report))
    return report


async def _lane(url: str, numbers: Iterator[int], report: Report) -> None:
    connections = [await Connection.open(url) for _ in range(CLICKS)]
    for number in numbers:
        key = str(uuid.uuid4())
        clicks = (connection.order(f"buyer-{number}", key) for connection in connections)
        _enter(report, await asyncio.gather(*clicks))
    for connection in connections:
        await connection.close()


def _enter(report: Report, answers: list[Answer]) -> None:
    report.statuses.update(answer.status for answer in answers)
    first = answers[0]
    report.unlike += any((answer.status, answer.body) != (first.status, first.body) for answer in answers)
    report.not_replayed += sum(answer.replayed for answer in answers) != CLICKS - 1
    if first.status == 201:
        report.served += 1
        report.orders.add(first.body)
