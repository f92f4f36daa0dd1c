"""Two rows that are played in turns, the second held against the first: for what has its own baseline each."""

import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from statistics import median

import orjson

from bench.load import Load
from bench.peers import output
from fastdedup.bench import Plan, Row, reason

ABOVE = "the row above"  # the baseline of every second row
STRETCH = 2  # a turn here takes so many of the plan's: programs need longer to start than our own callers
GENERATOR = "bench/load.py"

Figures = Mapping[str, float]
Turn = Callable[[], Awaitable[Figures]]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two rows: the second is held against the first by its figure `main`."""

    names: tuple[str, str]
    turns: tuple[Turn, Turn]
    note: str
    main: str = "rate"


MakePair = Callable[[], Awaitable[Pair]]


async def play_pairs(
    plan: Plan, table: str, pairs: Iterable[tuple[tuple[str, str], MakePair]], *, times: int = 1
) -> list[Row]:
    """Play pair after pair, of which each is its names, and what makes it: that may fail, as any turn may.

    `times` as many rounds as the plan has, where the difference sought is small.
    """
    plan = replace(plan, rounds=times * plan.rounds)
    return [row for names, make in pairs for row in await play(plan, table, names, make)]


async def play(plan: Plan, table: str, names: tuple[str, str], make: MakePair) -> list[Row]:
    """Play a pair's turns, the first one first in every other round; one that fails is two rows that say why."""
    found: tuple[list[Figures], list[Figures]] = ([], [])
    told = 0
    try:
        pair = await make()
        for number in range(plan.rounds):
            for i in (number % 2, 1 - number % 2):
                plan.on_turn(f"{table}: {names[i]}")
                told += 1
                await clean(plan)
                found[i].append(await pair.turns[i]())
    except Exception as error:  # noqa: BLE001 -- a failure of one pair is its rows' note
        for _ in range(2 * plan.rounds - told):
            plan.on_turn(f"{table}: {names[0]}")
        return [Row(name, note=f"n/a: {reason(error)}") for name in names]
    return held_against(pair, *found)


async def clean(plan: Plan) -> None:
    """Empty the Redis, where it is ours."""
    if plan.clean:
        await plan.clean()


async def generate(load: Load) -> dict[str, float]:
    """Run the load generator, in a process of its own."""
    command = [sys.executable, "-m", "bench.load", orjson.dumps(asdict(load)).decode()]
    answer: dict[str, float] = orjson.loads(await output(command))
    return answer


def held_against(pair: Pair, firsts: list[Figures], seconds: list[Figures]) -> list[Row]:
    """The medians of two rows; the second's ratio, and the p99 that it adds, are medians of the rounds'."""
    first, second = (
        {name: median(each[name] for each in some) for name in some[0]} for some in (firsts, seconds)
    )
    rounds = list(zip(firsts, seconds, strict=True))
    ratio = median(theirs[pair.main] / base[pair.main] for base, theirs in rounds)
    if pair.main == "p99_ms":
        second["p99_added_us"] = median(1000 * (theirs["p99_ms"] - base["p99_ms"]) for base, theirs in rounds)
    names = pair.names
    return [Row(names[0], first, note=pair.note), Row(names[1], second, {ABOVE: ratio}, note=pair.note)]
