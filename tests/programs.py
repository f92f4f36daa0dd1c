"""Programs that a test starts and waits for, and waiting in code that blocks."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from . import warm
from .killable import until as until  # for those who import it from here


def ended(*command: str | Path, environment: Mapping[str, str] = os.environ, **options: Any) -> Any:
    """Run `python` with these arguments to its end; return what it printed, and its exit code.

    `-m fastdedup …` is a fork that need not import it, unless there are options of `subprocess.run`.
    """
    if command[:2] == ("-m", "fastdedup") and not options:
        return _forked([str(part) for part in command[1:]], dict(environment))
    options = {"capture_output": True, "text": True, "timeout": 60, "check": False, **options}
    return subprocess.run([sys.executable, *command], env=environment, **options)


@contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a program; kill it as the block ends, also by a test that fails: Popen's own block would wait for it."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options) as program:
        try:
            yield program
        finally:
            program.kill()


def text_ended(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a Python text to its end, in a fork that need not import fastdedup; what it has forked ends with it."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(text)
        file.flush()
        return _forked(["tests.programs", file.name, *arguments], dict(os.environ))


def _forked(command: Sequence[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        program = warm.start([*command], environment=environment, out=out, err=err)
        try:
            code = program.wait(60)
        finally:
            with suppress(ProcessLookupError):  # it has no session of its own, or all of that has ended
                os.killpg(program.pid, signal.SIGKILL)
        told = []
        for file in (out, err):
            file.seek(0)
            told.append(file.read().decode())
        return subprocess.CompletedProcess(command, code, *told)


def forked(work: Callable[[], object]) -> bytes:
    """Do work in a fork, which must end well; return what it returned, if that is bytes."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            told = work()
            os.write(send, told if isinstance(told, bytes) else b"")
            code = 0
        finally:
            os._exit(code)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        said = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return said


if __name__ == "__main__":  # for `text_ended`: a file and its arguments, in a session of its own
    os.setsid()
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
