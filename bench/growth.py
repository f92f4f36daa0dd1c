"""The effects of growth: the rate while Redis fills with live keys, the client's memory claim after claim."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from redis.asyncio import Redis

from bench.contest import Ops, Row, Setting, Table, collector, drive, fresh_keys, ours
from bench.run import Run
from bench.server import flush, private_server
from bench.worker import CHUNK, Task, employ

CALLERS = 1000
FEW = 10_000
FEW_KEYS = "10,000 live keys"
SLICE = 50_000  # claims; before each slice the 10,000 live keys are made again, so that they stay 10,000
SLICES = 3  # in a round
PREFILL_CHUNK = 20_000  # keys that one script call makes; clients wait meanwhile
PREFILL_TTL = 86_400_000  # ms, so that no key expires during the measurement
DIGITS = 12
PREFILL = f"""
for i = ARGV[3], ARGV[4] do
  redis.call('SET', ARGV[1] .. string.format('%0{DIGITS}d', i), ARGV[2], 'PX', ARGV[5])
end
"""
GROWTH_NOTES = (
    "Two servers, one with 10,000 live keys and one that fills up, take turns slice by slice; a ratio is the "
    "median of the pairs.",
    "The live keys are copies of one of our own records, equal in size, made by a script inside Redis.",
)
SOAK_NOTES = (
    "A process of its own, with Python's own garbage collector settings, after a warm-up of 700,000 claims.",
    "Left behind: tasks, futures, timers, coroutines and claims alive six seconds after the last claim that were not "
    "alive before the first.",
)


@dataclass(slots=True)
class Side:
    """One of the two servers."""

    url: str
    ops: Ops
    client: Redis
    namespace: str
    filled: int = 0

    async def refill(self, count: int) -> None:
        """Empty the server, and make `count` live keys."""
        await flush(self.url)
        self.filled = 0
        await self.fill(count)

    async def fill(self, count: int) -> None:
        """Add live keys until there are `count`."""
        key, value = await self._sample()
        for first in range(self.filled + 1, count + 1, PREFILL_CHUNK):
            last = min(first + PREFILL_CHUNK - 1, count)
            # As long as a real key: the number replaces the key's last bytes.
            await self.client.eval(PREFILL, 0, key[:-DIGITS], value, first, last, PREFILL_TTL)
        if (live := await self.client.dbsize()) < count:
            raise RuntimeError(f"{live:,} live keys instead of {count:,}")
        self.filled = count

    async def slice(self) -> float:
        """Return the rate of fresh claims in one slice."""
        keys = fresh_keys(self.namespace, SLICE)
        with collector(tuned=True):
            return (await drive(self.ops, "claim", keys, CALLERS)).rate

    async def _sample(self) -> tuple[Any, Any]:
        """Return the key and the value of one of our live records."""
        known = {key async for key in self.client.scan_iter(count=1000)} if not self.filled else set()
        await drive(self.ops, "claim", fresh_keys(self.namespace, 1), 1)
        async for key in self.client.scan_iter(count=1000, _type="string"):
            value = await self.client.get(key)
            if key not in known and len(key) > DIGITS and value is not None:
                return key, value
        raise RuntimeError("cannot fill Redis: a claim has left no string to copy")


def growth_steps(run: Run) -> int:
    return len(_sizes(run)) * (1 + run.plan.rounds)


async def growth(run: Run) -> Table:
    sizes = _sizes(run)
    async with _side(run) as few, _side(run) as many:
        rows = [await _grown(run, few, many, size) for size in sizes]
    curve = tuple((size, row.ratios[FEW_KEYS]) for size, row in zip(sizes, rows, strict=True))
    curves = {"fastdedup": ((FEW, 1.0), *curve)}
    return Table(
        "growth", "Rate of fresh claims as live keys grow", "rate", tuple(rows), curves, GROWTH_NOTES
    )


async def _grown(run: Run, few: Side, many: Side, size: int) -> Row:
    run.plan.on_turn(f"growth: filling up to {size:,} keys")
    await many.fill(size)
    pairs = []
    for _ in range(run.plan.rounds):
        run.plan.on_turn(f"growth: {size:,} keys")
        for _ in range(SLICES):
            await few.refill(FEW)
            pairs.append((await few.slice(), await many.slice()))
    rate, base = median(pair[1] for pair in pairs), median(pair[0] for pair in pairs)
    ratio = median(many_rate / few_rate for few_rate, many_rate in pairs)
    return Row(f"{size:,} live keys", {"rate": rate, "beside_10000": base}, {FEW_KEYS: ratio})


@asynccontextmanager
async def _side(run: Run) -> AsyncIterator[Side]:
    with private_server() as url:
        async with ours(Setting(url, run.plan.namespace, CALLERS)) as ops, Redis.from_url(url) as client:
            side = Side(url, ops, client, run.plan.namespace)
            await side.slice()  # connects, loads the scripts
            await side.refill(FEW)
            yield side


def _sizes(run: Run) -> list[int]:
    return [size for size in (100_000, 1_000_000) if size <= run.live_keys / 10] + [run.live_keys]


def soak_steps(run: Run) -> int:
    return 1


async def soak(run: Run) -> Table:
    run.plan.on_turn(f"soak: {run.claims:,} claims")
    [answer] = await employ(Task("soak", run.plan.url, run.plan.namespace, run.claims))
    sizes, left = answer["sizes"], answer["left"]
    figures = {
        "claims": float(len(sizes) * CHUNK),
        "rss_mb": sizes[-1] / 1e6,
        "growth_pct": (sizes[-1] / sizes[0] - 1) * 100,
        "left_behind": float(sum(left.values())),
    }
    note = ", ".join(f"{count} {name}" for name, count in left.items())
    curves = {"fastdedup": tuple((float(i * CHUNK), size / 1e6) for i, size in enumerate(sizes, start=1))}
    row = Row("fastdedup", figures, note=note)
    return Table("soak", "Client memory, claim after claim", "growth_pct", (row,), curves, SOAK_NOTES)
