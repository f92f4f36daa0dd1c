"""The ledgers' commands: `fastdedup ledger create` and `stats`. `cli.main` registers `COMMANDS`."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Any

import click
import orjson
from rich.console import Console
from rich.table import Table

from ..gateway import Dedup
from ..ledger import Ledger, read_form
from ..model import LedgerStats
from ..protocol.ledgers import LedgerForm
from .gate import gate_options, run
from .inbox import Duration, shown
from .tables import facts_table

_NARROW = 4
"""Bytes of the widest digest that needs exact=False."""


@click.group()
def ledger() -> None:
    """Create a ledger, which remembers ids for days in some 12 bytes each, and look at it."""


@ledger.command()
@click.argument("name")
@click.option(
    "--window", type=Duration(), required=True, help="How long an id is remembered: 7d, 12h, 30m or 90s."
)
@click.option(
    "--capacity",
    type=click.IntRange(min=1),
    required=True,
    help="Ids in one window. Plan for growth: it cannot be changed while the ledger remembers ids.",
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
    """Found the ledger NAME, so that your service finds it. It takes no memory before it has ids.

    Exits with 1 where it was founded with other settings, or where the store evicts keys. A service that names the
    same settings founds it by itself; one that names others gets an error from now on. A ledger that nobody asks for
    two windows and a day is forgotten.
    """
    settings: dict[str, Any] = {"window": window, "capacity": capacity, "allow_eviction": allow_eviction}
    settings |= {"dense": dense}
    if width is not None:
        settings |= {"width": int(width), "exact": int(width) > _NARROW}
    founded = run(_created(Dedup(url, namespace=namespace), name, settings))
    if as_json:
        _print_json({"name": name, "founded": founded})
    elif founded:
        click.echo(f"Founded the ledger {name!r}: {capacity:,} ids in {shown(window.total_seconds())}.")
    else:
        click.echo(f"The ledger {name!r} was there before, with these settings.")


@ledger.command()
@click.argument("name")
@gate_options(namespace="fastdedup")
def stats(name: str, url: str, namespace: str, as_json: bool) -> None:
    """Show what the ledger NAME holds, from at most 1,000 of its buckets; exits with 1 if there is no such ledger."""
    found = run(_stats(Dedup(url, namespace=namespace), name))
    if as_json:
        _print_json(None if found is None else asdict(found))
    elif found is not None:
        Console().print(_figures_table(found))
    else:
        click.echo(f"There is no ledger {name!r} in namespace {namespace!r}.", err=True)
    if found is None:
        raise SystemExit(1)


async def _created(dedup: Dedup, name: str, settings: dict[str, Any]) -> bool:
    """Found it; return False where it was there before."""
    async with dedup:
        made = dedup.ledger(name, **settings)
        former = await read_form(dedup._namespace, name)
        await made.open()
        return former is None


async def _stats(dedup: Dedup, name: str) -> LedgerStats | None:
    async with dedup:
        form = await read_form(dedup._namespace, name)
        return None if form is None else await of_form(dedup, name, form).stats()


def of_form(dedup: Dedup, name: str, form: LedgerForm) -> Ledger:
    """Return the ledger that was founded so."""
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


def _print_json(facts: Any) -> None:
    click.echo(orjson.dumps(facts).decode())


COMMANDS = (ledger,)
