"""`fastdedup bench`: fastdedup beside redis-py on your Redis. `cli.main` registers `COMMANDS`."""

import secrets
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import click
from rich.box import ROUNDED
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ..bench import CONTESTANTS, SCENARIOS, Plan, cells, side_by_side, turns
from ..bench import Table as Played
from ..gateway import Dedup
from .gate import gate_options, run
from .terminal import bar_console, print_json


@click.command()
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="How many rounds; more rounds give steadier medians.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=0.5,
    show_default=True,
    help="How long a turn takes, in seconds.",
)
@gate_options(namespace="bench", json="an array of tables")
def bench(rounds: int, seconds: float, url: str, namespace: str, as_json: bool) -> None:
    """Measure fastdedup and redis-py on your Redis. Compare the ratios: absolute figures differ between machines.

    Nothing is flushed or deleted. Every run has a new namespace, which begins with the given name; a turn leaves up
    to 100,000 keys there, which expire within two minutes. A row that could not be measured says why, and the
    command exits with 1.
    """
    plan = Plan(url, rounds, seconds, namespace=f"{namespace}-{secrets.token_hex(3)}")
    played = run(_played(plan, quiet=as_json))
    if as_json:
        print_json([_played_facts(table) for table in played])
    else:
        for table in played:
            Console().print(_played_table(table))
    failed = [
        f"{table.title}: {row.contestant}: {row.note}"
        for table in played
        for row in table.rows
        if not row.figures
    ]
    for line in failed:
        click.echo(line, err=True)
    if failed:
        raise SystemExit(1)


async def _played(plan: Plan, *, quiet: bool) -> tuple[Played, ...]:
    async with Dedup(plan.url, namespace=plan.namespace) as dedup:
        await dedup.get("here?")  # an outage is one error now, not one in each row
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=bar_console(quiet=quiet), disable=quiet) as progress:
        task = progress.add_task("", total=sum(turns(each, CONTESTANTS, plan.rounds) for each in SCENARIOS))
        on_turn = partial(progress.update, task, advance=1)
        plan = replace(plan, on_turn=lambda label: on_turn(description=label))
        return await side_by_side(plan, scenarios=SCENARIOS, contestants=CONTESTANTS)


def _played_facts(table: Played) -> dict[str, Any]:
    return {"scenario": table.name, "title": table.title, "rows": [asdict(row) for row in table.rows]}


def _played_table(played: Played) -> Table:
    headings, rows = cells(played)
    table = Table(title=played.title, box=ROUNDED)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in {headings[0], headings[-1]} else "right")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


COMMANDS = (bench,)
