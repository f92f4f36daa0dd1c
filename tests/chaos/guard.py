"""Ends what the driver leaves behind should it be killed: servers, stopped workers, folders.

A process of its own, reading lines from a pipe that the driver holds: `pid NUMBER STARTED` or
`folder PATH`. When the pipe ends, it ends those processes and whatever works in those folders, as
every server does in one of its own, and removes them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

PASSES = 3
"""How often it looks: a server that was just being started shows a moment later."""


def started(pid: int) -> str:
    """When a process began, in the kernel's ticks: a number that is used again belongs to another."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


class Guard:
    """The driver's side."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__))], stdin=subprocess.PIPE, start_new_session=True
        )

    def process(self, pid: int) -> None:
        self._tell(f"pid {pid} {started(pid)}")

    def folder(self, path: Path) -> None:
        self._tell(f"folder {path}")

    def close(self) -> None:
        """Let it end what is left, which is nothing where the driver has closed what it started."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lines = [line.strip().partition(" ") for line in sys.stdin]
    for kind, _, what in lines:
        if kind == "pid":
            pid, _, began = what.partition(" ")
            if began and started(int(pid)) == began:
                os.kill(int(pid), signal.SIGKILL)
    folders = [Path(what).resolve() for kind, _, what in lines if kind == "folder"]
    for _ in range(PASSES):
        for pid in workers_in(folders):
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def workers_in(folders: list[Path]) -> list[int]:
    """The processes that work in one of these folders, which are the driver's alone, or were told to."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            place = (process / "cwd").readlink()
            command = (process / "cmdline").read_bytes()
            if any(place.is_relative_to(folder) or bytes(folder) in command for folder in folders):
                found.append(int(process.name))
    return found


if __name__ == "__main__":
    main()
