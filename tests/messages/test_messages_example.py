"""The messages of examples/: consumers are killed, and nothing is lost."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import psutil
import pytest

from examples.messages import __main__ as program_of_messages
from examples.messages import in_memory, on_rabbitmq, rabbit_node
from examples.messages import run as runs
from examples.messages.__main__ import MessageReport, play, run_messages
from examples.messages.rabbit_node import RabbitNode, find_rabbitmq
from examples.messages.run import MessageRun
from fastdedup import UnavailableError

from ..brokers import DEADLINE, RabbitServer
from ..database_server import found
from ..integrations.shops import until
from ..programs import started


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Path]:
    """Makes a program that stands where RabbitMQ's own would."""

    def make(script: str) -> Path:
        (tmp_path / "plugins" / "rabbit-9.9").mkdir(parents=True)
        (tmp_path / "sbin").mkdir()
        path = tmp_path / "sbin" / "rabbitmq-server"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        (path.with_name("epmd")).write_text("#!/bin/sh\n")
        path.with_name("epmd").chmod(0o755)
        return path

    return make


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


def test_a_consumer_that_cannot_start_ends_the_act_with_its_words(
    rabbitmq: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_rabbitmq, "QUEUE", rabbitmq.name())
    with pytest.raises(RuntimeError, match=r"ended with 1: .*gopher"):
        played("gopher://nowhere", 1, lambda run: on_rabbitmq.deliver(run, rabbitmq.url))


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


@pytest.mark.parametrize("script", ["echo no such luck; exit 1", "echo no such luck; exec sleep 60"])
def test_a_rabbitmq_that_does_not_start_is_told_of(
    program: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setattr(rabbit_node, "STARTING", 0.3)
    node = RabbitNode(program(script))
    with pytest.raises(UnavailableError, match="RabbitMQ did not start: no such luck"), node:
        pass
    assert not node.folder.exists()
    until(lambda: not list(group(node)), description="its processes have ended")


def test_a_node_ends_with_the_process_that_started_it(program: Callable[[str], Path]) -> None:
    """Also where that is killed, and cannot end it itself."""
    script = f"""
        import pathlib, sys; from examples.messages import rabbit_node
        rabbit_node.greets = lambda port: True
        with rabbit_node.RabbitNode(pathlib.Path({str(program("exec sleep 600"))!r})) as node:
            print(node.folder, node._node.pid, flush=True)
            sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with started(command, stdin=subprocess.PIPE) as demo:
        assert demo.stdout is not None
        folder, pid = demo.stdout.readline().split()
        node = psutil.Process(int(pid))
        demo.send_signal(signal.SIGKILL)
        node.wait(10)
    ends = monotonic() + 10.0
    while Path(folder).exists():
        assert monotonic() < ends


def test_behind_debians_wrapper_stands_rabbitmqs_own_script(
    program: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = program("exit 1")
    wrapper = script.with_name("rabbitmq-script-wrapper")
    wrapper.write_text("#!/bin/sh\n")
    wrapper.chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "rabbitmq-server").symlink_to(wrapper)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert find_rabbitmq() == find_rabbitmq(str(script)) == script
    assert find_rabbitmq(str(tmp_path / "gone")) == script
