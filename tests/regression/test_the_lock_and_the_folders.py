"""The lock file is never a link's target, a foreign lock is told apart from a sidecar, folders are 0750.

The lock followed a dangling link, and so made a file where the link pointed; any holder of the lock was told as "a
sidecar serves already"; only the innermost of the folders that were made was closed to others.
"""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

from ..servers import RedisServer
from ..sidecar.running import Sidecar, environment


def refusal(server: RedisServer, path: Path) -> str:
    """Return what a sidecar that cannot start says."""
    done = subprocess.run(
        [sys.executable, "-m", "fastdedup", "serve", "--url", server.url, "--socket", str(path)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
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
