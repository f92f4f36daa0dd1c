"""Programs that a test starts and waits for, and waiting in code that blocks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any


def ended(*command: str, environment: Mapping[str, str] = os.environ, **options: Any) -> Any:
    """Run `python` with these arguments to its end; return what it printed, and its exit code."""
    options = {"capture_output": True, "text": True, "timeout": 60, "check": False, **options}
    return subprocess.run([sys.executable, *command], env=environment, **options)


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
