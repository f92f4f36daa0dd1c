"""A separate process, to measure its memory or count its winners: ``python -m bench.worker`` (internal).

The parent gives a `Task` as JSON in the argument. The worker prints ``ready`` when it is connected, and waits for a
line on its standard input, so that several workers start together; it answers with one line of JSON.
"""

import asyncio
import gc
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import psutil  # type: ignore[import-untyped] # ships no types
import uvloop

from bench.contest import TIMEOUT, Ops, Setting, collector, drive, fresh_keys, ours
from bench.server import flush

CHUNK = 100_000  # claims between two readings of the memory
WARM_UP = 7  # chunks; until then the allocator is still finding its size
LEFTOVERS = ("Task", "Future", "TimerHandle", "Handle", "Claim", "coroutine")
RINGING = TIMEOUT + 1.0  # seconds: the timer for the deadline of the last claims has rung by then
LINE_LIMIT = 4 * 1024 * 1024  # bytes of an answer
WORKER_LIMIT = 300.0  # seconds


@dataclass(frozen=True, slots=True)
class Task:
    """A worker's task: `role` is a key of ROLES."""

    role: str
    url: str
    namespace: str
    count: int
    callers: int = 1000
    shared: str = ""  # prefix of the keys that every process claims
    uvloop: bool = True  # otherwise asyncio's own loop


async def claims(task: Task) -> dict[str, Any]:
    """Claim `count` keys; return the times, the CPU in seconds, the loop, and which of the shared keys were won."""
    keys = _shared_keys(task) if task.shared else fresh_keys(task.namespace, task.count)
    async with ours(Setting(task.url, task.namespace, task.callers)) as ops:
        await drive(ops, "claim", fresh_keys(task.namespace, 2 * task.callers), task.callers)  # warm-up
        await _signal()
        with collector(tuned=True):
            cpu, began = time.process_time(), time.monotonic()  # one clock for all processes
            won = await _race(ops, keys, task.callers) if task.shared else b""
            if not task.shared:
                await drive(ops, "claim", keys, task.callers)
            ended, cpu = time.monotonic(), time.process_time() - cpu
            loop = type(asyncio.get_running_loop()).__module__
            return {"began": began, "ended": ended, "cpu": cpu, "won": won.hex(), "loop": loop}


def _shared_keys(task: Task) -> list[str]:
    """Return the same keys in every process, each in another order: else the first process wins all of them."""
    keys = [f"{task.shared}-{i}" for i in range(task.count)]
    random.shuffle(keys)
    return keys


async def _race(ops: Ops, keys: Sequence[str], callers: int) -> bytearray:
    """Claim the keys; return a byte for each, which says whether it was won, at the place of the key's number."""
    won, source = bytearray(len(keys)), iter(keys)

    async def caller() -> None:
        for key in source:
            won[int(key.rpartition("-")[2])] = ops.won(await ops.claim(key)) if ops.claim else 0

    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(caller())
    return won


async def soak(task: Task) -> dict[str, Any]:
    """Claim on and on; return the process's memory on the way, and the objects that are left at the end."""
    at_first, sizes = _census(), []
    async with ours(Setting(task.url, task.namespace, task.callers)) as ops:
        for _ in range(WARM_UP):
            await _soak_chunk(ops, task)
        await asyncio.sleep(RINGING)
        while_open, began = _census(), time.monotonic()
        for _ in range(task.count // CHUNK):
            await _soak_chunk(ops, task)
            sizes.append(psutil.Process().memory_info().rss)
        seconds = time.monotonic() - began
        await asyncio.sleep(RINGING)
        left = _census() - while_open
    await asyncio.sleep(0)  # closed transports end in the loop's next turn
    left += _census() - at_first
    return {"sizes": sizes, "left": dict(left), "seconds": seconds}


async def _soak_chunk(ops: Ops, task: Task) -> None:
    await drive(ops, "claim", fresh_keys(task.namespace, CHUNK), task.callers)
    await flush(task.url)


def _census() -> "Counter[str]":
    gc.collect()
    return Counter(name for each in gc.get_objects() if (name := type(each).__name__) in LEFTOVERS)


async def _signal() -> None:
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)


ROLES = {"claims": claims, "soak": soak}


async def employ(*tasks: Task, pure: bool = False) -> list[dict[str, Any]]:
    """Run a worker for each task; all start at the same moment, and all are ended at the end.

    `pure`: run the checkout's package, which is not compiled.
    """
    workers = [await _start(task, pure) for task in tasks]
    try:
        async with asyncio.timeout(WORKER_LIMIT):
            await asyncio.gather(*(_ready(worker) for worker in workers))
            return await asyncio.gather(*(_answer(worker) for worker in workers))
    finally:
        for worker in workers:
            if worker.returncode is None:
                worker.kill()
            await worker.wait()


async def _start(task: Task, pure: bool) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    root = Path(__file__).parent.parent  # where `bench` is importable
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.worker", orjson.dumps(asdict(task)).decode()),
        stdin=pipe,
        stdout=pipe,
        limit=LINE_LIMIT,
        cwd=root,
        env=os.environ | ({"PYTHONPATH": str(root)} if pure else {}),
    )


async def _ready(worker: asyncio.subprocess.Process) -> None:
    assert worker.stdout
    if await worker.stdout.readline() != b"ready\n":
        raise RuntimeError("a worker failed; its error is printed above")


async def _answer(worker: asyncio.subprocess.Process) -> dict[str, Any]:
    assert worker.stdin
    assert worker.stdout
    worker.stdin.write(b"go\n")
    await worker.stdin.drain()
    answer: dict[str, Any] = orjson.loads(await worker.stdout.readline() or b"{}")
    return answer


async def main(task: Task) -> None:
    """Do the task and print the result."""
    if task.role == "soak":
        await _signal()
    print(orjson.dumps(await ROLES[task.role](task)).decode(), flush=True)


if __name__ == "__main__":
    asked = Task(**orjson.loads(sys.argv[1]))
    (uvloop.run if asked.uvloop else asyncio.run)(main(asked))
