"""Storms of duplicates: all callers claim the same few keys, which are settled or absent."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

from redis.asyncio import Redis
from redis.asyncio.client import Monitor

from bench.contest import BASELINE, HOT, Ops, Row, Scenario, Table, contest, result_of, turns
from bench.peers import REPLAYING
from bench.run import Run
from bench.server import flush
from fastdedup.gateway import Dedup

CALLERS = 1000
SETTLED_KEYS = 100
DUPLICATES = 0.95
SEED = 1848
WAIT = 5.0  # seconds
STOP = "that-is-all"  # the command after which MONITOR is no longer read

Visit = Callable[[Dedup, str], Awaitable[bool]]


async def settle(ops: Ops, keys: list[str]) -> list[str]:
    """Settle a hundred keys, and return a turn's keys: 95 % of them are settled keys."""
    hot = [f"{key}{HOT}" for key in keys[:SETTLED_KEYS]]
    if ops.cycle:
        await asyncio.gather(*map(ops.cycle, hot))
    chance = random.Random(SEED)
    return [chance.choice(hot) if chance.random() < DUPLICATES else key for key in keys]


STORM = Scenario(
    "storm", "A storm: 95 % of the claims for 100 settled keys, 1000 callers", "replay", CALLERS, deal=settle
)


def storm_steps(run: Run) -> int:
    return turns(STORM, REPLAYING, run.plan.rounds)


async def storm(run: Run) -> Table:
    notes = (
        "Every replay is compared with its key's first result.",
        "idempotency-kit and idemkit also complete the 5 % that are first: a claim alone replays nothing there.",
        "idemkit has its local cache of results, as fastdedup has its cache of known duplicates.",
    )
    return replace(await contest(run.plan, STORM, REPLAYING, (BASELINE,)), notes=notes)


def absent_steps(run: Run) -> int:
    return len(VISITS)


async def absent(run: Run) -> Table:
    """Count the commands of a crowd that claims one absent key."""
    notes = (
        "`sent` counts the commands that MONITOR saw our client send; `by scripts`, what they ran inside Redis; "
        "`writes`, the changes that Redis made to its data. Connected and with scripts loaded beforehand.",
    )
    rows = [await _crowd(run, name, visit) for name, visit in VISITS.items()]
    return Table("absent", f"{CALLERS} callers claim one absent key", "sent", tuple(rows), notes=notes)


async def _crowd(run: Run, name: str, visit: Visit) -> Row:
    run.plan.on_turn(f"one absent key: {name}")
    await flush(run.plan.url)
    gate = Dedup(run.plan.url, namespace=f"{run.plan.namespace}-absent", ttl=60.0, timeout=5.0)
    # MONITOR has a client of its own: on `client` it would take the connection, and the new one would be counted.
    async with gate, Redis.from_url(run.plan.url) as client, Redis.from_url(run.plan.url) as ear:
        # This connects and loads the scripts; one of the two visits may have to wait, and subscribes.
        await asyncio.gather(*[visit(gate, f"{name}, warm-up") for _ in range(2)])
        keys, writes = await client.dbsize(), await _writes(client)
        async with ear.monitor() as monitor:
            winners = sum(await asyncio.gather(*(visit(gate, name) for _ in range(CALLERS))))
            await client.echo(STOP)
            sent, by_scripts = await _heard(monitor)
        figures = {
            "sent": sent.total(),
            "by_scripts": by_scripts,
            "writes": await _writes(client) - writes,
            "keys": await client.dbsize() - keys,
            "winners": winners,
        }
    return Row(name, figures, note=", ".join(f"{count} {command}" for command, count in sent.items()))


async def _heard(monitor: Monitor) -> tuple[Counter[str], int]:
    """Return the commands that clients sent, and the number of commands that their scripts ran."""
    sent: Counter[str] = Counter()
    by_scripts = 0
    async for heard in monitor.listen():
        if STOP in heard["command"]:
            break
        if heard["client_type"] == "lua":
            by_scripts += 1
        else:
            sent[heard["command"].partition(" ")[0]] += 1
    return sent, by_scripts


async def _writes(client: Redis) -> int:
    return int((await client.info("persistence"))["rdb_changes_since_last_save"])


async def _claim(gate: Dedup, key: str) -> bool:
    return (await gate.claim(key)).acquired is True


async def _claim_and_wait(gate: Dedup, key: str) -> bool:
    claim = await gate.claim(key, wait=WAIT)
    if claim.acquired:
        await claim.complete(result_of(key))
    elif claim.result != result_of(key):
        raise AssertionError(f"{claim.outcome} with {claim.result!r} instead of the first result")
    return claim.acquired is True


VISITS: dict[str, Visit] = {
    "they are told `in_progress`": _claim,
    "they wait for the result": _claim_and_wait,
}
