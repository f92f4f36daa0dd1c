"""Real workers of task queues for tests: a process group of its own each, killable."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ..programs import until as until  # for those who import it from here

ROOT = Path(__file__).resolve().parents[2]


class WorkerProcess:
    """A worker process and its children; its log is a file.

    Args:
        command: behind `python -m`.
        folder: where the log lies.
        env: set beside the environment of this process.
        ready: what the log says once the worker takes messages.
    """

    def __init__(self, *command: str, folder: Path, env: Mapping[str, str], ready: str) -> None:
        self._log = folder / f"worker-{time.monotonic_ns()}.log"
        path = os.pathsep.join(each for each in (str(ROOT), os.environ.get("PYTHONPATH", "")) if each)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=ROOT,
                env={**os.environ, **env, "PYTHONPATH": path},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            until(lambda: self.says(ready) or self._process.poll() is not None, f"{command} is ready")
            assert self._process.poll() is None, self.log
        except BaseException:
            self.kill()
            raise

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def says(self, text: str) -> bool:
        return text in self.log

    def stop(self) -> None:
        """End it as an operator does, and wait for what it has begun."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10.0)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """End the whole group as a crash of the host would."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10.0)
