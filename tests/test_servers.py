"""The database servers and the brokers of the tests: each is reached by this machine alone, and ends with the tests.

That they answer, keep what they say they keep, die and stand still is what the tests that use them rest on.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest

from .brokers import Broker
from .database_server import ROOT, DatabaseServer, runs
from .programs import started
from .waiting import wait_until

KILLED_TESTS = """
import time
from tests.{module} import {kind}
server = {kind}()
server.{start}()
print(server.pid, server.folder, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("name", ["rabbitmq", "nats", "kafka"])
def test_a_broker_listens_on_loopback_alone(name: str, request: pytest.FixtureRequest) -> None:
    broker: Broker = request.getfixturevalue(name)
    first = psutil.Process(broker.pid)
    connections = [c for process in (first, *first.children()) for c in process.net_connections("inet")]
    listening = {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}
    assert listening <= {"127.0.0.1", "::1"}


@pytest.mark.parametrize("name", ["postgres", "mariadb"])
def test_a_database_server_listens_on_no_port_and_is_not_root(
    name: str, request: pytest.FixtureRequest
) -> None:
    server: DatabaseServer = request.getfixturevalue(name)
    assert psutil.Process(server.pid).net_connections("inet") == []
    assert psutil.Process(server.pid).uids().effective != 0


@pytest.mark.parametrize(
    ("module", "kind", "start"),
    [
        ("brokers", "RabbitServer", "_launch"),
        ("brokers", "NatsServer", "_launch"),
        ("brokers", "KafkaServer", "_launch"),
        ("databases", "PostgresServer", "start"),
        ("databases", "MariaServer", "start"),
    ],
)
async def test_a_server_ends_with_killed_tests(module: str, kind: str, start: str) -> None:
    first, folder = left_by_killed_tests(module=module, kind=kind, start=start)
    await wait_until(lambda: not members_of(first), description="the server ended")
    await wait_until(lambda: not folder.exists(), description="its folder was removed")


def left_by_killed_tests(**server: str) -> tuple[int, Path]:
    """Kill a process that launched a server; give the server's process and folder."""
    command = [sys.executable, "-c", KILLED_TESTS.format(**server)]
    with started(command, cwd=ROOT) as tests:
        assert tests.stdout is not None
        pid, folder = tests.stdout.readline().split()
        assert members_of(int(pid))
    return int(pid), Path(folder)


def members_of(group: int) -> list[psutil.Process]:
    """Give the processes of a group that run."""
    return [process for process in psutil.process_iter() if runs(process) and group_of(process) == group]


def group_of(process: psutil.Process) -> int | None:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None
