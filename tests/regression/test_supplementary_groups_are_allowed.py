"""`allow_gids` lets in who belongs to a group at all: only a process's primary group was looked at."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fastdedup import Dedup
from fastdedup.sidecar.http.application import HttpApp
from fastdedup.sidecar.namespaces import Namespaces, RawCodec
from fastdedup.sidecar.service.config import Config
from fastdedup.sidecar.service.listener import Peer, peer_of
from fastdedup.sidecar.service.server import SidecarServer
from fastdedup.sidecar.service.sockets import allow_list

from ..servers import RedisServer
from ..sidecar.running import DEADLINE, Sidecar, figure

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


def refusal(*groups: int) -> str:
    """Return why the sidecar refuses a member of these groups, whose primary group is another one."""
    namespaces = Namespaces(Dedup("memory://", codec=RawCodec()))
    allowed = allow_list(Config(allow_gids=(GROUP,)))
    server = SidecarServer(namespaces, HttpApp(namespaces), allowed=allowed)
    return server.refusal(Peer(1, STRANGER, OTHER, frozenset(groups)), server.main)


def test_a_member_is_let_in_and_others_are_named() -> None:
    assert refusal(4710, GROUP) == ""
    assert refusal(4710, 4712) == (
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
    command = [sys.executable, "-c", ASK, str(sidecar.path), ",".join(map(str, groups))]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=DEADLINE, cwd="/"
    ).stdout.strip()


@AS_ROOT
def test_a_member_by_a_supplementary_group_may_connect(sidecar: Sidecar) -> None:
    assert ask_with(sidecar, 4710, GROUP) == r"b'*7\r\n$8\r\nacquired'"


@AS_ROOT
def test_a_member_of_other_groups_is_refused_and_named(sidecar: Sidecar) -> None:
    assert ask_with(sidecar, 4710, 4712) == "b''"
    assert f"user {OTHER}, with the groups 4710, 4712, {OTHER}, is not on the allow list" in sidecar.log
    assert figure(sidecar.figures(), "fastdedup_connections_refused_total") == 1
