"""The ledgers' commands: `fastdedup ledger create`, `stats` and `resize`. `cli.main` registers `COMMANDS`."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from ..errors import ConfigError
from ..gateway import Dedup
from ..ledger.client import Ledger
from ..ledger.current_form import read_form
from ..ledger.settings import LEAST_WINDOW, MOST_CAPACITY
from ..model import LedgerResize, LedgerStats
from .gate import ask, gate_options
from .inbox import Duration, shown
from .tables import facts_table
from .terminal import AnsweringCommand, bar_console, print_json

_LOOK_AGAIN = 1.0
"""Seconds between two looks at the progress of a resizing."""
_NARROW = 4
"""Bytes of the widest digest that needs exact=False."""


@click.group(short_help="Create ledgers, which remember ids for days, and look at them.")
def ledger() -> None:
    """Create a ledger, which remembers ids for days in some 12 bytes each, look at it, and resize it."""


@ledger.command(cls=AnsweringCommand)
@click.argument("name")
@click.option(
    "--window",
    type=Duration(LEAST_WINDOW),
    required=True,
    help="How long an id is remembered: 7d, 12h, 30m or 90s.",
)
@click.option(
    "--capacity",
    type=click.IntRange(1, MOST_CAPACITY),
    required=True,
    help="Ids in one window, best 4/3 of those that you expect. Plan for growth; `resize` changes it.",
)
@click.option(
    "--width",
    type=click.Choice(["3", "4", "7", "16"]),
    help="Bytes kept of each id, 7 by default: 16 is as much as a UUID, 3 and 4 take some new ids for duplicates.",
)
@click.option(
    "--dense", is_flag=True, help="The ids are integers that nearly follow each other: a bit for each."
)
@click.option(
    "--allow-eviction", is_flag=True, help="Also on a store that evicts keys when its memory is full."
)
@gate_options(namespace="fastdedup")
def create(
    name: str,
    window: timedelta,
    capacity: int,
    width: str | None,
    dense: bool,
    allow_eviction: bool,
    url: str,
    namespace: str,
    as_json: bool,
) -> None:
    """Create the ledger NAME, so that your service finds it. It takes no memory before it has ids.

    Exits with 1 if it was created with other settings, or if the store evicts keys. A service that names the same
    settings creates it by itself; a service that names others gets an error from now on. A ledger that is not used
    for two windows and a day is forgotten.
    """
    settings: dict[str, Any] = {"window": window, "capacity": capacity, "allow_eviction": allow_eviction}
    settings |= {"dense": dense}
    if width is not None:
        if dense:
            raise click.UsageError("--dense keeps a bit for each id, so it goes without --width")
        settings |= {"width": int(width), "exact": int(width) > _NARROW}
    created = ask(_created(Dedup(url, namespace=namespace), name, settings))
    if as_json:
        print_json({"name": name, "created": created})
    elif created:
        click.echo(f"Created the ledger {name!r}: {capacity:,} ids in {shown(window.total_seconds())}.")
    else:
        click.echo(f"The ledger {name!r} was there before, with these settings.")


@ledger.command(cls=AnsweringCommand, short_help="Show the content of the ledger NAME.")
@click.argument("name")
@gate_options(namespace="fastdedup", json="an object, or null if there is none")
def stats(name: str, url: str, namespace: str, as_json: bool) -> None:
    """Show the content of the ledger NAME, from at most 1,000 of its buckets. Exits with 1 if it does not exist."""
    found = ask(_stats(Dedup(url, namespace=namespace), name))
    if as_json:
        print_json(None if found is None else asdict(found))
    elif found is not None:
        Console().print(_figures_table(found))
    else:
        click.echo(f"There is no ledger {name!r} in namespace {namespace!r}.", err=True)
    if found is None:
        raise SystemExit(1)


@ledger.command(cls=AnsweringCommand)
@click.argument("name")
@click.option(
    "--capacity", type=click.IntRange(1, MOST_CAPACITY), required=True, help="Ids in one window from now on."
)
@click.option(
    "--until",
    type=click.Choice(["announced", "switched", "over"]),
    default="switched",
    show_default=True,
    help="How long to watch. It goes on without you: run the command again to see how far it is.",
)
@gate_options(namespace="fastdedup")
def resize(name: str, capacity: int, until: str, url: str, namespace: str, as_json: bool) -> None:
    """Give the ledger NAME another capacity, and keep all ids.

    It is announced for 45 seconds; then ids are remembered by the new capacity, and for one window each call asks
    for older ids as well. Services with the former capacity go on; change it with their next release. All of them
    must know resizing. Do not resize a ledger that claims use (remember=). Exits with 1 if it does not exist.
    """
    found = ask(_resized(Dedup(url, namespace=namespace), name, capacity, until, as_json))
    if found is None:
        click.echo(f"There is no ledger {name!r} in namespace {namespace!r}.", err=True)
        raise SystemExit(1)
    if as_json:
        print_json(asdict(found))
    else:
        click.echo(_state_of(found))


def _state_of(found: LedgerResize) -> str:
    """Return a sentence about its progress."""
    if found.switch_in:
        return f"The ledger {found.name!r} switches to the capacity {found.capacity:,} in {found.switch_in:.0f} s."
    if found.over_in:
        left = shown(found.over_in)
        return (
            f"The ledger {found.name!r} has the capacity {found.capacity:,}. "
            f"For {left} more, each call asks for older ids as well."
        )
    return f"The ledger {found.name!r} has the capacity {found.capacity:,}."


async def _resized(dedup: Dedup, name: str, capacity: int, until: str, quiet: bool) -> LedgerResize | None:
    """Resize it, and show the progress until the wanted stage."""
    async with dedup:
        made = await created_ledger(dedup, name)
        if made is None:
            return None
        found = await made.resize(capacity=capacity)
        with Progress(disable=quiet, console=bar_console(quiet=quiet)) as bar:
            whole = found.over_in if until == "over" else found.switch_in
            task = bar.add_task(f"{found.former_capacity:,} to {capacity:,}", total=whole or 1.0)
            while (left := {"over": found.over_in, "switched": found.switch_in}.get(until, 0.0)) > 0:
                bar.update(task, completed=whole - left)
                await asyncio.sleep(min(left, _LOOK_AGAIN))
                found = await made.resize(capacity=capacity)
            bar.update(task, completed=whole or 1.0)
        return found


async def _created(dedup: Dedup, name: str, settings: dict[str, Any]) -> bool:
    """Create it; return False if it existed before."""
    async with dedup:
        made = dedup.ledger(name, **settings)
        former = await read_form(dedup.gate, name)
        try:
            await made.open()
        except ConfigError as error:
            raise click.ClickException(str(error)) from error  # it exits with 1
        return former is None


async def _stats(dedup: Dedup, name: str) -> LedgerStats | None:
    async with dedup:
        made = await created_ledger(dedup, name)
        return None if made is None else await made.stats()


async def created_ledger(dedup: Dedup, name: str) -> Ledger | None:
    """Return a ledger with the settings of its creation; None if there is no ledger. Errors: see `read_form`."""
    form = await read_form(dedup.gate, name)
    if form is None:
        return None
    kind: dict[str, Any] = (
        {"dense": True} if form.dense else {"width": form.width, "exact": form.width > _NARROW}
    )
    return dedup.ledger(
        name,
        window=form.window_ms / 1000,
        capacity=form.capacity,
        **kind,
        allow_eviction=True,  # only to look at it
    )


def _figures_table(found: LedgerStats) -> Table:
    return facts_table(
        f"Ledger {found.name}",
        {
            "ids": f"{found.ids:,}",
            "capacity": f"{found.capacity:,}",
            "fill": f"{found.fill:.1%}",
            "window": f"{shown(found.window)}, and up to 1 % more",
        },
        {
            "bytes": f"{found.bytes:,}",
            "bytes an id": f"{found.bytes_an_id:,.2f}" if found.ids else "-",
        },
        {
            "bytes of digest": f"{found.width}" if found.width else "0, a bit for each id",
            "false duplicates expected in a window": f"{found.false_duplicates:.1g}",
        },
    )


COMMANDS = (ledger,)
