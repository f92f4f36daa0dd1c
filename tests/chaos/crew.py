"""The worker processes, as the driver sees them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import orjson

from .board import Board
from .guard import Guard

ROOT = Path(__file__).parents[2]
LOOPS = ("asyncio", "uvloop")
START, DONE = 30.0, 15.0
"""Seconds that a process may take to be ready, and to end its run."""


def environment(build: Path | None) -> dict[str, str]:
    """Return a worker's environment; `build` is a folder with another fastdedup, which then comes first."""
    path = [str(ROOT)] if build is None else [str(build.resolve()), str(ROOT)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"}


class Member:
    """One worker process; `name` is new with each process, `slot` stays."""

    def __init__(self, slot: int, board: Path, guard: Guard, build: Path | None = None) -> None:
        self.slot = slot
        self._build = build
        self.name = ""
        self._board = board
        self._guard = guard
        self._births = 0
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def ensure(self) -> None:
        """Start the process unless it runs."""
        if self._process is not None and self._process.returncode is None:
            return
        self.name = f"w{self.slot}.{self._births}"
        self._births += 1
        command = [sys.executable, "-m", "tests.chaos.worker", self.name, str(self.slot), str(self._board)]
        self._process = await asyncio.create_subprocess_exec(
            *command,
            LOOPS[self.slot % len(LOOPS)],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            env=environment(self._build),
            limit=16 * 1024 * 1024,
            start_new_session=True,  # Ctrl-C is the driver's alone
        )
        self._guard.process(self.pid)

    async def begin(self, order: dict[str, Any]) -> None:
        """Begin a run; returns when its clients are at work."""
        await self.ensure()
        self.tell({"do": "run", **order})
        answer = await self._hear(START)
        if answer.get("is") != "ready":
            raise RuntimeError(f"{self.name} could not begin: {answer}")

    def tell(self, order: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(orjson.dumps(order) + b"\n")

    async def finish(self) -> dict[str, Any]:
        """End a run; returns failures, hangs and events. A process that does not answer is killed."""
        self.tell({"do": "stop"})
        try:
            return await self._hear(DONE)
        except TimeoutError:
            await self.kill()
            return {"hangs": [f"{self.name} did not end its run"], "failures": [], "events": {}}

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    async def kill(self) -> None:
        """End the process as a crash would."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _hear(self, seconds: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        async with asyncio.timeout(seconds):
            line = await self._process.stdout.readline()
        if not line:
            return {"is": "dead", "failures": [f"{self.name} ended by itself"], "hangs": [], "events": {}}
        answer: dict[str, Any] = orjson.loads(line)
        return answer


class Crew:
    """All workers."""

    def __init__(self, size: int, folder: Path, guard: Guard, build: Path | None = None) -> None:
        path = folder / "board"
        self.board = Board(path, create=True)
        self.members = [Member(slot, path, guard, build) for slot in range(size)]

    async def start(self) -> None:
        await asyncio.gather(*(member.ensure() for member in self.members))

    async def aclose(self) -> None:
        await asyncio.gather(*(member.kill() for member in self.members))
        self.board.close()
