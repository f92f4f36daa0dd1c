"""Messages from a broker: each published twice, its consumers killed at random, the work counted at the end.

Main path: `run_messages` → `deliver` of `messages_on_rabbitmq`, or of `messages_in_memory` → `report_of`. The gate
answers duplicates, and where it cannot, the inbox's row in the transaction of the work does.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Final, Protocol

from ..errors import DedupError, UnavailableError
from .effects import Effects
from .message_run import DEADLINE, Given, MessageRun
from .rabbit_node import RabbitNode, find_rabbitmq

_RABBITMQ: Final = ("aio_pika", "aiosqlite", "anyio")
_IN_MEMORY: Final = (*_RABBITMQ, "faststream")


class LeftOutError(DedupError):
    """There is no broker to get messages from."""


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
    note: str  # why it was no RabbitMQ; empty where it was
    violations: tuple[str, ...]  # the promises that were broken; empty after a good run


class Way(Protocol):
    """Delivers all messages of a run, and kills consumers meanwhile. Ends within the deadline, done or not."""

    def __call__(self, run: MessageRun) -> None:
        """Do it."""


def run_messages(
    url: str = "memory://",
    namespace: str = "demo",
    *,
    messages: int = 2_000,
    rabbitmq: str | None = None,
    on_paid: Callable[[int], object] = lambda paid: None,
) -> MessageReport:
    """Deliver each message twice or more, kill consumers meanwhile, and count.

    Args:
        url: the gate's store. Behind memory:// each consumer has a gate of its own.
        namespace: how its namespace begins.
        messages: how many.
        rabbitmq: the path of RabbitMQ's script rabbitmq-server; by default the one on the PATH.
        on_paid: called with how many payments were made so far.

    Raises:
        LeftOutError: neither RabbitMQ nor FastStream's broker in memory can be had.
    """
    given = Given(url, f"{namespace}-{os.urandom(4).hex()}", messages, on_paid)
    with ExitStack() as stack:
        try:
            node = stack.enter_context(_node(rabbitmq))
        except UnavailableError as error:
            return _in_memory(given, str(error))
        from .messages_on_rabbitmq import deliver

        # In the node's folder, which is removed however this process ends.
        return _played(given, f"RabbitMQ {node.version}", "", lambda run: deliver(run, node.url), node.folder)


def _node(rabbitmq: str | None) -> RabbitNode:
    """Return the node to start.

    Raises:
        UnavailableError: there is no RabbitMQ, or no client for it.
    """
    program = find_rabbitmq(rabbitmq)
    if program is None:
        raise UnavailableError(
            "no RabbitMQ was found: `make rabbitmq` gets it, or name its script with RABBITMQ="
        )
    if missing := _missing(_RABBITMQ):
        raise UnavailableError(f"RabbitMQ needs {missing}: pip install 'fastdedup[rabbitmq,aiosqlite]'")
    return RabbitNode(program)


def _in_memory(given: Given, why: str) -> MessageReport:
    if missing := _missing(_IN_MEMORY):
        raise LeftOutError(
            f"{why}. FastStream's broker in memory would do, but there is no {missing}: "
            "pip install 'fastdedup[rabbitmq,aiosqlite,faststream]'"
        )
    from .messages_in_memory import deliver

    return _played(given, "FastStream's broker in memory", why, deliver)


def _missing(packages: tuple[str, ...]) -> str:
    return ", ".join(name for name in packages if not _installed(name))


def _installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:  # sys.modules has None for this name
        return False


def _played(given: Given, broker: str, note: str, way: Way, within: Path | None = None) -> MessageReport:
    with tempfile.TemporaryDirectory(prefix="fastdedup-demo-", dir=within) as folder:
        path = Path(folder) / "messages.sqlite3"
        with closing(Effects(path)) as effects:
            run = MessageRun(given, path, effects)
            began = perf_counter()
            way(run)
            seconds = perf_counter() - began
            run.paid()
            return report_of(run, effects.by_message(), broker, note, seconds)


def report_of(run: MessageRun, paid: Counter[str], broker: str, note: str, seconds: float) -> MessageReport:
    """Count, and name what was broken."""
    lost = sum(message not in paid for message in run.messages)
    twice = sum(count > 1 for count in paid.values())
    violations = []
    if lost:
        violations.append(f"{lost} messages of {broker} were lost, or not done within {DEADLINE:.0f} s")
    if twice:
        violations.append(f"{twice} messages of {broker} were paid more than once")
    return MessageReport(
        broker=broker,
        messages=len(run.messages),
        published=2 * len(run.messages),
        kills=run.kills,
        payments=paid.total(),
        duplicates=run.duplicates,
        seconds=seconds,
        note=note,
        violations=tuple(violations),
    )
