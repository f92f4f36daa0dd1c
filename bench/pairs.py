"""Pairs of rows that take turns: the second row is compared with the first, which is its own baseline."""

import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from statistics import median

import orjson

from bench.contest import Plan, Row, reason
from bench.load import Load
from bench.peers import output

ABOVE = "the row above"  # the baseline of every second row
STRETCH = (
    2  # a turn here lasts this many turns of the plan: programs need longer to start than our own callers
)
GENERATOR = "bench/load.py"

Figures = Mapping[str, float]
Turn = Callable[[], Awaitable[Figures]]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two rows: the second is compared with the first by the figure `main`, and by the figures in `also`."""

    names: tuple[str, str]
    turns: tuple[Turn, Turn]
    note: str
    main: str = "rate"
    also: Mapping[str, str] = field(default_factory=dict)  # for each figure the name of its ratio


MakePair = Callable[[], Awaitable[Pair]]


async def play_pairs(
    plan: Plan, table: str, pairs: Iterable[tuple[tuple[str, str], MakePair]], *, times: int = 1
) -> list[Row]:
    """Play pair after pair. Each pair is given by its names and the function that makes it, which may fail.

    `times`: a factor for the plan's rounds, where the expected difference is small.
    """
    plan = replace(plan, rounds=times * plan.rounds)
    return [row for names, make in pairs for row in await play(plan, table, names, make)]


async def play(plan: Plan, table: str, names: tuple[str, str], make: MakePair) -> list[Row]:
    """Play a pair's turns; the row that begins changes in each round. A pair that fails is two rows that say why."""
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
        return held_against(pair, *found)
    except Exception as error:  # noqa: BLE001 -- a pair's failure becomes the note of its rows
        for _ in range(2 * plan.rounds - told):
            plan.on_turn(f"{table}: {names[0]}")
        return [Row(name, note=f"n/a: {reason(error)}") for name in names]


async def clean(plan: Plan) -> None:
    """Empty the Redis if it is the run's own."""
    if plan.clean:
        await plan.clean()


async def generate(load: Load) -> dict[str, float]:
    """Run the load generator, in a process of its own."""
    command = [sys.executable, "-m", "bench.load", orjson.dumps(asdict(load)).decode()]
    answer: dict[str, float] = orjson.loads(await output(command))
    return answer


def held_against(pair: Pair, firsts: list[Figures], seconds: list[Figures]) -> list[Row]:
    """Return both rows' medians; the second row's ratios, and the p99 that it adds, are medians over the rounds."""
    first, second = (
        {name: median(each[name] for each in some) for name in some[0]} for some in (firsts, seconds)
    )
    rounds = list(zip(firsts, seconds, strict=True))
    ratios = {
        name: median(theirs[figure] / base[figure] for base, theirs in rounds)
        for figure, name in {pair.main: ABOVE, **pair.also}.items()
    }
    if pair.main == "p99_ms":
        second["p99_added_us"] = median(1000 * (theirs["p99_ms"] - base["p99_ms"]) for base, theirs in rounds)
    names = pair.names
    return [Row(names[0], first, note=pair.note), Row(names[1], second, ratios, note=pair.note)]
