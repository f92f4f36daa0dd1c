"""Guarantee 1 across processes: a real race, on a real Redis."""

from __future__ import annotations

import subprocess
import sys

import orjson
import redis

from ..servers import RedisServer

PROCESSES = 4
KEYS = 300

RACER = """
import asyncio, sys, orjson, redis.asyncio
from fastdedup import Dedup

async def main(url, name, keys):
    won = []
    async with Dedup(url, namespace="t", timeout=20.0) as dedup:
        gate = redis.asyncio.Redis.from_url(url)
        await gate.rpush("forever-ready", name)
        await gate.blpop("forever-go")  # all start together
        await gate.aclose()

        async def click(n):
            async with dedup.claim(f"key-{n}", wait=10.0) as claim:
                if claim.acquired:
                    won.append([n, claim.fence])
                    await claim.complete({"by": name})
                return claim.result["by"] if not claim.acquired else name

        answers = await asyncio.gather(*(click(n) for n in range(keys)))
    sys.stdout.buffer.write(orjson.dumps({"name": name, "won": won, "answers": answers}))

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def test_four_processes_race_and_each_key_has_one_winner(redis_url: str, redis_server: RedisServer) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, redis_url, f"p{n}", str(KEYS)],
            stdout=subprocess.PIPE,
        )
        for n in range(PROCESSES)
    ]
    with redis_server.client() as raw:
        for _ in racers:
            assert raw.blpop("forever-ready", timeout=30)
        raw.rpush("forever-go", *range(PROCESSES))
        outputs = [orjson.loads(racer.communicate(timeout=60)[0]) for racer in racers]
        assert_one_winner_each(outputs)
        raw.delete("forever-ready", "forever-go")
        assert isinstance(raw, redis.Redis)


def assert_one_winner_each(outputs: list[dict[str, object]]) -> None:
    winners: dict[int, str] = {}
    for output in outputs:
        for key, _fence in output["won"]:  # type: ignore[attr-defined]
            assert key not in winners, f"key {key} has two winners"
            winners[key] = str(output["name"])
    assert sorted(winners) == list(range(KEYS))
    for output in outputs:
        assert output["answers"] == [winners[key] for key in range(KEYS)], "everyone gets the first result"
