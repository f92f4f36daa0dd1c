"""asyncio's own event loop beside uvloop: each turn is a process that claims fresh keys. Main path: `loops`."""

from functools import partial

from bench.contest import Table
from bench.pairs import Figures, Pair, play_pairs
from bench.run import Run
from bench.worker import Task, employ

CALLERS = 1000
CLAIMS = 200_000  # of a turn, at most
TIMES = 2  # the factor of rounds: each turn is another process, and processes differ
LOOPS = ("asyncio's own loop", "uvloop")
CPU = "CPU of the row above"  # a ratio
NOTES = (
    f"{CALLERS} callers claim fresh keys. An event loop is a process's own, so each turn is a process of its own.",
    "CPU is the client's, for a claim.",
)


def loops_steps(run: Run) -> int:
    return 2 * TIMES * run.plan.rounds


async def loops(run: Run) -> Table:
    """Play the turns of both loops in alternation."""

    async def pair() -> Pair:
        turns = (partial(_turn, run, uvloop=False), partial(_turn, run, uvloop=True))
        return Pair(LOOPS, turns, "", also={"cpu_us": CPU})

    rows = await play_pairs(run.plan, "loops", [(LOOPS, pair)], times=TIMES)
    return Table("loops", "Event loops: fresh claims, 1000 callers", "rate", tuple(rows), notes=NOTES)


async def _turn(run: Run, *, uvloop: bool) -> Figures:
    count = min(run.plan.max_ops, CLAIMS)
    [answer] = await employ(Task("claims", run.plan.url, run.plan.namespace, count, CALLERS, uvloop=uvloop))
    return {"rate": count / (answer["ended"] - answer["began"]), "cpu_us": 1e6 * answer["cpu"] / count}
