"""A sidecar that had no free file left reset connections without a word, and logged nothing."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from fastdedup.sidecar.limits import Limits
from fastdedup.sidecar.service.admission import Admission
from fastdedup.sidecar.service.open_files import RESERVE

from ..servers import RedisServer
from ..sidecar.attacks import connect
from ..sidecar.fuzz import pack
from ..sidecar.running import DEADLINE, Sidecar

WaitUntil = Callable[..., Any]
PING = pack(b"PING")
ROOM, OPERATORS = 40, 8
REFUSED = (
    b"-ERR max number of clients reached: 48 connections are open, the limit (open files: ulimit -n)\r\n"
)


@contextmanager
def serving(url: str, soft: int, hard: int) -> Iterator[Sidecar]:
    """A sidecar that may open so many files."""
    sidecar = Sidecar("--url", url)
    sidecar.start(preexec_fn=partial(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard)))
    with closing(ExitStack()) as stack:
        stack.callback(sidecar.__exit__)
        yield sidecar.until_up()


@pytest.fixture(scope="module")
def sidecar(redis_server: RedisServer) -> Iterator[Sidecar]:
    with serving(redis_server.url, ROOM + RESERVE, ROOM + RESERVE) as sidecar:
        yield sidecar


@pytest.fixture
def crowd(sidecar: Sidecar) -> Iterator[list[Any]]:
    """As many connections as the sidecar answers; then one that it does not."""
    with ExitStack() as stack:
        raws = [stack.enter_context(connect(sidecar.path))]
        while is_served(raws[-1]):
            raws.append(stack.enter_context(connect(sidecar.path)))
        yield raws


def is_served(raw: Any) -> bool:
    try:
        return ask(raw) == b"+PONG\r\n"
    except OSError:
        return False


def ask(raw: Any, command: bytes = PING) -> bytes:
    raw.sendall(command)
    return bytes(raw.recv(1000))


def spent(sidecar: Sidecar) -> float:
    """Return the seconds of CPU time that the sidecar has used."""
    assert sidecar.process is not None
    times = psutil.Process(sidecar.process.pid).cpu_times()
    return float(times.user + times.system)


@pytest.mark.usefixtures("crowd")
def test_who_is_refused_is_told_and_the_log_says_it_once(sidecar: Sidecar) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(connect(sidecar.path)) for _ in range(200)]
        for _ in range(20):
            assert ask(stack.enter_context(connect(sidecar.path))) == REFUSED
        began, before = time.monotonic(), spent(sidecar)
        assert {raw.recv(1000) for raw in silent} == {REFUSED}
        assert spent(sidecar) - before < 0.5 * (time.monotonic() - began), "it waits in a busy loop"
    assert sidecar.log.count("refused a connection") == 1
    assert f"needed={1024 + RESERVE} connections={ROOM} configured=1024" in sidecar.log


async def test_it_serves_again_once_a_connection_ends(
    sidecar: Sidecar, crowd: list[Any], wait_until: WaitUntil
) -> None:
    assert len(crowd) == ROOM + OPERATORS + 1
    crowd[0].close()

    def is_let_in() -> bool:
        with connect(sidecar.path) as raw:
            return is_served(raw)

    await wait_until(is_let_in, description="the sidecar has seen the end of that connection")


def test_the_soft_limit_is_raised_to_what_is_needed(redis_server: RedisServer) -> None:
    with serving(redis_server.url, 64, 2000) as sidecar:
        assert sidecar.process is not None
        limits = Path(f"/proc/{sidecar.process.pid}/limits").read_text()
        assert limits.partition("Max open files")[2].split()[:2] == [str(1024 + RESERVE), "2000"]
        assert "fewer connections" not in sidecar.log


def test_a_limit_that_allows_next_to_nothing_is_refused(redis_server: RedisServer) -> None:
    sidecar = Sidecar("--url", redis_server.url)
    sidecar.start(preexec_fn=partial(resource.setrlimit, resource.RLIMIT_NOFILE, (64, 64)))
    assert sidecar.process is not None
    try:
        assert sidecar.process.wait(DEADLINE) == 1
    finally:
        sidecar.process.kill()
    assert "the system lets this process open 64 files (ulimit -n, systemd: LimitNOFILE=)" in sidecar.log


def test_the_log_tells_of_refusals_once_a_minute() -> None:
    now = [100.0]
    admission = Admission(Limits(), lambda: now[0])
    assert [admission.untold() for _ in range(3)] == [1, 0, 0]
    now[0] += 60.0
    assert [admission.untold() for _ in range(2)] == [3, 0]
