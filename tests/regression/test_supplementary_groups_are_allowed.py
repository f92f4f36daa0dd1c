"""`allow_gids` lets in who belongs to a group at all: only a process's primary group was looked at."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ..servers import RedisServer
from ..sidecar.running import DEADLINE, Sidecar, figure

GROUP, OTHER = 4711, 65_534
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
    command = [sys.executable, "-c", ASK, str(sidecar.path), ",".join(map(str, groups))]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=DEADLINE, cwd="/"
    ).stdout.strip()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process in other groups")
def test_a_member_by_a_supplementary_group_may_connect(sidecar: Sidecar) -> None:
    assert ask_with(sidecar, 4710, GROUP) == r"b'*7\r\n$8\r\nacquired'"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process in other groups")
def test_a_member_of_other_groups_is_refused_and_named(sidecar: Sidecar) -> None:
    assert ask_with(sidecar, 4710, 4712) == "b''"
    assert f"user {OTHER}, with the groups 4710, 4712, {OTHER}, is not on the allow list" in sidecar.log
    assert figure(sidecar.figures(), "fastdedup_connections_refused_total") == 1
