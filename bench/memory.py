"""The memory that a live record without payload takes in Redis."""

import asyncio
from dataclasses import replace

from redis.asyncio import Redis

from bench.contest import BASELINE, Contestant, Row, Setting, Table, drive, fresh_keys, reason
from bench.peers import KEEPING_RECORDS
from bench.run import Run
from bench.server import flush

CALLERS = 64
WARM_UP = 200  # claims, so that the server has its buffers and scripts before its memory is read
NAMESPACE = "shop"  # short, because it is a part of most contestants' keys
KEY_LENGTH = 36  # a UUID's
SETTLING = 0.7  # seconds
MAIN = "memory_usage"
NOTES = (
    f"A record is a claim that nobody has settled, of a key as long as a UUID, in the namespace {NAMESPACE!r}.",
    "MEMORY USAGE is the mean over every record. The growth of used_memory, divided by the number of records, "
    "also holds what MEMORY USAGE leaves out: their share of Redis's hash tables and of the table of expiries.",
    "redis-py's record is a one-byte value: no owner, no fence, no state.",
)


def memory_steps(run: Run) -> int:
    return len(KEEPING_RECORDS)


async def memory(run: Run) -> Table:
    rows = [await _row(run, each) for each in KEEPING_RECORDS]
    base = next((row for row in rows if row.contestant == BASELINE), None)
    if base and base.figures:
        rows = [_relative(row, base) for row in rows]
    return Table("memory", "Memory in Redis per live record, bytes", MAIN, tuple(rows), notes=NOTES)


def _relative(row: Row, base: Row) -> Row:
    if not row.figures:
        return row
    return replace(row, ratios={BASELINE: row.figures[MAIN] / base.figures[MAIN]})


async def _row(run: Run, contestant: Contestant) -> Row:
    run.plan.on_turn(f"memory: {contestant.name}")
    try:
        return Row(contestant.name, await _figures(run, contestant))
    except Exception as error:  # noqa: BLE001 # a peer may fail in any way; its row shows how
        return Row(contestant.name, note=f"n/a: {reason(error)}")


async def _figures(run: Run, contestant: Contestant) -> dict[str, float]:
    await _claim(run, contestant, WARM_UP)
    await flush(run.plan.url)
    async with Redis.from_url(run.plan.url) as client:
        # At both readings no other client is connected, so no connection's buffers are counted.
        before = await _used(client)
        await _claim(run, contestant, run.records)
        grown = await _used(client) - before
        keys = [key async for key in client.scan_iter(count=1000)]
        return {
            MAIN: await _mean_usage(client, keys),
            "used_memory": grown / len(keys),
            "keys": len(keys),
        }


async def _claim(run: Run, contestant: Contestant, count: int) -> None:
    setting = Setting(run.plan.url, NAMESPACE, CALLERS, contestant.widths[0], private=True)
    keys = [key.rjust(KEY_LENGTH, "0") for key in fresh_keys("", count)]
    async with contestant.connect(setting) as ops:
        await drive(ops, "claim", keys, CALLERS)


async def _used(client: Redis) -> int:
    # An idle server finishes moving to a larger hash table, and forgets closed connections' buffers.
    await asyncio.sleep(SETTLING)
    return int((await client.info("memory"))["used_memory"])


async def _mean_usage(client: Redis, keys: list[bytes]) -> float:
    async with client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.memory_usage(key, samples=0)
        return float(sum(await pipe.execute()) / len(keys))
