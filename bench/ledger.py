"""A ledger beside records and keys: what an id costs in time and in memory. Main paths: `ledger`, `ledger_memory`.

`ledger_windows.py` has the rest: right answers, resident memory and other clients over three windows.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from statistics import median
from typing import Any
from uuid import uuid4

from redis.asyncio import Redis

from bench.contest import Ops, Row, Setting, Table, collector, drive, our_dedup, ours, reason
from bench.run import Run
from bench.server import flush, private_server
from fastdedup import Dedup, Ledger

CALLERS = 1000
LISTS = 4  # callers of lists and pipelines
SMALL, LARGE = 64, 256  # ids of a list, and of a pipeline
WEEK = 7 * 86_400
SETTLING = 0.7  # seconds in which an idle server forgets the buffers of connections that are closed
PLANNED = 600_000_000  # ids of the calculated rows: 1,000 a second for 7 days
GIB = 2**30
CLAIMS = f"fastdedup's claims, {CALLERS} callers"
FIRST = f"Ledger.first, {CALLERS} callers"
FIRST_MANY = f"Ledger.first_many, lists of {LARGE}"
FIRST_FEW = f"Ledger.first_many, lists of {SMALL}"
SET_NX = f"SET NX EX, pipelines of {LARGE}"
SET_NX_FEW = f"SET NX EX, pipelines of {SMALL}"
SORTED_SET = f"ZADD NX, pipelines of {LARGE}"
SERVER = ", server CPU"  # follows a row's name where the ratio is of server CPU
EXACT, WIDE = "a ledger, exact (7 bytes)", "a ledger, wide (16 bytes)"
NARROW, NARROWEST = "a ledger, narrow (4 bytes)", "a ledger, narrow (3 bytes)"
DENSE = "a ledger, dense (integers)"
KEYS = "SET NX EX"
RECORDS = "fastdedup's records, completed"
SET = "a sorted set"
WIDTHS = {EXACT: 7, WIDE: 16, NARROW: 4, NARROWEST: 3}
LEDGERS = (*WIDTHS, DENSE)
CALCULATED = f"calculated: {PLANNED // 1_000_000} M ids in "
RATE_NOTES = (
    f"One client process. Ids are UUIDs. Lists and pipelines come from {LISTS} callers. Server CPU is process time "
    "of redis-server by INFO cpu, for each id.",
    "The ledger is exact and is planned for the ids of the whole run; before the first turn it holds half of them. "
    "The other rows have a server of their own, which is emptied before each turn.",
)
MEMORY_NOTES = (
    "The growth of used_memory for each id, of as many ids as the ledger is planned for; 36 bytes of text an id. "
    "The dense ledger has integers that follow each other.",
    "Calculated rows are not measured: they multiply the measured bytes by the ids.",
)

Figures = dict[str, float]
Turn = Callable[[Sequence[str]], Awaitable[Figures]]


def ids_of(number: int) -> list[str]:
    """Return fresh ids."""
    return [str(uuid4()) for _ in range(number)]


def gate(url: str, namespace: str) -> Dedup:
    """Return our gate, with a deadline that no turn reaches."""
    return our_dedup(Setting(url, namespace, CALLERS))


async def share(ids: Sequence[Any], size: int, ask: Callable[[tuple[Any, ...]], Awaitable[bool]]) -> None:
    """Let a few callers share the ids in lists. `ask`: answers whether each id of its list was new."""
    lists = iter([tuple(ids[at : at + size]) for at in range(0, len(ids), size)])

    async def caller() -> None:
        for each in lists:
            if not await ask(each):
                raise RuntimeError("an id that was never asked for was told to be a duplicate")

    async with asyncio.TaskGroup() as group:
        for _ in range(LISTS):
            group.create_task(caller())


async def remember(ledger: Ledger, ids: Sequence[str | int], size: int = LARGE, *, sure: bool = True) -> None:
    """Remember fresh ids by `first_many`. `sure`: the ledger is wide enough that none is told to be a duplicate."""

    async def ask(some: tuple[str | int, ...]) -> bool:
        return all(await ledger.first_many(some)) or not sure

    await share(ids, size, ask)


async def set_keys(client: Redis, ids: Sequence[str], size: int = LARGE, px: int = WEEK * 1000) -> None:
    """Remember fresh ids as keys."""

    async def ask(some: tuple[str, ...]) -> bool:
        pipe = client.pipeline(transaction=False)
        for each in some:
            pipe.set(f"t:{each}", b"", nx=True, px=px)
        return all(await pipe.execute())

    await share(ids, size, ask)


async def add_members(client: Redis, ids: Sequence[str], size: int = LARGE) -> None:
    """Remember fresh ids as members of a sorted set, whose scores are their times."""

    async def ask(some: tuple[str, ...]) -> bool:
        pipe = client.pipeline(transaction=False)
        for each in some:
            pipe.zadd("t", {each: time.time()}, nx=True)
        return all(await pipe.execute())

    await share(ids, size, ask)


# Rates


@dataclass(slots=True)
class _Side:
    """A server, and a client that asks it for its CPU."""

    url: str
    client: Redis

    async def measured(self, ids: Sequence[str], work: Callable[[], Awaitable[object]]) -> Figures:
        """Return the rate of some work, and what an id costs server and client."""
        with collector(tuned=True):
            server, client, began = await self._seconds(), time.process_time(), time.perf_counter()
            await work()
            took, client = time.perf_counter() - began, time.process_time() - client
            server = await self._seconds() - server
        number = len(ids)
        return {
            "rate": number / took,
            "server_us": server / number * 1e6,
            "client_us": client / number * 1e6,
        }

    async def _seconds(self) -> float:
        info = await self.client.info("cpu")
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


def ledger_steps(run: Run) -> int:
    return 7 * run.plan.rounds


async def ledger(run: Run) -> Table:
    """Let everybody take turns, and compare the medians. A failure is a row that says why."""
    try:
        with private_server() as url, private_server() as beside:
            async with _turns(run, url, beside) as turns:
                rows = await _played(run, turns)
    except Exception as error:  # noqa: BLE001 # its servers may fail in any way; the other tables stand
        rows = (Row(FIRST, note=f"n/a: {reason(error)}"),)
    return Table("ledger", "A ledger beside claims and keys: fresh ids", "rate", rows, notes=RATE_NOTES)


@asynccontextmanager
async def _turns(run: Run, url: str, beside: str) -> AsyncIterator[dict[str, Turn]]:
    """Yield each row's turn."""
    async with AsyncExitStack() as stack:
        ops = await stack.enter_async_context(ours(Setting(beside, "t", CALLERS)))
        dedup = await stack.enter_async_context(gate(url, "t"))
        book = dedup.ledger("ids", window=WEEK, capacity=run.ids)
        mine, theirs = [
            _Side(each, await stack.enter_async_context(Redis.from_url(each))) for each in (url, beside)
        ]
        await remember(book, ids_of(run.ids // 2))
        clients = theirs.client

        def turn(side: _Side, work: Callable[[Sequence[str]], Awaitable[object]]) -> Turn:
            async def play(ids: Sequence[str]) -> Figures:
                if side is theirs:
                    await flush(beside)
                return await side.measured(ids, lambda: work(ids))

            return play

        yield {
            CLAIMS: turn(theirs, lambda ids: drive(ops, "claim", ids, CALLERS)),
            FIRST: turn(mine, lambda ids: drive(Ops(book.first), "claim", ids, CALLERS)),
            FIRST_MANY: turn(mine, lambda ids: remember(book, ids)),
            FIRST_FEW: turn(mine, lambda ids: remember(book, ids, SMALL)),
            SET_NX: turn(theirs, lambda ids: set_keys(clients, ids)),
            SET_NX_FEW: turn(theirs, lambda ids: set_keys(clients, ids, SMALL)),
            SORTED_SET: turn(theirs, lambda ids: add_members(clients, ids)),
        }


async def _played(run: Run, turns: dict[str, Turn]) -> tuple[Row, ...]:
    """Play the rounds; each begins with another row."""
    ids = ids_of(1000)
    for play in turns.values():
        await play(ids)  # connects, loads the scripts
        ids = ids_of(1000)
    found: dict[str, list[Figures]] = {name: [] for name in turns}
    names = list(turns)
    size = run.ids // (6 * run.plan.rounds)  # three rows together fill the other half of the ledger
    for number in range(run.plan.rounds):
        shift = number % len(names)
        ids = ids_of(size)
        for name in names[shift:] + names[:shift]:
            run.plan.on_turn(f"ledger: {name}")
            fresh = ids_of(size) if name in (FIRST, FIRST_MANY, FIRST_FEW) else ids
            found[name].append(await turns[name](fresh))
    return tuple(_row(name, found) for name in names)


def _row(name: str, found: dict[str, list[Figures]]) -> Row:
    """Return a row's medians; a ratio is the median of the rounds' ratios."""
    figures = {each: median(turn[each] for turn in found[name]) for each in found[name][0]}
    base = SET_NX_FEW if name == FIRST_FEW else SET_NX

    def ratio(figure: str, other: str) -> float:
        rounds = zip(found[name], found[other], strict=True)
        return median(ours[figure] / theirs[figure] for ours, theirs in rounds)

    ratios = {CLAIMS: ratio("rate", CLAIMS), KEYS + SERVER: ratio("server_us", base)}
    return Row(name, figures, ratios)


# Memory


def ledger_memory_steps(run: Run) -> int:
    return len(LEDGERS) + 3


async def ledger_memory(run: Run) -> Table:
    """Measure the growth of used_memory by as many ids as the ledger is planned for."""
    rows = [await _weighed(run, name) for name in (*LEDGERS, RECORDS, KEYS, SET)]
    more = [calculated(row) for row in rows if row.figures]
    return Table(
        "ledger-memory", "Memory in Redis for each id", "bytes_an_id", (*rows, *more), notes=MEMORY_NOTES
    )


def calculated(row: Row) -> Row:
    """Return what so many ids take, by the bytes of one."""
    gib = row.figures["bytes_an_id"] * PLANNED / GIB
    return Row(CALCULATED + row.contestant, {"calculated_gib": gib}, note="calculated, not measured")


async def _weighed(run: Run, name: str) -> Row:
    run.plan.on_turn(f"ledger-memory: {name}")
    number = run.ids if name in LEDGERS else run.ids // 5
    try:
        with private_server() as url:
            async with Redis.from_url(url) as client:
                await _fill(url, name, ids_of(1000))  # the server then has its buffers and scripts
                await client.flushall()
                before = await _used(client)
                await _fill(url, name, ids_of(number))
                grown = await _used(client) - before
                return Row(name, {"bytes_an_id": grown / number, "ids": number})
    except Exception as error:  # noqa: BLE001 # its row says why
        return Row(name, note=f"n/a: {reason(error)}")


async def _fill(url: str, name: str, ids: Sequence[str]) -> None:
    """Remember ids in the row's way, over connections that are closed at the end."""
    if name in (KEYS, SET):
        async with Redis.from_url(url) as client:
            await (set_keys if name == KEYS else add_members)(client, ids)
        return
    async with gate(url, "t") as dedup:
        if name == RECORDS:
            await _complete(dedup, ids)
        elif name == DENSE:
            start = 10**9 - len(ids)  # the texts are not looked at
            book = dedup.ledger("ids", window=WEEK, capacity=len(ids), dense=True)
            await remember(book, range(start, start + len(ids)))
        else:
            width = WIDTHS[name]
            settings = {"window": WEEK, "capacity": len(ids), "exact": width >= 7, "width": width}
            await remember(dedup.ledger("ids", **settings), ids, sure=width >= 7)


async def _complete(dedup: Dedup, ids: Sequence[str]) -> None:
    """Claim and complete each id."""
    rest = count()

    async def caller() -> None:
        while (number := next(rest)) < len(ids):
            claim = await dedup.claim(ids[number])
            await claim.complete()

    async with asyncio.TaskGroup() as group:
        for _ in range(CALLERS):
            group.create_task(caller())


async def _used(client: Redis) -> int:
    await asyncio.sleep(SETTLING)
    return int((await client.info("memory"))["used_memory"])
