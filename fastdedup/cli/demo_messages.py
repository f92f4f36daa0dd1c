"""The last act of `fastdedup demo`: messages from a broker, whose consumers are killed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..demo.messages import LeftOutError, MessageReport, run_messages
from .tables import facts_table, verdict
from .terminal import bar_console

Command = Callable[..., Any]


def messages_options(command: Command) -> Command:
    """Add the options of this act."""
    messages = click.option(
        "--messages",
        type=click.IntRange(min=0),
        default=2_000,
        show_default=True,
        help="Messages from a broker, each published twice, whose consumers are killed; 0 for none.",
    )
    rabbitmq = click.option(
        "--rabbitmq",
        envvar="RABBITMQ",
        show_envvar=True,
        help="RabbitMQ's script rabbitmq-server, to start a node of the demo's own. [default: the one on the PATH]",
    )
    return messages(rabbitmq(command))


def play_messages(
    url: str, namespace: str, messages: int, rabbitmq: str | None, *, quiet: bool
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Play the act; return its facts and its broken promises. Shows a table, unless it is to be quiet.

    Where there is no broker the act says so, and is left out: that is no failure.
    """
    columns = (
        TextColumn("Consuming"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("messages"),
        TimeElapsedColumn(),
    )
    try:
        with Progress(*columns, console=bar_console(quiet=quiet), disable=quiet) as progress:
            task = progress.add_task("messages", total=messages)
            report = run_messages(
                url,
                namespace,
                messages=messages,
                rabbitmq=rabbitmq,
                on_paid=lambda paid: progress.update(task, completed=paid),
            )
    except LeftOutError as error:
        if not quiet:
            click.echo(f"Messages from a broker are left out: {error}")
        return {"left_out": str(error)}, ()
    if not quiet:
        Console().print(messages_table(report))
        if report.note:
            click.echo(f"Not RabbitMQ: {report.note}")
    return asdict(report), report.violations


def messages_table(report: MessageReport) -> Table:
    """Return the figures for people."""
    return facts_table(
        f"Messages from {report.broker}, by gate and inbox",
        {
            "messages": f"{report.messages:,}",
            "published, each twice": f"{report.published:,}",
            "consumers killed in the middle": f"{report.kills:,}",
            "seconds": f"{report.seconds:.1f}",
        },
        {
            "payments made": f"{report.payments:,} of {report.messages:,}",
            "duplicates answered": f"{report.duplicates:,}",
        },
        {"promises": verdict(not report.violations)},
    )
