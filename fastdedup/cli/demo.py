"""`fastdedup demo`: a sale, payments and consumers; was each promise kept? `cli.main` registers `COMMANDS`."""

from dataclasses import asdict
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..compiled import build
from ..demo.payments import PaymentReport, run_payments
from ..demo.sale import Report, run_sale, sale_dedup
from ..gateway import Dedup
from ..sidecar.urls import without_secrets
from .demo_messages import messages_options, play_messages
from .gate import gate_options, run
from .sidecar import sidecar_sale, sidecar_wanted
from .tables import facts_table, verdict
from .terminal import bar_console, print_json


@click.command(short_help="Run a sale, payments and consumers; check each promise.")
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
    the given name; its records expire within a minute.
    """
    dedup = sale_dedup(url, namespace)
    report = run(_sale(dedup, buyers=buyers, clicks=clicks, stock=stock, quiet=as_json))
    if not as_json:
        Console().print(_sale_table(report, title=f"Flash sale on {without_secrets(url)}"))
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


COMMANDS = (demo,)
