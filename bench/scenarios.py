"""The table of scenarios. To add a scenario: write a function of a `Run` that returns a `Table`, and a line below.

A plain contest needs no function: a `Scenario` and its contestants are enough.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bench.cluster import cluster, cluster_steps
from bench.committing import committing, committing_steps
from bench.contest import BASELINE, SCENARIOS, Contestant, Row, Scenario, Table, contest, turns
from bench.frozen import frozen, frozen_steps
from bench.growth import growth, growth_steps, soak, soak_steps
from bench.held import held, held_steps
from bench.inbox import inbox, inbox_purge, inbox_purge_steps, inbox_steps, inbox_storm, inbox_storm_steps
from bench.ledger import ledger, ledger_memory, ledger_memory_steps, ledger_steps
from bench.ledger_windows import ledger_windows, ledger_windows_steps
from bench.loops import loops, loops_steps
from bench.memory import memory, memory_steps
from bench.messages import messages, messages_steps
from bench.messages_inbox import messages_inbox, messages_inbox_steps
from bench.messages_waits import messages_waits, messages_waits_steps
from bench.peers import EVERYONE, FULL_CYCLE, LIBRARIES, ONE_CALL_EACH, REDIS_BENCHMARK
from bench.processes import processes, processes_steps
from bench.run import Job, Run
from bench.sidecar import sidecar, sidecar_steps
from bench.storm import absent, absent_steps, storm, storm_steps
from bench.web import web, web_steps

SWEEP_SECONDS = 0.25
FRESH_1000, FRESH_64, ALONE, CYCLE_64 = SCENARIOS


def _contest(scenario: Scenario, contestants: Sequence[Contestant], *more_baselines: str) -> Job:
    async def play(run: Run) -> Table:
        return await contest(run.plan, scenario, contestants, (BASELINE, *more_baselines))

    return Job(scenario.name, play, lambda run: turns(scenario, contestants, run.plan.rounds))


def _at(callers: int) -> Scenario:
    return Scenario(f"sweep-{callers}", f"{callers} callers", "claim", callers)


async def sweep(run: Run) -> Table:
    """Measure the rate against the number of callers, in short turns: only the curve's shape matters."""
    plan = replace(run.plan, seconds=min(SWEEP_SECONDS, run.plan.seconds))
    found = {each: await contest(plan, _at(each), ONE_CALL_EACH, (BASELINE,)) for each in run.sweep}
    rows = tuple(_swept(contestant.name, found) for contestant in ONE_CALL_EACH)
    curves = {row.contestant: _curve(row) for row in rows if row.figures}
    return Table("sweep", "Rate of fresh claims against callers", f"at_{run.sweep[-1]}", rows, curves)


def _swept(name: str, found: Mapping[int, Table]) -> Row:
    rows = {each: row for each, table in found.items() for row in table.rows if row.contestant == name}
    figures = {f"at_{each}": row.figures["rate"] for each, row in rows.items() if row.figures}
    return Row(name, figures, note=next((row.note for row in rows.values() if not row.figures), ""))


def _curve(row: Row) -> tuple[tuple[float, float], ...]:
    return tuple((float(name.removeprefix("at_")), rate) for name, rate in row.figures.items())


def _sweep_steps(run: Run) -> int:
    return sum(turns(_at(callers), ONE_CALL_EACH, run.plan.rounds) for callers in run.sweep)


JOBS = (
    _contest(FRESH_1000, EVERYONE, REDIS_BENCHMARK.name),
    _contest(FRESH_64, ONE_CALL_EACH),
    _contest(ALONE, ONE_CALL_EACH),
    _contest(CYCLE_64, FULL_CYCLE, *(each.name for each in LIBRARIES)),
    Job("storm", storm, storm_steps),
    Job("absent", absent, absent_steps, needs_private=True),  # counts every command that Redis gets
    Job("sweep", sweep, _sweep_steps),
    Job("memory", memory, memory_steps, needs_private=True),
    Job("processes", processes, processes_steps),
    Job("loops", loops, loops_steps),
    Job("cluster", cluster, cluster_steps, needs_private=True),  # starts nodes of its own
    Job("frozen", frozen, frozen_steps, needs_private=True),  # freezes a node
    Job("sidecar", sidecar, sidecar_steps, needs_private=True),  # counts the keys that its claims leave
    Job("held", held, held_steps, needs_private=True),  # its keys would pile up
    Job("web", web, web_steps, needs_private=True),  # other programs' keys have no namespace
    Job("committing", committing, committing_steps, needs_private=True),  # it starts a database of its own
    Job("inbox", inbox, inbox_steps, needs_private=True),  # these three start databases of their own
    Job("inbox-storm", inbox_storm, inbox_storm_steps, needs_private=True),
    Job("inbox-purge", inbox_purge, inbox_purge_steps, needs_private=True),
    Job(
        "messages", messages, messages_steps, needs_private=True
    ),  # these three start a RabbitMQ of their own
    Job("messages-inbox", messages_inbox, messages_inbox_steps, needs_private=True),
    Job("messages-waits", messages_waits, messages_waits_steps, needs_private=True),
    Job("ledger", ledger, ledger_steps, needs_private=True),  # these three start servers of their own
    Job("ledger-memory", ledger_memory, ledger_memory_steps, needs_private=True),
    Job("ledger-windows", ledger_windows, ledger_windows_steps, needs_private=True),
    Job("growth", growth, growth_steps, needs_private=True),
    Job("soak", soak, soak_steps, needs_private=True),
)
