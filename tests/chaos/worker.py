"""A worker process: opens a `Dedup` for each run, lets its clients loose, and tells what went wrong inside.

Spoken to by JSON lines on stdin, answers on stdout; ends when stdin does, so it never outlives the
driver. Its wall clock is wrong by what the board says: that is set before fastdedup is imported.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import orjson

from .board import GOOD, OPERATIONS, SKEW, Board
from .history import CLOSED, Recorder
from .steps import KINDS

CLIENTS = 5
"""Clients of each of the two policies."""
LOOKED_AT = 300
"""Keys and tokens that were given up, and are looked at in the end: the latest ones."""
PATIENCE = 6.0
"""Seconds that a client has to end its step when all shall stop; far above timeout, wait and lease."""


def skew_clock(board: Board, slot: int) -> None:
    """Make this process's wall clock wrong by the board's figure, which may change under way."""
    right, right_ns = time.time, time.time_ns
    time.time = lambda: right() + board[slot, SKEW] / 1e9
    time.time_ns = lambda: right_ns() + board[slot, SKEW]


class Worker:
    """One process of the load."""

    def __init__(self, name: str, slot: int, board: Board) -> None:
        self._name = name
        self._slot = slot
        self._board = board
        self._failures: list[str] = []
        self._stop = asyncio.Event()
        self._job: asyncio.Task[None] | None = None
        listen_for_failures(self._failures)

    async def serve(self) -> None:
        """Do what stdin says until it ends."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            order = orjson.loads(line)
            if order["do"] == "run":
                self._stop.clear()
                self._job = loop.create_task(self._run(order))
            elif order["do"] == "stop":
                self._stop.set()
            elif order["do"] == "block":
                time.sleep(order["seconds"])  # noqa: ASYNC251 -- a program that blocks its own loop is the fault

    async def _run(self, order: dict[str, Any]) -> None:
        self._failures.clear()
        try:
            facts = await (self._flood(order) if order.get("flood") else self._load(order))
        except Exception:  # noqa: BLE001 -- told to the driver
            self._failures.append(traceback.format_exc())
            facts = {}
        gc.collect()  # so that whatever was never awaited or retrieved says so now
        await asyncio.sleep(0)
        say({"is": "done", "failures": self._failures, **facts})

    async def _load(self, order: dict[str, Any]) -> dict[str, Any]:
        from .gates import scopes_of
        from .workload import Client, Shared

        recorder = Recorder(self._name, Path(order["file"]))
        board, slot = self._board, self._slot
        shared = Shared(recorder, order["origin"], mix=order["mix"] or KINDS, timeout=order["timeout"])
        tokens = Tokens(Path(order["tokens"]), shared)
        shared.publish = tokens.publish

        def on_good(policy: str, start: int) -> None:
            board[slot, GOOD[policy]] = start

        shared.on_good = on_good
        shared.failures = self._failures
        scopes = scopes_of(order, shared.on_event)
        await scopes["reject"].open()
        say({"is": "ready"})
        clients = [
            asyncio.create_task(
                Client(
                    f"{self._name}-{policy[0]}{n}",
                    policy,
                    dedup,
                    shared,
                    random.Random(f"{order['seed']}-{self._slot}-{policy}-{n}"),
                ).run()
            )
            for policy, dedup in scopes.items()
            for n in range(CLIENTS)
        ]
        reading = asyncio.create_task(tokens.follow())
        await self._stop.wait()
        shared.stopped = True
        hangs = await end(clients, self._failures)
        if order["audited"]:
            looking = [
                asyncio.create_task(
                    Client(
                        f"{self._name}-look{n}", policy, scopes[policy], shared, random.Random()
                    ).look_again(*rest)
                )
                for n, (policy, *rest) in enumerate(shared.given_up[-LOOKED_AT:])
            ]
            hangs += await end(looking, self._failures) if looking else []
        hangs += await close(scopes["reject"])
        reading.cancel()
        recorder.answered(recorder.ask(CLOSED, ""))
        recorder.close()
        board[slot, OPERATIONS] += 1
        return {"hangs": hangs, "events": dict(shared.events)}

    async def _flood(self, order: dict[str, Any]) -> dict[str, Any]:
        from .gates import scopes_of
        from .outage import flood

        scopes = scopes_of(order, lambda event: None)
        await scopes["reject"].open()
        say({"is": "ready"})
        counts = await flood(scopes[order["flood"]], self._stop)
        hangs = await close(scopes["reject"])
        return {"hangs": hangs, "counts": counts}


class Tokens:
    """The file over which processes hand each other tokens: a line each, appended whole."""

    def __init__(self, path: Path, shared: Any) -> None:
        self._file = path.open("a+b", buffering=0)
        self._shared = shared
        self._at = 0

    def publish(self, policy: str, token: str) -> None:
        self._file.write(f"{policy} {token}\n".encode())

    async def follow(self) -> None:
        """Learn what others issue, until cancelled."""
        with self._file as file:
            while True:
                file.seek(self._at)
                lines = file.read().split(b"\n")
                for line in lines[:-1]:
                    self._at += len(line) + 1
                    policy, token = line.decode().split(" ")
                    self._shared.learn(policy, token)
                await asyncio.sleep(0.01)


async def end(clients: list[asyncio.Task[None]], failures: list[str]) -> list[str]:
    """Wait for the clients to end their steps; returns where those are that do not."""
    _, stuck = await asyncio.wait(clients, timeout=PATIENCE)
    hangs = [f"hangs in {task.get_stack(limit=1)}" for task in stuck]
    for task in stuck:
        task.cancel()
    outcomes = await asyncio.gather(*clients, return_exceptions=True)
    failures += [
        "".join(traceback.format_exception(item)) for item in outcomes if isinstance(item, Exception)
    ]
    return hangs


async def close(dedup: Any) -> list[str]:
    """Close; returns a hang where that takes too long."""
    try:
        async with asyncio.timeout(PATIENCE):
            await dedup.aclose()
    except TimeoutError:
        return ["hangs in aclose()"]
    return []


def listen_for_failures(failures: list[str]) -> None:
    """Collect what nobody catches: the loop's exception handler, warnings, logged errors, unraisables."""

    def on_loop(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        text = "".join(traceback.format_exception(error)) if error else ""
        failures.append(f"event loop: {context.get('message')}: {context.get('future')}\n{text}")

    def on_warning(message: Any, category: Any, filename: str, lineno: int, *_: Any) -> None:
        failures.append(f"warning: {category.__name__}: {message} ({filename}:{lineno})")

    class OnLog(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            failures.append(f"logged: {self.format(record)}")

    asyncio.get_running_loop().set_exception_handler(on_loop)
    warnings.simplefilter("always")
    warnings.showwarning = on_warning
    sys.unraisablehook = lambda found: failures.append(f"unraisable: {found.exc_value!r} in {found.object!r}")
    logging.getLogger().addHandler(OnLog(logging.ERROR))


def say(answer: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):  # the driver is gone, and so shall we be
        sys.stdout.buffer.write(orjson.dumps(answer) + b"\n")
        sys.stdout.buffer.flush()


def main() -> None:
    """`python -m tests.chaos.worker NAME SLOT BOARD LOOP`."""
    name, slot, board_path, kind = sys.argv[1:]
    board = Board(Path(board_path))
    skew_clock(board, int(slot))

    async def serve() -> None:
        await Worker(name, int(slot), board).serve()

    if kind == "uvloop":
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve())
    else:
        asyncio.run(serve())


if __name__ == "__main__":
    main()
