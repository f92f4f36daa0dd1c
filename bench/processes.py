"""Several processes on one Redis: their rate together, and whether a winner is lost or doubled."""

from collections import Counter
from statistics import median
from typing import Any

from bench.contest import Row, Table
from bench.run import Run
from bench.worker import Task, employ

ONE, TWO, SAME = "1 process", "2 processes", "2 processes, the same keys"
SHARED_KEYS = 100_000
MAX_CLAIMS = 200_000  # for one process in one round
NOTES = (
    "1000 callers in each process, fresh keys of its own; together from the first start to the last end.",
    "Then both claim the same keys at the same time: a key must have exactly one winner.",
)


def processes_steps(run: Run) -> int:
    return 2 * run.plan.rounds + 1


async def processes(run: Run) -> Table:
    rates: dict[str, list[float]] = {ONE: [], TWO: []}
    for _ in range(run.plan.rounds):
        for number, name in enumerate(rates, start=1):
            rates[name].append(await _rate(run, number))
    ratio = median(two / one for one, two in zip(rates[ONE], rates[TWO], strict=True))
    rows = [
        Row(ONE, {"rate": median(rates[ONE])}, {ONE: 1.0}),
        Row(TWO, {"rate": median(rates[TWO])}, {ONE: ratio}),
        Row(SAME, await _winners(run)),
    ]
    return Table("processes", "Two processes on one Redis", "rate", tuple(rows), notes=NOTES)


async def _rate(run: Run, number: int) -> float:
    run.plan.on_turn(f"processes: {number}")
    if run.plan.clean:
        await run.plan.clean()
    task = Task("claims", run.plan.url, run.plan.namespace, min(run.plan.max_ops, MAX_CLAIMS))
    answers = await employ(*[task] * number)
    return number * task.count / _span(answers)


async def _winners(run: Run) -> dict[str, float]:
    run.plan.on_turn("processes: the same keys")
    shared = f"{run.plan.namespace}-shared"
    task = Task("claims", run.plan.url, run.plan.namespace, SHARED_KEYS, shared=shared)
    answers = await employ(task, task)
    winners = Counter(map(sum, zip(*(bytes.fromhex(answer["won"]) for answer in answers), strict=True)))
    doubled = sum(count for won, count in winners.items() if won > 1)
    each = {f"won_by_{i}": bytes.fromhex(a["won"]).count(1) for i, a in enumerate(answers, start=1)}
    return {"keys": SHARED_KEYS, "one_winner": winners[1], "lost": winners[0], "doubled": doubled, **each}


def _span(answers: list[dict[str, Any]]) -> float:
    return float(max(answer["ended"] for answer in answers) - min(answer["began"] for answer in answers))
