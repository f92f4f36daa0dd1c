"""docs/recipes/consumer.md: the stored counts outlast consumers that are killed."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from ..sql_pages.pages import Page

PAGE = Page("recipes/consumer.md")
URL = "redis://localhost:6379/0"
DEFINITIONS = [block for block in PAGE.all_blocks("python") if "asyncio.run(" not in block]
KILLED = """
import asyncio, os, signal

async def dies(entry):
    if entry.fields[b"amount"] == b"poison":
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with (
        Redis.from_url(URL) as redis,
        Dedup(URL, namespace="counts") as dedup,
        Consumer(redis, dedup, stream="payments", group="billing", key=field("id"), limit=1) as consumer,
    ):
        await consume_and_count(redis, consumer, dies)

asyncio.run(main())
"""


async def test_a_handler_that_kills_its_process_loses_no_count(redis_url: str, tmp_path: Path) -> None:
    """Each of two processes works on one message, is given it again, and dies of the next one."""
    program = tmp_path / "consumer.py"
    program.write_text("\n".join([*DEFINITIONS, KILLED]).replace(URL, redis_url), encoding="utf-8")
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile("\n".join(DEFINITIONS), PAGE.name, "exec"), names)
    async with Redis.from_url(redis_url) as redis:
        await redis.xgroup_create("payments", "billing", id="0", mkstream=True)
        try:
            for number in range(2):
                for name, amount in (("a", 1), ("a", 1), (f"poison-{number}", "poison")):
                    await redis.xadd("payments", {"id": f"{number}{name}", "amount": amount})
                process = await asyncio.to_thread(
                    subprocess.run, [sys.executable, str(program)], timeout=30.0
                )
                assert process.returncode == -signal.SIGKILL
            counted = {
                name: await names["total"](redis, name) for name in ("delivered", "first", "duplicate")
            }
            assert counted == {"delivered": 6, "first": 2, "duplicate": 2}
            assert await redis.hlen("counts:billing") == 2
        finally:
            await redis.delete("payments", "counts:billing")
