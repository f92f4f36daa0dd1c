"""docs/sizing.md: its formula is within 10 % of what a real server takes, and its table is the formula's."""

from __future__ import annotations

import contextlib
import re
import sys

import pytest
import redis
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from examples import sizing
from fastdedup import Dedup

from ..integrations.desk import behind
from ..servers import RedisServer
from ..sql_pages.pages import Page

PAGE = Page("sizing.md")
COPIES = 8_000
COPY = """
local value = redis.call('GET', KEYS[1])
for i = 1, tonumber(ARGV[1]) do redis.call('SET', KEYS[2] .. string.format(ARGV[2], i), value, 'PX', 60000) end
"""


def test_its_plan_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sizing", sizing)
    (block,) = PAGE.all_blocks("python")
    exec(compile(block, "docs/sizing.md", "exec"), {})


@pytest.mark.parametrize(
    ("key", "result", "fingerprint"), [(8, 0, False), (36, 0, True), (36, 100, True), (20, 1_000, False)]
)
async def test_the_formula_is_within_a_tenth_of_measured(
    redis_server: RedisServer, redis_url: str, key: int, result: int, fingerprint: bool
) -> None:
    """One record is a real one; the script makes the others in the same way as the claim's script does."""
    first = "k" * key
    async with Dedup(redis_url, namespace="sizing") as dedup:
        claim = await dedup.claim(first, fingerprint="a body" if fingerprint else None)
        await claim.complete("r" * (result - 2) if result else None)
        with contextlib.closing(redis.Redis.from_url(redis_url)) as raw:
            raw.eval(
                COPY, 2, f"sizing:={first}", "sizing:=", 1, f"%0{key}d"
            )  # the script itself is in memory now
            before = raw.info("memory")["used_memory"]
            raw.eval(COPY, 2, f"sizing:={first}", "sizing:=", COPIES, f"%0{key}d")
            grown = raw.info("memory")["used_memory"] - before
            raw.flushdb()
    told = sizing.redis_bytes(COPIES, namespace="sizing", key=key, result=result, fingerprint=fingerprint)
    assert told == pytest.approx(grown, rel=0.1)


@pytest.mark.parametrize("body", [25, 200, 2_000])
async def test_web_records_are_within_a_tenth_of_measured(redis_url: str, body: int) -> None:
    """The first record is of a real response; the others are its copies, under keys that are as long."""

    async def answer(request: Request) -> Response:
        return Response(b"r" * body, media_type="application/json")

    shop = Starlette(routes=[Route("/orders", answer, methods=["POST"])])
    dedup = Dedup(redis_url, namespace="sizing")
    async with behind(dedup, shop, routes=["/orders"]) as client:
        assert (await client.post("http://shop/orders", headers={"idempotency-key": "k" * 36})).is_success
        with contextlib.closing(redis.Redis.from_url(redis_url)) as raw:
            (first,) = raw.scan_iter("sizing:http:*")
            copies = first[:-8]
            raw.eval(COPY, 2, first, copies, 1, "%08d")
            before = raw.info("memory")["used_memory"]
            raw.eval(COPY, 2, first, copies, COPIES, "%08d")
            grown = raw.info("memory")["used_memory"] - before
            assert sizing.mean_bytes(redis_url, "sizing:http") == raw.memory_usage(first)
            raw.flushdb()
    told = sizing.web_bytes(COPIES, namespace="sizing", body=body)
    assert told == pytest.approx(grown, rel=0.1)


def test_its_table_is_the_formula_s() -> None:
    rows = re.findall(
        r"^\| (.+) \| ([\d,]+) \| ([\d.]+) GiB \|$", "".join(PAGE.sections.values()), re.MULTILINE
    )
    kept = [(0, False), (21, False), (100, False), (1_000, True)]
    for (_, bytes_each, gibibytes), (result, fingerprint) in zip(rows, kept, strict=True):
        told = sizing.redis_bytes(
            10_000_000, namespace="shop", key=36, result=result, fingerprint=fingerprint
        )
        assert (round(told / 1e7), round(told / 2**30, 1)) == (
            int(bytes_each.replace(",", "")),
            float(gibibytes),
        )


async def test_a_trial_of_a_ledger_is_within_a_tenth_of_the_plan(redis_url: str) -> None:
    """300,000 ids in a ledger of 400,000: 15 bytes each, as the page plans for a small one."""
    async with Dedup(redis_url, namespace="sizing") as dedup:
        ledger = dedup.ledger("trial", window=3600.0, capacity=400_000)
        await ledger.open()
        with contextlib.closing(redis.Redis.from_url(redis_url)) as raw:
            before = raw.info("memory")["used_memory"]
            for start in range(0, 300_000, 10_000):
                await ledger.first_many(range(start, start + 10_000))
            grown = raw.info("memory")["used_memory"] - before
            raw.flushdb()
    assert grown / 300_000 == pytest.approx(15, rel=0.1)
