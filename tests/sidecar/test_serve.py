"""`fastdedup serve` as a process: what it says, what it answers, and how it ends."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fastdedup import Dedup, State
from fastdedup.sidecar.paths import default_socket

from ..programs import ended
from ..servers import RedisServer
from ..waiting import wait_until
from .attacks import connect, post
from .fuzz import pack
from .running import DEADLINE, Sidecar, client, environment, figure, paste

NAMESPACE = "drained"


# Starting


def test_without_arguments_it_serves_memory_where_it_says_and_its_lines_can_be_pasted(tmp_path: Path) -> None:
    sidecar = Sidecar(own_socket=False, XDG_RUNTIME_DIR=str(tmp_path))
    sidecar.path = tmp_path / "fastdedup" / "fastdedup.sock"
    with sidecar:
        said = sidecar.out
        assert "memory://" in said
        assert str(sidecar.path) in said
        curl, redis_cli = (line for line in said.splitlines() if line.startswith(("  curl", "  redis-cli")))
        assert json.loads(paste(curl))["outcome"] == "acquired"
        assert paste(redis_cli).startswith("acquired\n")
        assert len(said.splitlines()) <= 8
        assert sidecar.end() == 0
    assert not sidecar.path.exists()


def test_the_default_socket_is_systemds_then_the_users_then_a_private_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/fastdedup:/run/other")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert default_socket() == Path("/run/fastdedup/fastdedup.sock")
    monkeypatch.delenv("RUNTIME_DIRECTORY")
    assert default_socket() == Path("/run/user/7/fastdedup/fastdedup.sock")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert default_socket().parent.parent == tmp_path


def test_flags_and_file_reach_the_gate() -> None:
    config = 'allow_namespaces = "any"\n[namespaces.sms]\nlease = 5\nttl = 7\n[limits]\nnamespaces = 1\n'
    with Sidecar("--namespace", "shop", "--lease", "9", config=config) as sidecar, sidecar.client() as ask:
        assert ask.execute_command("FD.CLAIM", "k")[4] == 9000
        assert ask.execute_command("FD.CLAIM", "k", "NS", "sms")[4] == 5000
        assert ask.execute_command("FD.CLAIM", "k", "NS", "third")[4] == 9000
        assert ask.execute_command("FD.CLAIM", "k", "NS", "shop")[0] == b"in_progress"


def test_json_logs_are_all_that_it_prints() -> None:
    with Sidecar("--log-format", "json") as sidecar:
        sidecar.end()
        assert sidecar.out == ""
        lines = [json.loads(line) for line in sidecar.log.splitlines()]
    assert [line["event"] for line in lines] == ["started", "stopping", "stopped"]
    assert lines[0]["socket"] == str(sidecar.path)
    assert lines[1]["signal"] == "SIGTERM"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--url", "gopher://nowhere"], "--url: url: no store"),
        (["--lease", "-1"], "--lease: lease: must be a number of seconds"),
        (["--config", "/nonexistent.toml"], "/nonexistent.toml: No such file"),
        (["--socket", "/proc/fastdedup.sock"], "/proc"),
        (["--socket", "/tmp/" + "x" * 200], "107 bytes"),
    ],
)
def test_what_cannot_be_served_is_said_in_a_line(options: list[str], told: str) -> None:
    done = ended("-m", "fastdedup", "serve", *options, environment=environment())
    assert done.returncode == 1
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_full_disk_or_a_closed_pipe_ends_no_sidecar() -> None:
    """It could not print its first lines, and ended."""
    sidecar = Sidecar()
    (sidecar.folder / "out").symlink_to("/dev/full")
    with sidecar:
        assert sidecar.end() == 0
        assert " stopped " in sidecar.log


# systemd

_ACTIVATE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
os.execv(sys.executable, [sys.executable, "-m", "fastdedup", "serve"])
"""


def test_it_takes_systemds_socket_and_says_when_it_is_ready_and_when_it_stops(tmp_path: Path) -> None:
    path = tmp_path / "given.sock"
    with socket.socket(socket.AF_UNIX) as given, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as news:
        given.bind(str(path))
        given.listen()
        news.bind(str(tmp_path / "notify"))
        news.settimeout(DEADLINE)
        process = subprocess.Popen(
            [sys.executable, "-c", _ACTIVATE, str(given.fileno())],
            env=environment(NOTIFY_SOCKET=str(tmp_path / "notify")),
            pass_fds=[given.fileno()],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            assert news.recv(100) == b"READY=1"
            with client(path) as ask:
                assert ask.execute_command("FD.CLAIM", "k")[0] == b"acquired"
            process.send_signal(signal.SIGTERM)
            assert news.recv(100) == b"STOPPING=1"
            _, log = process.communicate(timeout=DEADLINE)
            assert process.returncode == 0, log
        finally:
            process.kill()
        assert path.exists()  # it is systemd's
        connect(path).close()  # it waits in systemd's socket, for the next sidecar


# Ending


class Load:
    """Clients that send without a pause until their connection ends. Keys by what became of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.acquired: set[str] = set()
        self.refused: set[str] = set()  # answered: not now
        self.unanswered: set[str] = set()

    async def resp(self, number: int, pipelined: int) -> None:
        reader, writer = await asyncio.open_unix_connection(str(self._path))
        try:
            for turn in range(1_000_000):
                keys = [f"resp:{number}:{turn}:{index}" for index in range(pipelined)]
                self.unanswered.update(keys)
                writer.write(
                    b"".join(b"*2\r\n$8\r\nFD.CLAIM\r\n$%d\r\n%b\r\n" % (len(k), k.encode()) for k in keys)
                )
                for key in keys:
                    self._answered(key, await self._reply(reader))
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _reply(self, reader: asyncio.StreamReader) -> bool:
        """Read a reply; True for a claim that was acquired."""
        head = await reader.readuntil(b"\r\n")
        if head.startswith(b"-"):
            assert head.startswith(b"-UNAVAILABLE"), head
            return False
        assert head == b"*7\r\n", head
        await reader.readuntil(b"\r\n")
        assert await reader.readuntil(b"\r\n") == b"acquired\r\n"
        await reader.readuntil(b"\r\n")
        for _ in range(6):  # the owner, four numbers and null
            await reader.readuntil(b"\r\n")
        return True

    async def http(self, number: int) -> None:
        reader, writer = await asyncio.open_unix_connection(str(self._path))
        try:
            for turn in range(1_000_000):
                key = f"http:{number}:{turn}"
                self.unanswered.add(key)
                writer.write(post("/v1/claims", {"key": key}))
                head = await reader.readuntil(b"\r\n\r\n")
                size = re.search(rb"content-length: (\d+)", head.lower())
                assert size is not None
                await reader.readexactly(int(size[1]))
                status = int(head.split(b" ")[1])
                assert status in (201, 503), head
                self._answered(key, status == 201)
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _answered(self, key: str, acquired: bool) -> None:
        self.unanswered.discard(key)
        (self.acquired if acquired else self.refused).add(key)


async def states(url: str, keys: set[str]) -> dict[str, State | None]:
    async with Dedup(url, namespace=NAMESPACE, timeout=10.0) as gate:
        records = {key: await gate.get(key) for key in keys}
    return {key: None if record is None else record.state for key, record in records.items()}


async def test_under_load_nothing_that_was_accepted_is_dropped_and_nothing_is_half_done(
    redis_url: str,
) -> None:
    with Sidecar("--url", redis_url, "--namespace", NAMESPACE, "--ttl", "60", "--timeout", "5") as sidecar:
        load = Load(sidecar.path)
        clients = [load.resp(number, 1 if number % 2 else 16) for number in range(24)]
        running = asyncio.gather(*clients, *(load.http(number) for number in range(12)))
        await wait_until(lambda: len(load.acquired) > 5_000, description="load", deadline=30)
        code = await asyncio.to_thread(sidecar.end)
        await running  # every connection has ended
        assert (code, "Traceback" in sidecar.log) == (0, False), sidecar.log
        assert "connections_cut=0" in sidecar.log

    assert any(key.startswith("http") for key in load.acquired)
    done, not_done = (
        await states(redis_url, load.acquired),
        await states(redis_url, load.unanswered | load.refused),
    )
    assert set(done.values()) == {State.PROCESSING}
    assert set(not_done.values()) <= {None}, "done, and its client was never told"


async def test_what_waits_for_the_store_when_told_to_stop_is_answered(
    redis_server: RedisServer, redis_url: str
) -> None:
    options = ("--url", redis_url, "--namespace", NAMESPACE, "--ttl", "60", "--timeout", "8")
    with ThreadPoolExecutor(30) as pool, Sidecar(*options) as sidecar:
        with sidecar.client() as ask:
            assert ask.execute_command("FD.CLAIM", "before")[0] == b"acquired"
        redis_server.freeze()
        try:
            run = asyncio.get_running_loop().run_in_executor
            asked = asyncio.gather(*(run(pool, claim, sidecar, f"frozen:{number}") for number in range(30)))
            await wait_until(
                lambda: figure(sidecar.figures(), "fastdedup_pending_operations") == 30,
                description="all asked",
            )
            ending = asyncio.create_task(asyncio.to_thread(sidecar.end))
            await wait_until(lambda: "stopping" in sidecar.log, description="told to stop")
            await wait_until(lambda: not sidecar.path.exists(), description="nobody may connect any more")
            assert not ending.done()
        finally:
            redis_server.thaw()
        assert {answer[0] for answer in await asked} == {b"acquired"}
        assert await ending == 0


def claim(sidecar: Sidecar, key: str, *options: str) -> Any:
    with sidecar.client() as ask:
        return ask.execute_command("FD.CLAIM", key, *options)


async def test_what_was_answered_in_an_outage_is_in_the_store_when_it_has_stopped(
    redis_server: RedisServer, redis_url: str
) -> None:
    options = ("--timeout", "0.1", "--on-unavailable", "local", "--ttl", "60")
    with Sidecar("--url", redis_url, "--namespace", NAMESPACE, *options) as sidecar, sidecar.client() as ask:
        redis_server.freeze()
        try:
            for number in range(20):
                assert ask.execute_command("FD.CLAIM", f"outage:{number}")[6] == 1
            assert figure(sidecar.figures(), "fastdedup_journal_records") == 20
            ending = asyncio.create_task(asyncio.to_thread(sidecar.end))
            await wait_until(lambda: "stopping" in sidecar.log, description="told to stop")
        finally:
            redis_server.thaw()
        assert await ending == 0
        assert "adopted=20" in sidecar.log
    found = await states(redis_url, {f"outage:{number}" for number in range(20)})
    assert set(found.values()) == {State.PROCESSING}


def start_waiting(sidecar: Sidecar) -> socket.socket:
    """A client that waits for a minute for a key that somebody holds."""
    assert claim(sidecar, "held")[0] == b"acquired"
    waits = connect(sidecar.path)
    waits.sendall(pack(b"FD.CLAIM", b"held", b"WAIT", b"60000"))
    return waits


async def test_a_second_signal_ends_it_at_once() -> None:
    with Sidecar("--grace", "60") as sidecar, start_waiting(sidecar) as waits:
        sidecar.process.send_signal(signal.SIGTERM)
        await wait_until(lambda: not sidecar.path.exists(), description="told to stop")
        assert sidecar.process.poll() is None
        assert sidecar.end() == 128 + signal.SIGTERM
        assert "stopped at once" in sidecar.log
        assert "Traceback" not in sidecar.log
        assert waits.recv(1) == b""


async def test_requests_behind_the_running_one_have_not_run(redis_url: str) -> None:
    """They are pipelined. The answer before them says that the connection ends, so they may be sent again."""
    with (
        Sidecar("--url", redis_url, "--namespace", NAMESPACE) as sidecar,
        connect(sidecar.path) as wire,
        connect(sidecar.path) as idle,
    ):
        assert claim(sidecar, "held")[0] == b"acquired"
        waits = post("/v1/claims", {"key": "held", "wait": 60_000})
        wire.sendall(waits + post("/v1/claims", {"key": "behind"}))
        idle.sendall(b"*1\r\n$4\r\nPING\r\n")
        assert idle.recv(100) == b"+PONG\r\n"  # the sidecar has read what came before
        sidecar.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(idle.recv, 100) == b""  # it has told each connection to end
        async with Dedup(redis_url, namespace=NAMESPACE) as other:
            await other.forget("held")
            answers = await asyncio.to_thread(lambda: b"".join(iter(lambda: wire.recv(65_536), b"")))
            assert await other.get("behind") is None
        assert await asyncio.to_thread(sidecar.process.wait, DEADLINE) == 0
    assert answers.startswith(b"HTTP/1.1 201 ")
    assert b"connection: close\r\n" in answers
    assert answers.count(b"HTTP/1.1 ") == 1


def test_work_that_does_not_end_in_its_grace_is_cut() -> None:
    with Sidecar("--grace", "0.3") as sidecar, start_waiting(sidecar) as waits:
        assert sidecar.end() == 0
        assert "connections_cut=1" in sidecar.log
        assert waits.recv(1) == b""


# The README's lines for the sidecar, as they stand there, on another socket


README = (Path(__file__).parents[2] / "README.md").read_text()
SOCKET = "/run/fastdedup/fastdedup.sock"


def line(start: str) -> str:
    found = re.search(rf"^{start} .*?(?= +#|$)", README, flags=re.M)
    assert found, f"the README has no line that starts with {start}"
    return found[0]


@pytest.mark.parametrize("start", ["redis-cli", "curl"])
def test_a_line_that_is_pasted_acquires_the_key(start: str) -> None:
    with Sidecar() as sidecar:
        said = paste(line(start).replace(SOCKET, str(sidecar.path)))
    assert (json.loads(said)["outcome"] if start == "curl" else said.splitlines()[0]) == "acquired"
