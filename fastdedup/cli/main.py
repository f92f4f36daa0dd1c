"""The command line: figures and records for people, ``--json`` for programs.

To add a command: write a function below the last command, decorate it with ``@cli.command()`` and
``@gate_options()``, and run its coroutine with `run`. Let `DedupError` pass: the group prints it.
"""

import secrets
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeVar

import click
from rich.box import ROUNDED
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from fastdedup import Dedup, DedupError
from fastdedup.bench import CONTESTANTS, SCENARIOS, Plan, cells, side_by_side, turns
from fastdedup.bench import Table as Played
from fastdedup.cli.completion import COMMANDS as COMPLETION
from fastdedup.cli.dead_letters import COMMANDS as DEAD_LETTERS
from fastdedup.cli.demo_messages import messages_options, play_messages
from fastdedup.cli.gate import gate_options, run
from fastdedup.cli.inbox import COMMANDS as INBOX
from fastdedup.cli.ledger import COMMANDS as LEDGER
from fastdedup.cli.records import COMMANDS as RECORDS
from fastdedup.cli.shop import web_options
from fastdedup.cli.sidecar import COMMANDS as SIDECAR
from fastdedup.cli.sidecar import sidecar_sale, sidecar_wanted
from fastdedup.cli.tables import facts_table, verdict
from fastdedup.cli.terminal import bar_console, print_json
from fastdedup.compiled import build
from fastdedup.demo.payments import PaymentReport, run_payments
from fastdedup.demo.sale import Report, run_sale, sale_dedup
from fastdedup.sidecar.urls import without_secrets as _without_secrets

T = TypeVar("T")
Command = Callable[..., Any]


class _Group(click.Group):
    """Prints the `DedupError` of any command as one line on stderr, and exits with 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except DedupError as error:
            raise click.ClickException(" ".join(str(error).split())) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fastdedup", message=f"%(prog)s %(version)s, {build()}")
def cli() -> None:
    """Are you the first? A dedup gateway on Redis, and its records."""


for command in (*COMPLETION, *RECORDS, *SIDECAR, *INBOX, *LEDGER, *DEAD_LETTERS):
    cli.add_command(command)


@cli.command(short_help="Run a sale, payments and consumers; check each promise.")
@web_options
@click.option("--buyers", type=click.IntRange(min=1), default=10_000, show_default=True)
@click.option(
    "--clicks",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="How often each buyer clicks, at once.",
)
@click.option("--stock", type=click.IntRange(min=0), default=100, show_default=True, help="Units for sale.")
@click.option(
    "--sidecar/--no-sidecar",
    default=None,
    help="Also sell through a sidecar, from several processes. [default: if its extra is installed]",
)
@click.option(
    "--payments",
    type=click.IntRange(min=0),
    default=300,
    show_default=True,
    help="Messages of a payment consumer that is killed in the middle; 0 for none.",
)
@messages_options
@gate_options(namespace="demo", url="memory://")
def demo(
    buyers: int,
    clicks: int,
    stock: int,
    sidecar: bool | None,
    payments: int,
    messages: int,
    rabbitmq: str | None,
    url: str,
    namespace: str,
    as_json: bool,
) -> None:
    """Run a flash sale, a payment consumer and consumers of a broker, and check that each promise was kept.

    The broker is a RabbitMQ of the demo's own, where there is one, else FastStream's in memory.

    Names each broken promise, and exits with 1 if there is one. Every run has a new namespace, which begins with
    the given name; its records expire within a minute. With --web it serves a shop in your browser, in which you
    can click, buy and crash Redis.
    """
    dedup = sale_dedup(url, namespace)
    report = run(_sale(dedup, buyers=buyers, clicks=clicks, stock=stock, quiet=as_json))
    if not as_json:
        Console().print(_sale_table(report, title=f"Flash sale on {_without_secrets(url)}"))
    again = sidecar_sale(url, namespace, buyers, clicks, stock) if sidecar_wanted(sidecar) else None
    if again and not as_json:
        Console().print(_sale_table(again, title="The same through a sidecar, from 4 processes"))
    paid = _payments(url, namespace, payments, quiet=as_json) if payments else None
    if paid and not as_json:
        Console().print(_payments_table(paid))
    consumed, broken = (
        play_messages(url, namespace, messages, rabbitmq, quiet=as_json) if messages else (None, ())
    )
    if as_json:
        acts = {
            "sidecar": again and _sale_facts(again),
            "payments": paid and asdict(paid),
            "messages": consumed,
        }
        print_json(_sale_facts(report) | {name: facts for name, facts in acts.items() if facts})
    violations = [
        *report.violations,
        *(again.violations if again else ()),
        *(paid.violations if paid else ()),
        *broken,
    ]
    for violation in violations:
        click.echo(f"Broken promise: {violation}", err=True)
    if violations:
        raise SystemExit(1)


async def _sale(dedup: Dedup, *, buyers: int, clicks: int, stock: int, quiet: bool) -> Report:
    with _progress("Selling", "buyers", quiet=quiet) as progress:
        task = progress.add_task("sale", total=buyers)
        async with dedup:
            return await run_sale(
                dedup, buyers=buyers, clicks=clicks, stock=stock, on_visit=lambda: progress.advance(task)
            )


def _payments(url: str, namespace: str, messages: int, *, quiet: bool) -> PaymentReport:
    with _progress("Paying", "messages", quiet=quiet) as progress:
        task = progress.add_task("payments", total=2 * messages)
        return run_payments(url, namespace, messages=messages, on_ack=lambda: progress.advance(task))


def _progress(doing: str, things: str, *, quiet: bool) -> Progress:
    return Progress(
        TextColumn(doing),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(things),
        TimeElapsedColumn(),
        console=bar_console(quiet=quiet),
        disable=quiet,
    )


def _payments_table(report: PaymentReport) -> Table:
    return facts_table(
        "Payments by gate and inbox, on SQLite",
        {
            "messages": f"{report.messages:,}",
            "deliveries": f"{report.deliveries:,}",
            "consumers killed in the middle": f"{report.kills:,}",
            "seconds": f"{report.seconds:.1f}",
        },
        {
            "payments made": f"{report.payments:,} of {report.messages:,}",
            "duplicates answered by the gate": f"{report.by_gate:,}",
            "duplicates answered by the inbox's row": f"{report.by_row:,}",
        },
        {"promises": verdict(not report.violations)},
    )


def _sale_facts(report: Report) -> dict[str, Any]:
    return asdict(report) | {
        "tokens_refused": report.tokens_refused,
        "claims_per_second": report.claims_per_second,
        "operations_per_second": report.operations_per_second,
    }


def _sale_table(report: Report, *, title: str) -> Table:
    return facts_table(
        title,
        {
            "buyers": f"{report.buyers:,}",
            "clicks of each, at once": f"{report.clicks:,}",
            "build": build(),
            "seconds": f"{report.seconds:.1f}",
        },
        {
            "sold": f"{report.sold:,} of {report.stock:,}",
            "duplicates replayed": f"{report.duplicates_replayed:,}",
            "in-progress answers": f"{report.in_progress:,}",
            "tokens refused": f"{report.tokens_refused:,}",
            "  used before": f"{report.refused_used:,}",
            "  another buyer's": f"{report.refused_foreign:,}",
            "  never issued": f"{report.refused_unknown:,}",
        },
        {
            "claims per second": f"{report.claims_per_second:,.0f}",
            "operations per second": f"{report.operations_per_second:,.0f}",
            "claim latency p50": f"{report.p50_ms:.1f} ms",
            "claim latency p99": f"{report.p99_ms:.1f} ms",
        },
        {"promises": verdict(not report.violations)},
    )


@cli.command()
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
@gate_options(namespace="bench")
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
