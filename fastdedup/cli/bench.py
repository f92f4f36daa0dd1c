"""`fastdedup bench`: fastdedup beside redis-py on your Redis. `cli.main` registers `COMMANDS`.

`compare` is the main path. Both contestants play a scenario in one process, in turns, so that noise affects both
alike: a figure is the median of its rounds, a ratio the median of the rounds' ratios. Compare the ratios, because
absolute figures differ between machines. `bench/` in the repository measures more contestants and scenarios.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import secrets
import time
from array import array
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from operator import attrgetter
from statistics import median
from typing import Any, NamedTuple

import click
import orjson
from redis import RedisError
from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis
from rich.box import ROUNDED
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ..checks import check_seconds
from ..gateway import Dedup
from .gate import gate_options, run
from .terminal import AnsweringCommand, bar_console, print_json

LEASE_MS = 30_000
GC_THRESHOLDS = (50_000, 20, 100)
HEADINGS = {  # of the figures, with their formats
    "rate": ("per second", ",.0f"),
    "cpu_us": ("CPU µs", ".1f"),
    "p50_ms": ("p50 ms", ".3f"),
    "p99_ms": ("p99 ms", ".3f"),
}
_MOST_KEYS = 100_000  # of a turn
_PROBE = 0.2  # the length of a warm-up, in turns
_NARROW = 32  # connections of redis-py, if the server refuses one for each caller
_TURN_LIMIT = 60.0  # seconds; a turn is meant to take about one second


class ClaimedTwiceError(Exception):
    """A fresh key was refused, so the figures of the run have no meaning."""


class Contestant(NamedTuple):
    """A connected contestant: its function to claim a key, and the check that its answer means "first"."""

    ask: Callable[[str], Any]
    won: Callable[[Any], bool]
    note: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of a run; a turn lasts `seconds`."""

    url: str = field(repr=False)
    rounds: int
    seconds: float
    namespace: str
    on_turn: Callable[[str], object] = lambda label: None


@dataclass(frozen=True, slots=True)
class Scenario:
    """One table. `main` names the figure whose ratio to redis-py is shown."""

    name: str
    title: str
    callers: int
    main: str = "rate"
    settle: bool = False  # also store a result
    latency: bool = False  # also a turn that records latencies: it is separate, because that costs time


@dataclass(frozen=True, slots=True)
class Row:
    """A contestant's figures, in the order of `HEADINGS`; without figures `note` has the reason."""

    contestant: str
    figures: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)  # by the baseline's name
    note: str = ""


SCENARIOS = (
    Scenario("fresh-1000", "Fresh claims, 1000 callers", 1000),
    Scenario("fresh-64", "Fresh claims, 64 callers", 64, latency=True),
    Scenario("alone", "One caller alone", 1, main="p50_ms", latency=True),
    Scenario("cycle-64", "Claim, then complete, 64 callers", 64, settle=True),
)


# The contestants


@asynccontextmanager
async def redis_py(plan: Plan, scenario: Scenario) -> AsyncIterator[Contestant]:
    """The baseline: `SET key value NX PX`, a call for each claim, with the number of connections that is fastest."""
    async with AsyncExitStack() as stack:
        width = scenario.callers
        client = Redis.from_pool(ConnectionPool.from_url(plan.url, max_connections=width))
        stack.push_async_callback(client.aclose)
        try:
            await asyncio.gather(*(client.ping() for _ in range(width)))
        except (OSError, RedisError):
            width = min(width, _NARROW)
            pool = BlockingConnectionPool.from_url(plan.url, max_connections=width, timeout=None)
            client = Redis.from_pool(pool)
            stack.push_async_callback(client.aclose)
        claim = partial(client.set, value=b"v", nx=True, px=LEASE_MS)

        async def cycle(key: str) -> bool:
            won = await claim(key)
            await client.set(key, orjson.dumps(f"paid {key}"), px=LEASE_MS)
            return bool(won)

        yield Contestant(cycle if scenario.settle else claim, bool, f"connections: {width}")


@asynccontextmanager
async def ours(plan: Plan, scenario: Scenario) -> AsyncIterator[Contestant]:
    """The gate with its defaults, except for a long deadline, and records that expire within minutes."""
    lease = LEASE_MS / 1000
    async with Dedup(plan.url, namespace=plan.namespace, lease=lease, ttl=60.0, timeout=5.0) as dedup:

        async def cycle(key: str) -> bool:
            claim = await dedup.claim(key)
            await claim.complete(f"paid {key}")
            return claim.acquired is True

        won = bool if scenario.settle else attrgetter("acquired")
        yield Contestant(cycle if scenario.settle else dedup.claim, won, "connections: 1")


BASELINE = "redis-py SET NX PX"
CONTESTANTS: dict[str, Callable[[Plan, Scenario], AbstractAsyncContextManager[Contestant]]] = {
    BASELINE: redis_py,
    "fastdedup": ours,
}


# The rounds


async def compare(plan: Plan, scenario: Scenario) -> tuple[Row, ...]:
    """Let both play one scenario. A contestant that fails gets a row without figures, but with the reason."""
    async with AsyncExitStack() as stack:
        players = [_Player(plan, scenario, name) for name in CONTESTANTS]
        for player in players:
            with player.surviving():
                await player.warm_up(stack)
        for number in range(plan.rounds):
            for player in players[:: -1 if number % 2 else 1]:  # the two take turns to begin a round
                with player.surviving():
                    await player.play()
        return tuple(player.row(players[0]) for player in players)


@dataclass(slots=True)
class _Player:
    """A contestant in a scenario, and its figures so far."""

    plan: Plan
    scenario: Scenario
    name: str
    contestant: Contestant = field(init=False)
    count: int = 0  # of the keys of a turn
    failure: str = ""
    rounds: list[dict[str, float]] = field(default_factory=list)  # the figures of each

    @contextlib.contextmanager
    def surviving(self) -> Iterator[None]:
        """Announce the player's next step, and note the reason if it fails."""
        self.plan.on_turn(f"{self.scenario.title}: {self.name}")
        try:
            yield
        except Exception as error:  # noqa: BLE001 # the row shows any error
            self.failure = self.failure or f"n/a: {reason(error)}"

    async def warm_up(self, stack: AsyncExitStack) -> None:
        """Connect, and set the size of a turn by the rate of a short one."""
        self.contestant = await stack.enter_async_context(CONTESTANTS[self.name](self.plan, self.scenario))
        self.count = max(self.scenario.callers, 500)
        for length in (_PROBE, 1.0):  # the first turn opens connections and loads scripts
            count = int((await self._turn())["rate"] * self.plan.seconds * length)
            self.count = max(self.scenario.callers, min(_MOST_KEYS, count))

    async def play(self) -> None:
        """Play one round, unless it failed before."""
        if not self.failure:
            rate = await self._turn()
            self.rounds.append(rate | (await self._turn(timed=True) if self.scenario.latency else {}))

    def row(self, baseline: _Player) -> Row:
        """Return the row: the medians of all rounds.

        A ratio is the median of the rounds' ratios, because a slow phase of the machine slows both turns of a round.
        """
        if self.failure:
            return Row(self.name, note=self.failure)
        main, theirs = self.scenario.main, [] if baseline.failure else baseline.rounds
        ratios = [mine[main] / base[main] for mine, base in zip(self.rounds, theirs, strict=False)]
        figures = {name: median(each[name] for each in self.rounds) for name in self.rounds[0]}
        return Row(self.name, figures, {BASELINE: median(ratios)} if ratios else {}, self.contestant.note)

    async def _turn(self, *, timed: bool = False) -> dict[str, float]:
        keys = fresh_keys(self.plan.namespace, self.count)  # made before the clock starts
        spent = array("q", bytes(8 * self.count)) if timed else None
        with collector(tuned=True):
            cpu, began = time.process_time(), time.perf_counter()
            caller = caller_of(*self.contestant[:2], enumerate(keys), spent)
            async with asyncio.timeout(_TURN_LIMIT), asyncio.TaskGroup() as group:
                for _ in range(self.scenario.callers):
                    group.create_task(caller())
            cpu, seconds = time.process_time() - cpu, time.perf_counter() - began
        if spent is None:
            return {"rate": self.count / seconds, "cpu_us": cpu / self.count * 1e6}
        ordered = sorted(spent)
        return {f"p{share}_ms": ordered[share * self.count // 100] / 1e6 for share in (50, 99)}


def caller_of(
    ask: Callable[[str], Any],
    won: Callable[[Any], bool],
    source: Iterator[tuple[int, str]],
    spent: array[int] | None,
) -> Callable[[], Coroutine[Any, Any, None]]:
    """Return the loop that each caller runs: one of two, so that it does no unnecessary work between claims."""
    now = time.perf_counter_ns

    async def plain() -> None:
        for _, key in source:
            if not won(await ask(key)):
                raise ClaimedTwiceError(key)

    async def timed() -> None:
        assert spent is not None
        for i, key in source:
            began = now()
            answer = await ask(key)
            spent[i] = now() - began
            if not won(answer):
                raise ClaimedTwiceError(key)

    return plain if spent is None else timed


def fresh_keys(namespace: str, count: int) -> list[str]:
    """Return unused keys, without a colon, which some libraries refuse."""
    salt = secrets.token_hex(5)  # with 2 bytes, one run in a hundred had the same salt twice
    return [f"{namespace}-{salt}-{i}" for i in range(count)]


@contextlib.contextmanager
def collector(*, tuned: bool) -> Iterator[None]:
    """Collect all garbage before a turn; if `tuned`, freeze the rest and let the collector run seldom.

    Objects that the process itself froze stay frozen, because all can only be unfrozen together.
    """
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.collect()
    if tuned:
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not frozen:
            gc.unfreeze()


def reason(error: BaseException) -> str:
    """Return an exception in one line, without URLs and paths, because results are published.

    For an exception group, return its first exception.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = " ".join("…" if "/" in word else word for word in str(error).split())
    return f"{type(error).__name__}: {text[:100]}".rstrip(": ")


# The command


@click.command(cls=AnsweringCommand)
@click.option(
    "--rounds",
    type=click.IntRange(1, 1_000),
    default=3,
    show_default=True,
    help="How many rounds; more rounds give steadier medians.",
)
@click.option(
    "--seconds",
    type=float,
    default=0.5,
    show_default=True,
    help="How long a turn takes, in seconds.",
)
@gate_options(namespace="bench", json="an array of tables")
def bench(rounds: int, seconds: float, url: str, namespace: str, as_json: bool) -> None:
    """Measure fastdedup and redis-py on your Redis. Compare the ratios: absolute figures differ between machines.

    Nothing is flushed or deleted. Every run has a new namespace, which begins with the given name; a turn leaves up
    to 100,000 keys there, which expire within two minutes. A row that could not be measured has the reason, and
    the command exits with 1.
    """
    seconds = check_seconds(seconds, "--seconds")  # click's ranges accept nan
    plan = Plan(url, rounds, seconds, namespace=f"{namespace}-{secrets.token_hex(3)}")
    played = run(_played(plan, quiet=as_json))
    if as_json:
        print_json(
            [
                {"scenario": scenario.name, "title": scenario.title, "rows": [asdict(row) for row in rows]}
                for scenario, rows in played
            ]
        )
    else:
        for scenario, rows in played:
            Console().print(_table(scenario.title, rows))
    failed = [(scenario.title, row) for scenario, rows in played for row in rows if not row.figures]
    for title, row in failed:
        click.echo(f"{title}: {row.contestant}: {row.note}", err=True)
    if failed:
        raise SystemExit(1)


async def _played(plan: Plan, *, quiet: bool) -> list[tuple[Scenario, tuple[Row, ...]]]:
    async with Dedup(plan.url, namespace=plan.namespace) as dedup:
        await dedup.get("here?")  # an outage is one error now, not one in each row
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=bar_console(quiet=quiet), disable=quiet) as progress:
        task = progress.add_task("", total=len(SCENARIOS) * len(CONTESTANTS) * (1 + plan.rounds))
        plan = replace(plan, on_turn=lambda label: progress.update(task, advance=1, description=label))
        return [(each, await compare(plan, each)) for each in SCENARIOS]


def _table(title: str, rows: Sequence[Row]) -> Table:
    table = Table(title=title, box=ROUNDED)
    table.add_column("")
    names = [name for name in HEADINGS if any(name in row.figures for row in rows)]
    for heading in (*(HEADINGS[name][0] for name in names), f"to {BASELINE}"):
        table.add_column(heading, justify="right")
    table.add_column("note")
    for row in rows:
        figures = [format(row.figures[name], HEADINGS[name][1]) if row.figures else "" for name in names]
        ratio = "".join(f"{each:.2f}" for each in row.ratios.values())
        table.add_row(*map(Text, (row.contestant, *figures, ratio, row.note)))
    return table


COMMANDS = (bench,)
