"""Programs that a test starts and waits for, and waiting in code that blocks."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import warm


def ended(*command: str, environment: Mapping[str, str] = os.environ, **options: Any) -> Any:
    """Run `python` with these arguments to its end; return what it printed, and its exit code.

    `-m fastdedup …` is a fork that need not import it, unless there are options of `subprocess.run`.
    """
    if command[:2] == ("-m", "fastdedup") and not options:
        return _forked(command[1:], dict(environment))
    options = {"capture_output": True, "text": True, "timeout": 60, "check": False, **options}
    return subprocess.run([sys.executable, *command], env=environment, **options)


def _forked(command: Sequence[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        program = warm.start([*command], environment=environment, out=out, err=err)
        code = program.wait(60)
        told = []
        for file in (out, err):
            file.seek(0)
            told.append(file.read().decode())
        return subprocess.CompletedProcess(command, code, *told)


def until(
    predicate: Callable[[], Any], description: str, *, deadline: float = 30.0, every: float = 0.01
) -> Any:
    """Wait for a predicate to come true, asking it `every` so many seconds; return what it returned."""
    ends = time.monotonic() + deadline
    while time.monotonic() < ends:
        if value := predicate():
            return value
        time.sleep(every)
    raise AssertionError(f"waited {deadline:g} s in vain: {description}")
