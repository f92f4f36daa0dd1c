"""Runs messages through a broker, kills its consumers, and counts: `python -m examples.messages`.

The broker is a RabbitMQ node of its own if there is one: RABBITMQ names its script rabbitmq-server, by default it is
the one on the PATH. Otherwise it is FastStream's broker in memory. REDIS_URL names a Redis for the gate, a number at
the end says how many messages there are. It needs `pip install 'fastdedup[rabbitmq,aiosqlite,faststream]'`.

Main path: `run_messages` → `deliver` of `on_rabbitmq.py` or of `in_memory.py` → `report_of`. The gate answers
duplicates, and if it cannot, the inbox's row in the transaction of the work does.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

from ..program import finish, size, store
from . import in_memory, on_rabbitmq
from .database import Payments
from .rabbit_node import RabbitNode, find_rabbitmq
from .run import DEADLINE, MessageRun


@dataclass(frozen=True, slots=True)
class MessageReport:
    """The figures of one run."""

    broker: str  # which it was
    messages: int
    published: int
    kills: int
    payments: int  # rows in the database
    duplicates: int  # as far as a consumer could tell before it was killed
    seconds: float
    violations: tuple[str, ...]  # the promises that were broken; empty after a good run


def run_messages(gate: str, messages: int, rabbitmq: str | None = None) -> MessageReport:
    """Deliver each message twice or more, kill consumers meanwhile, and count.

    Args:
        gate: the URL of the gate's store. Behind memory:// each consumer has a gate of its own.
        messages: how many.
        rabbitmq: the path of RabbitMQ's script rabbitmq-server; by default the one on the PATH.

    Raises:
        UnavailableError: RabbitMQ is there, and does not start.
    """
    program = find_rabbitmq(rabbitmq)
    if program is None:
        return play(gate, messages, "FastStream's, in memory, as no RabbitMQ was found", in_memory.deliver)
    with RabbitNode(program) as node:
        way = partial(on_rabbitmq.deliver, broker=node.url)
        # In the node's folder, which is removed however this process ends.
        return play(gate, messages, f"RabbitMQ {node.version}", way, node.folder)


def play(
    gate: str, messages: int, broker: str, way: Callable[[MessageRun], None], within: Path | None = None
) -> MessageReport:
    """Let a way deliver all messages; return what came of it."""
    with (
        tempfile.TemporaryDirectory(prefix="fastdedup-messages-", dir=within) as folder,
        closing(Payments(Path(folder) / "messages.sqlite3")) as payments,
    ):
        run = MessageRun(gate, messages, payments)
        began = perf_counter()
        way(run)
        return report_of(run, broker, perf_counter() - began)


def report_of(run: MessageRun, broker: str, seconds: float) -> MessageReport:
    """Count, and name what was broken."""
    paid = run.payments.by_message()
    lost = sum(message not in paid for message in run.messages)
    twice = sum(count > 1 for count in paid.values())
    violations = []
    if lost:
        violations.append(f"{lost} messages were lost, or not done within {DEADLINE:.0f} s")
    if twice:
        violations.append(f"{twice} messages were paid more than once")
    return MessageReport(
        broker=broker,
        messages=len(run.messages),
        published=2 * len(run.messages),
        kills=run.kills,
        payments=paid.total(),
        duplicates=run.duplicates,
        seconds=seconds,
        violations=tuple(violations),
    )


if __name__ == "__main__":
    finish(
        "Messages by gate and inbox", run_messages(store(), size(2_000), os.environ.get("RABBITMQ") or None)
    )
