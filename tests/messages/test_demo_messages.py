"""The demo's last act: its consumers are killed, nothing is lost, and without a broker it says so."""

from __future__ import annotations

import json
import signal
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
from click.testing import CliRunner, Result

import fastdedup.demo.messages as act
from fastdedup import UnavailableError
from fastdedup.cli.main import cli
from fastdedup.demo import message_run, messages_in_memory, messages_on_rabbitmq, rabbit_node
from fastdedup.demo.message_run import MessageRun
from fastdedup.demo.rabbit_node import RabbitNode, find_rabbitmq

from ..brokers import DEADLINE, RabbitServer
from ..database_server import found
from ..integrations.shops import until

DEMO = ("demo", "--buyers", "10", "--no-sidecar", "--payments", "0", "--messages", "30")


@pytest.fixture(params=["memory", "redis"])
def url(request: pytest.FixtureRequest) -> str:
    return "memory://" if request.param == "memory" else request.getfixturevalue("redis_url")


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


def played(url: str, messages: int, way: Callable[[MessageRun], None]) -> act.MessageReport:
    paid: list[int] = []
    report = act._played(message_run.Given(url, "demo", messages, paid.append), "a broker", "", way)
    assert paid[-1] == report.payments
    return report


def test_each_message_is_paid_once_though_consumers_are_killed(
    rabbitmq: RabbitServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_run, "KILLS", 2)
    monkeypatch.setattr(messages_on_rabbitmq, "QUEUE", rabbitmq.name())
    report = played(url, 120, lambda run: messages_on_rabbitmq.deliver(run, rabbitmq.url))
    assert report.violations == ()
    assert (report.payments, report.published, report.kills) == (120, 240, 2)
    assert 0 < report.duplicates <= 240


def test_each_message_is_paid_once_though_tasks_are_cancelled(url: str) -> None:
    """On the broker in memory a consumer's death is a cancellation."""
    report = played(url, 100, messages_in_memory.deliver)
    assert report.violations == ()
    assert (report.payments, report.published) == (100, 200)
    assert report.kills > 0
    assert report.duplicates >= 100


def test_without_rabbitmq_the_broker_in_memory_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(act, "find_rabbitmq", lambda named: None)
    shown = run(*DEMO)
    assert shown.exit_code == 0, shown.output
    for words in (
        "Messages from FastStream's broker in memory",
        "30 of 30",
        "Not RabbitMQ: no RabbitMQ was found",
    ):
        assert words in shown.stdout


def test_a_consumer_that_cannot_start_ends_the_act_with_its_words(
    rabbitmq: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages_on_rabbitmq, "QUEUE", rabbitmq.name())
    with pytest.raises(RuntimeError, match=r"ended with 1: .*gopher"):
        played("gopher://nowhere", 1, lambda run: messages_on_rabbitmq.deliver(run, rabbitmq.url))


def test_a_lost_and_a_doubled_message_are_named() -> None:
    def lose(run: MessageRun) -> None:
        paid = Counter(dict.fromkeys(run.messages[2:], 1)) + Counter(run.messages[1:2] * 2)
        run._effects._database.executemany(
            "INSERT INTO payments VALUES (?)", [(name,) for name in paid.elements()]
        )

    report = played("memory://", 5, lose)
    assert [violation.split(" of a broker ")[0] for violation in report.violations] == [
        "1 messages",
        "1 messages",
    ]
    assert "were lost" in report.violations[0]
    assert "more than once" in report.violations[1]


def test_the_demo_starts_a_rabbitmq_of_its_own_and_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes: list[RabbitNode] = []

    class Watched(RabbitNode):
        def __init__(self, program: Path) -> None:
            super().__init__(program)
            nodes.append(self)

    monkeypatch.setattr(act, "RabbitNode", Watched)
    monkeypatch.setattr(rabbit_node, "STARTING", DEADLINE)  # on a busy machine
    shown = run(*DEMO, RABBITMQ=str(found("RABBITMQ", "rabbitmq.sh")))
    assert shown.exit_code == 0, shown.output
    for words in (f"Messages from RabbitMQ {nodes[0].version}", "30 of 30", "kept"):
        assert words in shown.stdout
    assert "30/30 messages" in shown.stderr  # the progress bar's last line
    assert not nodes[0].folder.exists()
    assert not list(group(nodes[0]))


def run(*args: str, **environment: str) -> Result:
    return CliRunner(env={"COLUMNS": "100", **environment}).invoke(cli, args)


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
        import fastdedup.demo.rabbit_node as rabbit_node, pathlib, sys
        rabbit_node.greets = lambda port: True
        with rabbit_node.RabbitNode(pathlib.Path({str(program("exec sleep 600"))!r})) as node:
            print(node.folder, node._node.pid, flush=True)
            sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        folder, pid = demo.stdout.readline().split()
        node = psutil.Process(int(pid))
        demo.send_signal(signal.SIGKILL)
        node.wait(10)
    ends = monotonic() + 10.0
    while Path(folder).exists():
        assert monotonic() < ends


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_the_act_is_left_out_where_no_broker_can_be_had(
    monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.setattr(act, "find_rabbitmq", lambda named: None)
    monkeypatch.setitem(sys.modules, "faststream", None)
    shown = run(*DEMO, *options)
    assert shown.exit_code == 0, shown.output
    why = json.loads(shown.stdout)["messages"]["left_out"] if options else " ".join(shown.stdout.split())
    assert "no RabbitMQ was found: `make rabbitmq` gets it" in why
    assert "there is no faststream: pip install" in why


def test_without_its_client_rabbitmq_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aio_pika", None)
    shown = run(*DEMO, RABBITMQ=str(found("RABBITMQ", "rabbitmq.sh")))
    assert (shown.exit_code, "RabbitMQ needs aio_pika: pip install" in " ".join(shown.stdout.split())) == (
        0,
        True,
    )


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
