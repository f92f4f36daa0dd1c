"""Who gets at the socket: its mode, its owner, the allow list, and two sidecars that want the same one."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastdedup.errors import ConfigError
from fastdedup.sidecar.paths import make_private
from fastdedup.sidecar.service.config import Config
from fastdedup.sidecar.service.listener import Peer, bound, peer_of
from fastdedup.sidecar.service.sockets import allow_list
from fastdedup.sidecar.service.systemd import inherited, notify

from ..programs import ended
from .running import DEADLINE, Sidecar, environment, figure

ROOT = os.getuid() == 0
OTHER = 65_534  # nobody


# The file


def test_the_socket_is_0660_in_a_directory_of_its_own_and_is_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "fastdedup" / "gate.sock"
    with bound(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert stat.S_IMODE(path.parent.stat().st_mode) & 0o007 == 0
    assert not path.exists()


def test_a_socket_that_somebody_else_put_there_since_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "gate.sock"
    with bound(path), socket.socket(socket.AF_UNIX) as other:
        path.unlink()
        other.bind(str(path))
    assert path.exists()


def test_a_live_socket_is_never_stolen_from_a_sidecar(tmp_path: Path) -> None:
    path = tmp_path / "gate.sock"
    with bound(path) as first:
        inode = path.stat().st_ino
        with pytest.raises(ConfigError, match=r"serves .* already"), bound(path):
            pass
        assert path.stat().st_ino == inode
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(path))
            first.socket.accept()[0].close()


def test_a_live_socket_is_never_stolen_from_anybody_else(tmp_path: Path) -> None:
    path = tmp_path / "gate.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(ConfigError, match=r"serves .* already"), bound(path):
            pass


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "gate.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with bound(path), socket.socket(socket.AF_UNIX) as probe:
        probe.connect(str(path))


def test_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "gate.sock"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="is not a socket"), bound(path):
        pass
    assert path.read_text() == "precious"


def test_of_two_that_start_at_once_one_serves(tmp_path: Path) -> None:
    path = tmp_path / "gate.sock"
    barrier, done, won = threading.Barrier(8), threading.Barrier(8), []

    def start() -> None:
        barrier.wait(DEADLINE)
        try:
            with bound(path):
                won.append(1)
                done.wait(DEADLINE)
        except ConfigError:
            done.wait(DEADLINE)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert len(won) == 1


def test_a_sidecar_killed_with_9_leaves_a_socket_that_the_next_one_replaces(tmp_path: Path) -> None:
    with Sidecar() as sidecar:
        sidecar.kill()
        assert sidecar.path.exists()
        sidecar.start()
        with sidecar.client() as ask:
            assert ask.execute_command("FD.CLAIM", "k")[0] == b"acquired"


def test_a_second_sidecar_is_told_and_the_first_serves_on() -> None:
    with Sidecar() as sidecar:
        done = ended("-m", "fastdedup", "serve", "--socket", str(sidecar.path), environment=environment())
        assert done.returncode == 1
        assert "already: replace it by --take-over, stop it, or choose another --socket" in done.stderr
        with sidecar.client() as ask:
            assert ask.ping()


def test_the_private_directory_is_refused_where_it_is_not_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = tmp_path / f"fastdedup-{os.getuid()}" / "fastdedup.sock"
    make_private(path)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    make_private(path)
    path.parent.chmod(0o777)
    with pytest.raises(ConfigError, match="must be a private directory"):
        make_private(path)
    path.parent.rmdir()
    path.parent.symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="must be a private directory"):
        make_private(path)
    make_private(tmp_path / "elsewhere" / "x.sock")  # not its business


# systemd


def test_what_systemd_passes_to_another_process_or_twice_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LISTEN_PID", "1")
    monkeypatch.setenv("LISTEN_FDS", "1")
    assert inherited() is None
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
    monkeypatch.setenv("LISTEN_FDS", "2")
    with pytest.raises(ConfigError, match="serves one"):
        inherited()


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told_also_by_an_abstract_address(
    abstract: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"@fastdedup-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as news:
        news.bind("\0" + name[1:] if abstract else name)
        news.settimeout(DEADLINE)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        notify("READY=1")
        assert news.recv(100) == b"READY=1"
    notify("STOPPING=1")  # it is gone: no error


# The allow list


def test_the_peer_is_the_process_at_the_other_end() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peer_of(ours) == (os.getpid(), os.getuid(), os.getgid(), frozenset(os.getgroups()))
    with socket.socket(socket.AF_INET) as tcp:
        assert peer_of(tcp) is None


@pytest.mark.parametrize(
    ("uids", "gids", "peer", "let_in"),
    [
        ((), (), (1, 33, 33), True),
        ((), (), None, True),
        ((33,), (), (1, 33, 5), True),
        ((33,), (), (1, 34, 33), False),
        ((), (5,), (1, 34, 5), True),
        ((33,), (5,), (1, 34, 6), False),
        ((33,), (), (1, os.getuid(), 6), True),
        ((), (5,), (1, 34, 6, frozenset({4, 5})), True),
        ((), (5,), (1, 34, 6, frozenset({4})), False),
        ((33,), (), None, False),
    ],
)
def test_who_is_listed_or_runs_it_may_connect(
    uids: tuple[int, ...], gids: tuple[int, ...], peer: Any, let_in: bool
) -> None:
    allowed = allow_list(Config(allow_uids=uids, allow_gids=gids))
    assert allowed(None if peer is None else Peer(*peer)) is let_in


_ASK_AS = """
import os, socket, sys
uid, gid = int(sys.argv[2]), int(sys.argv[3])
if os.getuid() == 0:
    os.setgroups([]); os.setgid(gid); os.setuid(uid)
try:
    with socket.socket(socket.AF_UNIX) as ask:
        ask.settimeout(20)
        ask.connect(sys.argv[1])
        ask.sendall(b"*1\\r\\n$4\\r\\nPING\\r\\n")
        print(ask.recv(100).decode().strip() or "closed")
except PermissionError:
    print("no permission")
except OSError:
    print("closed")
"""


def ask_as(path: Path, uid: int, gid: int) -> str:
    """What a process of this user and group is answered; as ourselves where we may not become another."""
    return subprocess.run(
        [sys.executable, "-c", _ASK_AS, str(path), str(uid), str(gid)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd="/",
    ).stdout.strip()


@pytest.fixture
def open_folders() -> Callable[[Sidecar], None]:
    """Lets everybody as far as the socket: then the list alone decides."""

    def open_folders(sidecar: Sidecar) -> None:
        sidecar.folder.chmod(0o755)
        sidecar.path.parent.chmod(0o755)
        sidecar.path.chmod(0o666)

    return open_folders


def test_without_a_list_the_files_mode_decides() -> None:
    with Sidecar() as sidecar:
        assert ask_as(sidecar.path, os.getuid(), os.getgid()) == "+PONG"
        sidecar.folder.chmod(0o755)
        sidecar.path.parent.chmod(0o755)
        assert ask_as(sidecar.path, OTHER, OTHER) == ("no permission" if ROOT else "+PONG")


@pytest.mark.parametrize(
    ("listed", "uid", "gid", "let_in"),
    [
        ("allow_uids = [65534]", OTHER, 7, True),
        ("allow_gids = [7]", OTHER, 7, True),
        ("allow_uids = [1]", OTHER, 7, False),
        ("allow_gids = [65534]", OTHER, 7, False),
    ],
)
def test_the_list_is_asked_for_each_connection_and_a_refusal_is_logged_and_counted(
    listed: str, uid: int, gid: int, let_in: bool, open_folders: Callable[[Sidecar], None]
) -> None:
    with Sidecar(config=listed) as sidecar:
        open_folders(sidecar)
        let_in = let_in or not ROOT  # then it is us who ask, and we run it
        assert ask_as(sidecar.path, uid, gid) == ("+PONG" if let_in else "closed")
        assert figure(sidecar.figures(), "fastdedup_connections_refused_total") == (not let_in)
        assert ("refused a connection" in sidecar.log) is not let_in
