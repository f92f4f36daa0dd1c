"""What every server process of the tests can do: die as in a crash, stand still, and take its folder with it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import psutil

DEADLINE = 20.0


def until(
    predicate: Callable[[], Any],
    description: str | Callable[[], str],
    *,
    deadline: float = 30.0,
    every: float = 0.005,
    unless: tuple[type[Exception], ...] = (),
) -> Any:
    """Wait in code that blocks, `deadline` seconds at most; return what the predicate returned once that is true.

    It looks `every` so many seconds; an error of `unless` means "not yet".
    """
    ends = time.monotonic() + deadline
    while time.monotonic() < ends:
        with suppress(*unless):
            if value := predicate():
                return value
        time.sleep(every)
    said = description if isinstance(description, str) else description()
    raise TimeoutError(f"waited {deadline:g} s in vain: {said}")


def hold_still(pid: int) -> None:
    """Stop a process in its tracks, and return once it stands: until then it may run on, on another core."""
    process = psutil.Process(pid)
    process.suspend()
    stands = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    until(lambda: process.status() in stands, "the process stands", every=0.001)


class Started:
    """What `with` starts and stops, also if its start fails."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> Any:
        """Return once it serves."""

    @abstractmethod
    def stop(self) -> None:
        """End it, and remove its folder."""


class Killable(Started):
    """A process with a folder, which `stop` removes. After `kill` it may be started again."""

    folder: Path
    deadline = DEADLINE
    """Seconds that it may take to come up, or to end."""
    _process: Any = None
    """A Popen, or what is like one."""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return int(self._process.pid)

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What the server wrote so far."""
        return (self.folder / "log").read_text(errors="replace")

    def kill(self) -> None:
        """End it as a crash would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(self.deadline)

    def freeze(self) -> None:
        """Stop it in its tracks; its connections stay open."""
        hold_still(self.pid)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze it for the length of a block."""
        self.freeze()
        try:
            yield
        finally:
            self.thaw()

    def stop(self) -> None:
        """End it and remove its folder."""
        if self.alive:
            self.thaw()
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class Guarded(Killable):
    """A server of several processes, which ends with this process, also on SIGKILL."""

    _guard: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def _launch(self) -> None:
        """Start the server, and its guard by `_let_guard`."""

    @abstractmethod
    def _serves(self) -> bool:
        """True once the server answers."""

    def start(self) -> Self:
        """Return the server once it serves; after `kill`, with the data that it had."""
        try:
            self._launch()
            self._wait_until_up()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the server and remove its folder."""
        if self.alive:
            self._end()
        self._dismiss_guard()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self) -> None:
        self.kill()

    def _let_guard(self, script: str, *arguments: object) -> None:
        """Run a script that ends the server once its own input ends: when this process does, in whichever way."""
        self._guard = subprocess.Popen(
            ["sh", "-c", script, "guard", str(self.pid), *map(str, arguments), str(self.folder)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _dismiss_guard(self) -> None:
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None

    def _wait_until_up(self) -> None:
        def serves() -> bool:
            if self._serves():
                return True
            if not self.alive:
                self._died()
            return False

        until(serves, lambda: f"the server comes up:\n{self.log}", deadline=self.deadline)

    def _died(self) -> None:
        """Raise, or start it anew: it has ended before it served."""
        raise AssertionError(self.log)
