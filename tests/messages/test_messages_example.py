"""The messages of examples/: consumers are killed, and nothing is lost."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from examples.messages import __main__ as program_of_messages
from examples.messages import in_memory, on_rabbitmq, rabbit_node
from examples.messages import run as runs
from examples.messages.__main__ import MessageReport, play, run_messages
from examples.messages.rabbit_node import RabbitNode
from examples.messages.run import MessageRun

from ..brokers import DEADLINE, RabbitServer
from ..database_server import found


def played(url: str, messages: int, way: Callable[[MessageRun], None]) -> MessageReport:
    return play(url, messages, "a broker", way)


def test_each_message_is_paid_once_though_consumers_are_killed(
    rabbitmq: RabbitServer, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "KILLS", 2)
    monkeypatch.setattr(on_rabbitmq, "QUEUE", rabbitmq.name())
    report = played(redis_url, 120, lambda run: on_rabbitmq.deliver(run, rabbitmq.url))
    assert report.violations == ()
    assert (report.payments, report.published, report.kills) == (120, 240, 2)
    assert 0 < report.duplicates <= 240


def test_each_message_is_paid_once_though_tasks_are_cancelled() -> None:
    """On the broker in memory a consumer's death is a cancellation."""
    report = played("memory://", 100, in_memory.deliver)
    assert report.violations == ()
    assert (report.payments, report.published) == (100, 200)
    assert report.kills > 0
    assert report.duplicates >= 100


def test_without_rabbitmq_the_broker_in_memory_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_of_messages, "find_rabbitmq", lambda named: None)
    report = run_messages("memory://", 30)
    assert (report.payments, report.violations) == (30, ())
    assert report.broker == "FastStream's, in memory, as no RabbitMQ was found"


def test_a_lost_and_a_doubled_message_are_named() -> None:
    def lose(run: MessageRun) -> None:
        paid = Counter(dict.fromkeys(run.messages[2:], 1)) + Counter(run.messages[1:2] * 2)
        with sqlite3.connect(run.payments.path) as database:
            database.executemany("INSERT INTO payments VALUES (?)", [(name,) for name in paid.elements()])
        database.close()

    report = played("memory://", 5, lose)
    lost, twice = report.violations
    assert lost.startswith("1 messages were lost")
    assert twice == "1 messages were paid more than once"


def test_it_starts_a_rabbitmq_of_its_own_and_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes: list[RabbitNode] = []

    class Watched(RabbitNode):
        def __init__(self, program: Path) -> None:
            super().__init__(program)
            nodes.append(self)

    monkeypatch.setattr(program_of_messages, "RabbitNode", Watched)
    monkeypatch.setattr(rabbit_node, "STARTING", DEADLINE)  # on a busy machine
    report = run_messages("memory://", 30, str(found("RABBITMQ", "rabbitmq.sh")))
    assert (report.payments, report.violations) == (30, ())
    assert report.broker == f"RabbitMQ {nodes[0].version}"
    assert not nodes[0].folder.exists()
    assert not list(group(nodes[0]))


def group(node: RabbitNode) -> Any:
    """Yield the processes that know the node's folder."""
    for process in psutil.process_iter(["environ"]):
        if str(node.folder) in (process.info["environ"] or {}).values():
            yield process
