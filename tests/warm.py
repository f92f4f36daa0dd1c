"""Starts programs of fastdedup as forks of one process that has imported them already.

To import them takes a sidecar most of a second of CPU, and the tests start more than a hundred. The forks run the
same `python -m fastdedup …`. Programs that measure their coverage, or need an interpreter of their own, are started
as usual.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[1]
MODULES = (
    "fastdedup.cli.main",
    "fastdedup.cli.sidecar",
    "fastdedup.sidecar.http.gate",
    "fastdedup.sidecar.service.reload",
    "fastdedup.sidecar.service.run",
    "fastdedup.sidecar.service.server",
    "fastdedup.sidecar.service.takeover",
    "fastdedup.stores.redis.store",
    "uvicorn.protocols.http.httptools_impl",
    "uvloop",
)
"""What the forks need not import. What is missing here, each imports for itself."""
MAX_REQUEST = 65_536


def coverage_variables(environment: Iterable[str]) -> list[str]:
    """Return the names of the variables by which coverage.py starts in a program, which takes it 0.3 s."""
    return [name for name in environment if name.startswith("COV")]


class Program:
    """A running program, with what the tests use of `subprocess.Popen`."""

    def __init__(self, pid: int, told: socket.socket, command: list[str]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._told = told
        self._command = command

    def poll(self) -> int | None:
        """Return its exit code, or None while it runs."""
        if self.returncode is None and select.select([self._told], [], [], 0)[0]:
            self._hear()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code once it has ended. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self._command, timeout or 0.0)
            self._hear()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _hear(self) -> None:
        status = self._told.recv(16)
        self._told.close()
        self.returncode = (
            int(status) if status else -signal.SIGKILL
        )  # "" where the process that forks is gone


class Forker:
    """The process that forks, and the way to it. One for each process of tests, begun when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._way: socket.socket

    def start(self, command: list[str], environment: dict[str, str], out: int, err: int) -> Program:
        """Run `python -m` and the command's words, in this working folder."""
        request = json.dumps([command, str(Path.cwd()), environment]).encode()
        ours, theirs = socket.socketpair(
            type=socket.SOCK_SEQPACKET
        )  # the pid and the exit code: two messages
        with theirs, self._lock:
            if self._process is None:
                self._begin()
            socket.send_fds(self._way, [request], [out, err, theirs.fileno()])
        return Program(int(ours.recv(16)), ours, command)

    def _begin(self) -> None:
        self._way, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        measuring = coverage_variables(os.environ)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.warm", str(theirs.fileno())],
                cwd=ROOT,
                env={name: os.environ[name] for name in os.environ if name not in measuring},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self._end)

    def _end(self) -> None:
        self._way.close()
        assert self._process is not None
        self._process.wait()


_FORKER = Forker()


def start(
    command: list[str], *, environment: dict[str, str], out: IO[bytes], err: IO[bytes], **options: Any
) -> subprocess.Popen[bytes] | Program:
    """Start `python -m` and the words of `command`.

    `options`: of `subprocess.Popen`. With any, the program gets an interpreter of its own.
    """
    needs_its_own = options or any(
        name.startswith(("COV", "PYTHON")) and os.environ.get(name) != value
        for name, value in environment.items()
    )
    if needs_its_own or coverage_variables(environment) or sys.platform != "linux":
        process = subprocess.Popen(
            [sys.executable, "-m", *command], env=environment, stdout=out, stderr=err, **options
        )
        atexit.register(process.kill)  # which does nothing to one that was waited for
        return process
    return _FORKER.start(command, environment, out.fileno(), err.fileno())


# The process that forks


def fork_for(way: socket.socket) -> None:
    """Fork a program for each request, and tell how each ended, until the tests end."""
    for module in MODULES:
        importlib.import_module(module)
    gc.freeze()
    hear, ring = socket.socketpair()
    ring.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ring.fileno(), warn_on_full_buffer=False)
    running: dict[int, socket.socket] = {}
    while True:
        ready = select.select([way, hear], [], [])[0]
        if hear in ready:
            hear.recv(4096)
            tell_ends(running)
        if way in ready:
            request, descriptors, _, _ = socket.recv_fds(way, MAX_REQUEST, 3)
            if not request:
                return end_all(running)
            out, err, told = descriptors
            teller = socket.socket(fileno=told)
            pid = os.fork()
            if pid == 0:
                for mine in (way, hear, ring, teller, *running.values()):
                    mine.close()
                return become(request, out, err)
            os.close(out)
            os.close(err)
            teller.send(b"%d" % pid)
            running[pid] = teller


def tell_ends(running: dict[int, socket.socket]) -> None:
    """Tell the exit codes of the programs that have ended."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with running.pop(pid) as teller:
            teller.send(b"%d" % os.waitstatus_to_exitcode(status))


def end_all(running: Iterable[int]) -> None:
    """End the programs that a test has left behind: its start timed out, or its process was killed."""
    for pid in running:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def become(request: bytes, out: int, err: int) -> None:
    """Run the program of a request, in this fork, as `python -m` does."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    command, folder, environment = json.loads(request)
    for descriptor, place in ((out, 1), (err, 2)):
        os.dup2(descriptor, place)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.argv = command
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    fork_for(socket.socket(fileno=int(sys.argv[1])))
