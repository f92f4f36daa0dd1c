"""The folders that the recipes make let their group in, and the sidecar write.

systemd makes the folder of a socket root's, so with DirectoryMode=0750 the group fastdedup could not enter it. Docker
makes a folder that it binds root's, so the sidecar, who is user 10001, could not make its socket.

systemd is not started: a folder and a socket are made as it makes them, and passed as it passes them. Without root
the rights are only computed from the recipes.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastdedup.sidecar.service.deploy import printed

from ..programs import ended
from ..servers import DEADLINE, RedisServer
from ..sidecar.running import environment

AS_ROOT = pytest.mark.skipif(
    os.getuid() != 0, reason="only root can play other users; the rights are computed without that"
)
READ, WRITE, ENTER = 4, 2, 1
SERVICE, GROUP, MEMBER, STRANGER = 4711, 4711, 4712, 4713
ACTIVATE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
os.execv(sys.executable, [sys.executable, "-m", "fastdedup", "serve", "--url", sys.argv[2]])
"""
AS_USER = """
import os, socket, sys
path, uid, groups = sys.argv[1], int(sys.argv[2]), [int(each) for each in sys.argv[3].split(",")]
os.setgroups(groups); os.setgid(uid); os.setuid(uid)
with socket.socket(socket.AF_UNIX) as ask:
    ask.settimeout(20)
    try:
        ask.connect(path)
    except PermissionError:
        print("no permission")
    else:
        ask.sendall(b"*2\\r\\n$8\\r\\nFD.CLAIM\\r\\n$1\\r\\nk\\r\\n")
        print(ask.recv(100).split()[2].decode())
"""


def systemd_unit() -> dict[str, str]:
    return dict(line.split("=", 1) for line in printed("systemd").splitlines() if re.match(r"\w+=", line))


def docker_folder() -> tuple[str, int, int, int]:
    """Return the path, mode, user and group of the folder that the recipe makes on the host."""
    found = re.search(r"'d (\S+) (\d+) (\d+) (\d+)'", printed("docker"))
    assert found, "the recipe says how to make the folder"
    path, mode, uid, gid = found.groups()
    return path, int(mode, 8), int(uid), int(gid)


# The rights, computed


def rights(mode: int, owner: int, group: int, *, user: int, member_of: int) -> int:
    """Return what a user other than root may do with a file, as the system decides it."""
    if user == owner:
        return mode >> 6 & 7
    return mode >> 3 & 7 if member_of == group else mode & 7


def test_systemds_modes_give_rights_to_the_group_alone() -> None:
    unit = systemd_unit()
    folder, socket_mode = int(unit["DirectoryMode"], 8), int(unit["SocketMode"], 8)
    assert (unit["SocketUser"], unit["SocketGroup"]) == (unit["User"], unit["Group"])
    assert rights(folder, 0, 0, user=MEMBER, member_of=GROUP) & ENTER  # root's, whatever SocketUser= says
    assert rights(socket_mode, SERVICE, GROUP, user=MEMBER, member_of=GROUP) & WRITE
    assert not rights(socket_mode, SERVICE, GROUP, user=STRANGER, member_of=STRANGER)


def test_dockers_folder_gives_rights_to_the_sidecar_and_its_group() -> None:
    path, mode, uid, gid = docker_folder()
    assert f"USER {uid}:{gid}" in printed("docker")
    assert f"--volume {path}:{path}" in printed("docker")
    assert rights(mode, uid, gid, user=uid, member_of=gid) == READ | WRITE | ENTER
    assert rights(mode, uid, gid, user=MEMBER, member_of=gid) & ENTER
    assert not rights(mode, uid, gid, user=STRANGER, member_of=STRANGER)


# The same, by real processes


@pytest.fixture
def run() -> Iterator[Path]:
    """A folder that stands for /run."""
    folder = Path(tempfile.mkdtemp(prefix="fastdedup-run-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def ask_as(path: Path, uid: int, *groups: int) -> str:
    asked = ended(
        "-c", AS_USER, path, str(uid), ",".join(map(str, groups)), check=True, timeout=DEADLINE, cwd="/"
    )
    return asked.stdout.strip()  # type: ignore[no-any-return]


@AS_ROOT
def test_systemds_socket_lets_members_in_and_no_others(run: Path) -> None:
    unit = systemd_unit()
    folder, redis = run / "fastdedup", RedisServer().start()
    folder.mkdir()
    folder.chmod(int(unit["DirectoryMode"], 8))  # and root's, whatever SocketUser= says
    path = folder / Path(unit["ListenStream"]).name
    with socket.socket(socket.AF_UNIX) as given:
        given.bind(str(path))
        os.chown(path, SERVICE, GROUP)
        path.chmod(int(unit["SocketMode"], 8))
        given.listen()
        command = [sys.executable, "-c", ACTIVATE, str(given.fileno()), redis.url]
        process = subprocess.Popen(
            command, env=environment(), pass_fds=[given.fileno()], stdout=subprocess.DEVNULL
        )
        try:
            assert ask_as(path, MEMBER, GROUP) == "acquired"
            assert ask_as(path, STRANGER, STRANGER) == "no permission"
        finally:
            process.terminate()
            process.wait(DEADLINE)
            redis.stop()


@AS_ROOT
def test_the_bound_folder_of_docker_is_made_for_the_sidecar(run: Path) -> None:
    _, mode, uid, gid = docker_folder()
    folder = run / "fastdedup"
    folder.mkdir()
    folder.chmod(mode)
    os.chown(folder, uid, gid)
    # As the user of the container: the lock and the socket are made, and a member of the group connects.
    script = (
        "import os\n"
        "from pathlib import Path\n"
        "from fastdedup.sidecar.service.listener import bound\n"
        f"os.setgroups([]); os.setgid({gid}); os.setuid({uid})\n"
        f"with bound(Path({str(folder / 'fastdedup.sock')!r})) as listener: print('ready', flush=True); input()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        probe = AS_USER.partition("    else:")[0] + "    else:\n        print('in')\n"
        for user, group, told in ((MEMBER, gid, "in"), (STRANGER, STRANGER, "no permission")):
            names = (folder / "fastdedup.sock", str(user), str(group))
            assert ended("-c", probe, *names, check=True, cwd="/").stdout.strip() == told
    finally:
        process.communicate("\n", timeout=DEADLINE)
