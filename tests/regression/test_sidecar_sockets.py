"""The sidecar's sockets, their folders and locks, and who may use them."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from fastdedup import Dedup
from fastdedup.errors import ConfigError
from fastdedup.sidecar.http.application import HttpApp
from fastdedup.sidecar.limits import Limits
from fastdedup.sidecar.namespaces import Namespaces, RawCodec
from fastdedup.sidecar.service import listener
from fastdedup.sidecar.service.admission import Admission
from fastdedup.sidecar.service.config import Config, load
from fastdedup.sidecar.service.listener import Peer, is_locked, locked, peer_of
from fastdedup.sidecar.service.mistakes import Mistakes
from fastdedup.sidecar.service.run import RESERVE
from fastdedup.sidecar.service.server import SidecarServer
from fastdedup.sidecar.service.sockets import allow_list

from ..fixtures import fixture_with
from ..programs import ended
from ..servers import RedisServer
from ..sidecar.attacks import connect
from ..sidecar.fuzz import pack
from ..sidecar.running import DEADLINE, Sidecar, environment, figure
from ..waiting import wait_until

# Fault: a path that no socket can have passed check-config; a wrong descriptor of systemd's ended in a
# traceback.


LONGEST = 107


@pytest.mark.parametrize("table", ["socket = {!r}", "[[sockets]]\npath = {!r}"])
def test_a_path_has_at_most_107_bytes(tmp_path: Path, table: str) -> None:
    file, longest = tmp_path / "c.toml", "/tmp/" + "s" * (LONGEST - 5)
    file.write_text(table.format(longest))
    load(file, {}, environment=False)
    for path in (longest + "s", longest[:-1] + "\N{LATIN SMALL LETTER E WITH ACUTE}"):
        file.write_text(table.format(path))
        with pytest.raises(Mistakes, match="at most 107 bytes, got 108"):
            load(file, {}, environment=False)


DESCRIPTORS = {
    "closed": ("os.close(3)", "descriptor 3 is not one"),
    "a file": ("None", "descriptor 3 is not one"),
    "TCP": ("s = socket.create_server(('127.0.0.1', 0)); os.dup2(s.fileno(), 3, True)", "is not a path"),
    "abstract": (
        "s = socket.socket(socket.AF_UNIX); s.bind(chr(0) + str(os.getpid())); os.dup2(s.fileno(), 3, True)",
        "is not a path",
    ),
}


@pytest.mark.parametrize("descriptor", DESCRIPTORS)
def test_a_descriptor_that_cannot_be_served_is_a_sentence(descriptor: str) -> None:
    opened, said = DESCRIPTORS[descriptor]
    code = (
        "import os, socket, sys; null = os.open(os.devnull, os.O_RDONLY); os.dup2(null, 3); "
        f"{opened}; os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1'); "
        "os.execv(sys.executable, [sys.executable, '-m', 'fastdedup', 'serve'])"
    )
    code = code.replace("os.dup2(null, 3);", "os.dup2(null, 3, True);")
    done = ended("-c", code, environment=dict(os.environ))
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


# The lock file is never a link's target, a foreign lock is told apart from a sidecar, folders are 0750. The
# lock followed a dangling link, and so made a file where the link pointed; any holder of the lock was told
# as "a sidecar serves already"; only the innermost of the folders that were made was closed to others.


def refusal(server: RedisServer, path: Path) -> str:
    """Return what a sidecar that cannot start says."""
    done = ended(
        "-m", "fastdedup", "serve", "--url", server.url, "--socket", str(path), environment=environment()
    )
    assert done.returncode == 1
    return done.stderr


def test_a_lock_that_is_a_link_is_refused(server: RedisServer, tmp_path: Path) -> None:
    path, target = tmp_path / "gate.sock", tmp_path / "target"
    (tmp_path / "gate.sock.lock").symlink_to(target)
    assert "gate.sock.lock: it is a symbolic link; remove it" in refusal(server, path)
    assert not target.exists()


def test_a_lock_that_is_no_file_is_refused(server: RedisServer, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate.sock.lock")
    assert "gate.sock.lock: it is not a regular file" in refusal(server, tmp_path / "gate.sock")


def test_a_foreign_lock_is_no_sidecar(server: RedisServer, tmp_path: Path) -> None:
    with (tmp_path / "gate.sock.lock").open("w") as foreign:
        fcntl.flock(foreign, fcntl.LOCK_EX)
        told = refusal(server, tmp_path / "gate.sock")
    assert f"another process holds the lock {tmp_path}/gate.sock.lock, and no sidecar serves there" in told


def test_every_folder_that_is_made_is_closed_to_others(server: RedisServer, tmp_path: Path) -> None:
    sidecar = Sidecar("--url", server.url)
    sidecar.path = tmp_path / "one" / "two" / "gate.sock"
    sidecar.options[1] = str(sidecar.path)
    with sidecar:
        for folder in (sidecar.path.parent, sidecar.path.parent.parent):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o750


# A sidecar that took over left the lock that keeps a third one away: `fastdedup.sock.next.lock`, for each
# socket. `tests/sidecar/test_takeover.py` looks for it after a take-over; here is the race that removing it
# brings.


def test_a_lock_that_is_removed_meanwhile_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one ends between the second one's opening and locking: they would lock two files."""
    path, file = tmp_path / "gate.sock", tmp_path / "gate.sock.lock"
    flock = fcntl.flock
    with ExitStack() as first:
        first.enter_context(locked(path, passing=True))
        with pytest.raises(ConfigError, match="another process holds the lock"), locked(path, passing=True):
            pass

        def late(lock: int, how: int) -> Any:
            first.close()
            return flock(lock, how)

        monkeypatch.setattr(listener.fcntl, "flock", late)
        with locked(path, passing=True):
            assert file.exists()
            assert is_locked(file)
    assert not file.exists()


# `allow_gids` lets in who belongs to a group at all: only a process's primary group was looked at.


GROUP, OTHER = 4711, 65_534
STRANGER = os.getuid() + 1  # the sidecar's own user is always let in
AS_ROOT = pytest.mark.skipif(
    os.getuid() != 0, reason="only root can start a process in other groups; the rule is tested without that"
)
ASK = """
import os, socket, sys
groups = [int(each) for each in sys.argv[2].split(",")]
os.setgroups(groups); os.setgid(65534); os.setuid(65534)
with socket.socket(socket.AF_UNIX) as ask:
    ask.settimeout(20)
    ask.connect(sys.argv[1])
    try:
        ask.sendall(b"*2\\r\\n$8\\r\\nFD.CLAIM\\r\\n$1\\r\\nk\\r\\n")
        print(ask.recv(100)[:16])
    except OSError:
        print(b"")
"""


# The rule, for a client as the system describes it


def connection_refusal(*groups: int) -> str:
    """Return why the sidecar refuses a member of these groups, whose primary group is another one."""
    namespaces = Namespaces(Dedup("memory://", codec=RawCodec()))
    allowed = allow_list(Config(allow_gids=(GROUP,)))
    server = SidecarServer(namespaces, HttpApp(namespaces), allowed=allowed)
    return server.refusal(Peer(1, STRANGER, OTHER, frozenset(groups)), server.main)


def test_a_member_is_let_in_and_others_are_named() -> None:
    assert connection_refusal(4710, GROUP) == ""
    assert connection_refusal(4710, 4712) == (
        f"user {STRANGER}, with the groups 4710, 4712, {OTHER}, is not on the allow list"
    )


def test_the_system_tells_a_clients_supplementary_groups() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = peer_of(ours)
        assert peer is not None
        assert peer.groups == frozenset(os.getgroups())


# The rule, for real processes


@pytest.fixture(scope="module")
def sidecar() -> Iterator[Sidecar]:
    redis = RedisServer().start()
    with Sidecar("--url", redis.url, config=f"allow_gids = [{GROUP}]\n") as sidecar:
        for folder in (sidecar.folder, sidecar.path.parent):
            folder.chmod(0o755)
        sidecar.path.chmod(0o666)
        yield sidecar
    redis.stop()


def ask_with(sidecar: Sidecar, *groups: int) -> str:
    """Return what a member of these groups, whose primary group is another one, is answered."""
    asked = ended("-c", ASK, sidecar.path, ",".join(map(str, groups)), check=True, timeout=DEADLINE, cwd="/")
    return asked.stdout.strip()  # type: ignore[no-any-return]


@AS_ROOT
def test_a_member_by_a_supplementary_group_may_connect(sidecar: Sidecar) -> None:
    assert ask_with(sidecar, 4710, GROUP) == r"b'*7\r\n$8\r\nacquired'"


@AS_ROOT
def test_a_member_of_other_groups_is_refused_and_named(sidecar: Sidecar) -> None:
    assert ask_with(sidecar, 4710, 4712) == "b''"
    assert f"user {OTHER}, with the groups 4710, 4712, {OTHER}, is not on the allow list" in sidecar.log
    assert figure(sidecar.figures(), "fastdedup_connections_refused_total") == 1


# A sidecar that had no free file left reset connections without a word, and logged nothing.


PING = pack(b"PING")
ROOM, OPERATORS = 40, 8
REFUSED = (
    b"-ERR max number of clients reached: 48 connections are open, the limit (open files: ulimit -n)\r\n"
)


@contextmanager
def serving(url: str, soft: int, hard: int) -> Iterator[Sidecar]:
    """A sidecar that may open so many files."""
    sidecar_with_few_files = Sidecar("--url", url)
    sidecar_with_few_files.begin(preexec_fn=partial(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard)))
    with closing(ExitStack()) as stack:
        stack.callback(sidecar_with_few_files.stop)
        yield sidecar_with_few_files.until_up()


sidecar_with_few_files = fixture_with(
    lambda redis_server: serving(redis_server.url, ROOM + RESERVE, ROOM + RESERVE), scope="module"
)


@pytest.fixture
def crowd(sidecar_with_few_files: Sidecar) -> Iterator[list[Any]]:
    """As many connections as the sidecar answers; then one that it does not."""
    with ExitStack() as stack:
        raws = [stack.enter_context(connect(sidecar_with_few_files.path))]
        while is_served(raws[-1]):
            raws.append(stack.enter_context(connect(sidecar_with_few_files.path)))
        yield raws


def is_served(raw: Any) -> bool:
    try:
        return ask(raw) == b"+PONG\r\n"
    except OSError:
        return False


def ask(raw: Any, command: bytes = PING) -> bytes:
    raw.sendall(command)
    return bytes(raw.recv(1000))


def spent(sidecar_with_few_files: Sidecar) -> float:
    """Return the seconds of CPU time that the sidecar has used."""
    times = psutil.Process(sidecar_with_few_files.pid).cpu_times()
    return float(times.user + times.system)


@pytest.mark.usefixtures("crowd")
def test_who_is_refused_is_told_and_the_log_says_it_once(sidecar_with_few_files: Sidecar) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(connect(sidecar_with_few_files.path)) for _ in range(200)]
        for _ in range(20):
            assert ask(stack.enter_context(connect(sidecar_with_few_files.path))) == REFUSED
        began, before = time.monotonic(), spent(sidecar_with_few_files)
        assert {raw.recv(1000) for raw in silent} == {REFUSED}
        assert spent(sidecar_with_few_files) - before < 0.5 * (time.monotonic() - began), (
            "it waits in a busy loop"
        )
    assert sidecar_with_few_files.log.count("refused a connection") == 1
    assert f"needed={1024 + RESERVE} connections={ROOM} configured=1024" in sidecar_with_few_files.log


async def test_a_full_sidecar_serves_again_once_a_connection_ends(
    sidecar_with_few_files: Sidecar, crowd: list[Any]
) -> None:
    assert len(crowd) == ROOM + OPERATORS + 1
    crowd[0].close()

    def is_let_in() -> bool:
        with connect(sidecar_with_few_files.path) as raw:
            return is_served(raw)

    await wait_until(is_let_in, description="the sidecar has seen the end of that connection")


def test_the_soft_limit_is_raised_to_what_is_needed(redis_server: RedisServer) -> None:
    with serving(redis_server.url, 64, 2000) as sidecar_with_few_files:
        limits = Path(f"/proc/{sidecar_with_few_files.pid}/limits").read_text()
        assert limits.partition("Max open files")[2].split()[:2] == [str(1024 + RESERVE), "2000"]
        assert "fewer connections" not in sidecar_with_few_files.log


def test_a_limit_that_allows_next_to_nothing_is_refused(redis_server: RedisServer) -> None:
    sidecar_with_few_files = Sidecar("--url", redis_server.url)
    sidecar_with_few_files.begin(preexec_fn=partial(resource.setrlimit, resource.RLIMIT_NOFILE, (64, 64)))
    try:
        assert sidecar_with_few_files.process.wait(DEADLINE) == 1
    finally:
        sidecar_with_few_files.process.kill()
    assert (
        "the system lets this process open 64 files (ulimit -n, systemd: LimitNOFILE=)"
        in sidecar_with_few_files.log
    )


def test_the_log_tells_of_refusals_once_a_minute() -> None:
    now = [100.0]
    admission = Admission(Limits(), lambda: now[0])
    assert [admission.untold() for _ in range(3)] == [1, 0, 0]
    now[0] += 60.0
    assert [admission.untold() for _ in range(2)] == [3, 0]
