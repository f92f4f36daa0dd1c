"""The operators' commands: `fastdedup list` finds stuck records, `inspect` shows a record, `forget` removes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any

import click
from rich.box import ROUNDED
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..admin.inspection import LISTED
from ..gateway import Dedup
from ..kernel.owners import is_drawn, owner_field
from ..ledger.client import Ledger
from ..ledger.ids import number_in
from ..model import Listing, Record, State
from ..sidecar import client
from ..web.inspection import AnyCodec, web_namespace, with_parts
from .gate import ask, gate_options
from .inbox import Duration
from .ledger import created_ledger
from .record_place import (
    RecordPlace,
    is_default,
    namespace_if_given,
    place_of,
    place_options,
    reason_option,
    socket_option,
)
from .tables import print_rows
from .terminal import AnsweringCommand, as_json, print_json, printable


@click.command(cls=AnsweringCommand)
@place_options
@gate_options(namespace="fastdedup", json="the record, or null if there is none")
def inspect(socket: Path | None, url: str, namespace: str, as_json: bool, **named: Any) -> None:
    """Show the record of KEY. Exits with 1 if there is no record."""
    place = place_of(**named)
    namespace = place.within(namespace)
    remembered: bool | None = None
    if socket is None:
        record, remembered = ask(_read(Dedup(url, namespace=namespace, codec=AnyCodec()), place))
    else:
        where = namespace_if_given(namespace)
        if place.ledger is not None:
            record, remembered = None, client.seen_id(socket, place.ledger, place.key, where)
        else:
            given = client.get_record(socket, place.key, where, kind=place.kind, digest=place.digest)
            record = None if given is None else with_parts(given)
    _show(record, remembered, place, namespace, as_json)
    if record is None and not remembered:
        raise SystemExit(1)


@click.command(cls=AnsweringCommand, short_help="Delete the record of KEY: its next claim is the first.")
@place_options
@reason_option
@gate_options(namespace="fastdedup")
def forget(
    socket: Path | None, url: str, namespace: str, as_json: bool, reason: str | None, **named: Any
) -> None:
    """Delete the record of KEY, so that its next claim is the first. Exits with 1 if there is no record.

    A token that is forgotten is unknown from then on: that ends a one-time link.
    """
    place = place_of(**named)
    namespace = place.within(namespace)
    if socket is None:
        forgotten = ask(_forget(Dedup(url, namespace=namespace), place, reason))
    else:
        where = namespace_if_given(namespace)
        if place.ledger is not None:
            forgotten = client.forget_id(socket, place.ledger, place.key, where, reason=reason)
        else:
            forgotten = client.forget_record(
                socket, place.key, where, kind=place.kind, digest=place.digest, reason=reason
            )
    if as_json:
        key = place.listed_as(namespace) if place.kind == "token" else place.key  # a token is a secret
        print_json({"key": key, "forgotten": forgotten})
    elif forgotten:
        now = "it can no longer be redeemed" if place.kind == "token" else "its next claim will be the first"
        click.echo(f"Forgot {_shown_key(place)}: {now}.")
    else:
        _say_nothing(place, namespace)
    if reason is not None and socket is None and not url.startswith("sidecar:"):
        click.echo(
            "The reason is not kept, because a Redis of --url has no log: for a trail, use --socket.",
            err=True,
        )
    if not forgotten:
        raise SystemExit(1)


@click.command("list", cls=AnsweringCommand, short_help="List records, to find stuck ones.")
@click.option(
    "--state",
    type=click.Choice([state.value for state in State if state is not State.MACHINE]),
    help="Only this state; processing: held, or left behind by an owner that died.",
)
@click.option(
    "--older",
    type=Duration(0.0),
    default=timedelta(0),
    help="The least time since the acquisition, such as 60s.",
)
@click.option(
    "--http",
    is_flag=True,
    help="The web keys, which are in <namespace>:http. Needs --namespace with --socket.",
)
@click.option(
    "--prefix",
    default="",
    help="The beginning of the keys. It finds no key of more than 40 bytes: those are digests, like most web keys.",
)
@click.option("--kind", type=click.Choice(LISTED), help="Only this kind.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Stop at so many records; the last step may bring some more.",
)
@click.option(
    "--within",
    type=Duration(0.0),
    default=timedelta(seconds=5),
    show_default="5s",
    help="Stop after this time.",
)
@click.option("--cursor", help="The cursor that an earlier list ended with.")
@reason_option
@socket_option
@gate_options(namespace="fastdedup", json="an object with an array of records")
def list_records(
    socket: Path | None,
    url: str,
    namespace: str,
    as_json: bool,
    http: bool,
    older: timedelta,
    within: timedelta,
    **wanted: Any,
) -> None:
    """List records, to find stuck ones: claims, web keys, locks and tokens, without their results.

    The store looks at a few hundred keys at a time, and serves others in between. If the list stops before its end,
    it says how to go on. If it shows a key as # and digits, give that to `inspect` and `forget` with --digest. For a
    web key also give --namespace <namespace>:http.
    """
    if http and socket is not None and is_default("namespace"):
        raise click.UsageError("--http with --socket takes --namespace: the one of the service's gate")
    namespace = web_namespace(namespace) if http else namespace
    wanted |= {"older": older.total_seconds(), "within": max(within.total_seconds(), 0.001)}
    if socket is None:
        found = ask(_listed(Dedup(url, namespace=namespace), wanted))
    else:
        found = client.list_records(socket, namespace_if_given(namespace), **wanted)
    if as_json:
        print_json(
            {
                "records": [record_facts(record) for record in found.records],
                "cursor": found.cursor,
                "looked_at": found.looked_at,
            }
        )
        return
    if found.records:
        _print_list(found)
    else:
        digests = (
            " Keys of more than 40 bytes have no prefix: list without --prefix." if wanted["prefix"] else ""
        )
        so_far = " so far" if found.cursor else ""
        click.echo(
            f"No record fits{so_far}.{_where_web_keys_are(namespace, 'add --http')}{digests}", err=True
        )
    if found.cursor is not None:
        click.echo(
            f"Stopped after {len(found.records):,} records and about {found.looked_at:,} keys: "
            f"go on with --cursor {printable(found.cursor)}",
            err=True,
        )


async def _read(dedup: Dedup, place: RecordPlace) -> tuple[Record | None, bool | None]:
    """Return the record, and for an id whether its ledger remembers it."""
    async with dedup:
        if place.ledger is None:
            return await dedup.get(place.key, place.kind, digest=place.digest), None
        ledger = await created_ledger(dedup, place.ledger)
        if ledger is None:
            return None, False
        return await ledger.record_of(place.key), await ledger.seen(_id(ledger, place))


async def _forget(dedup: Dedup, place: RecordPlace, reason: str | None) -> bool:
    async with dedup:
        if place.ledger is None:
            return await dedup.forget(place.key, place.kind, digest=place.digest, reason=reason)
        ledger = await created_ledger(dedup, place.ledger)
        if ledger is None:
            return False
        record = await ledger.forget_record(place.key)
        return await ledger.forget(_id(ledger, place), reason=reason) or record


def _id(ledger: Ledger, place: RecordPlace) -> Any:
    return number_in(place.key) if ledger.dense else place.key


async def _listed(dedup: Dedup, wanted: dict[str, Any]) -> Listing:
    async with dedup:
        return await dedup.records(**wanted)


# For people and programs


def record_facts(record: Record) -> dict[str, Any]:
    """Return a record for JSON, times in seconds."""
    return asdict(record) | {
        "state": record.state.value,
        "fingerprint": None if record.fingerprint is None else record.fingerprint.hex(),
    }


def _show(
    record: Record | None, remembered: bool | None, place: RecordPlace, namespace: str, as_json: bool
) -> None:
    if place.ledger is not None:
        facts = {"id": place.key, "ledger": place.ledger, "remembered": bool(remembered)}
        if as_json:
            print_json(facts | {"record": None if record is None else record_facts(record)})
            return
        if remembered:
            click.echo(f"The ledger {printable(place.ledger)!r} remembers {place.key!r}.")
    elif as_json:
        digest = place.listed_as(namespace)
        listed = {} if digest is None else {"digest": digest}
        print_json(None if record is None else record_facts(record) | listed)
        return
    if record is not None:
        Console().print(_record_table(record, place.listed_as(namespace)))
    elif not remembered:
        _say_nothing(place, namespace)


def _say_nothing(place: RecordPlace, namespace: str) -> None:
    where = f"namespace {namespace!r}" if place.ledger is None else f"the ledger {place.ledger!r}"
    elsewhere = place.hint
    if place.digest and place.kind == "claim":  # as `list --http` shows it
        elsewhere = _where_web_keys_are(namespace, f"give --namespace {web_namespace(namespace)}")
    click.echo(f"Nothing is recorded for {_shown_key(place)} in {where}.{elsewhere}", err=True)


def _where_web_keys_are(namespace: str, remedy: str) -> str:
    """Return a hint for a search for a web key in the application's own namespace; "" in that of web keys."""
    web = web_namespace(namespace) if namespace else ""
    return "" if web == namespace else f" Web keys are in {web!r}: {remedy}."


def _shown_key(place: RecordPlace) -> str:
    # A token is a secret.
    return "this token" if place.kind == "token" and not place.digest else repr(place.key)


def _record_table(record: Record, digest: str | None) -> Table:
    """Return a table of a record; `digest`: the one that `list` shows."""
    facts = record_facts(record)
    if digest not in (None, record.key):
        facts = {"key": record.key, "digest": digest} | facts
    facts["lease"] = None if record.lease is None else _lease(record.lease)
    facts["ttl"] = f"{record.ttl:.1f} s left{_in_words(record.ttl)}"
    facts["age"] = (
        None if record.age is None else f"{record.age:.1f} s{_in_words(record.age)}{_since(record)}"
    )
    table = Table(box=ROUNDED, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, fact in facts.items():
        text = "-" if fact is None else fact if isinstance(fact, str) else as_json(fact)
        table.add_row(name, Text(printable(text)))  # as Text, because rich would take [brackets] for markup
    return table


def _print_list(found: Listing) -> None:
    records = sorted(found.records, key=lambda record: -(record.age or 0.0))
    print_rows(
        [[fact_of(record) for fact_of in _COLUMNS.values()] for record in records],
        headings=(*_COLUMNS,),
        numbers=("age", "lease", "attempt"),
        lines=_listed_lines,
    )


def _listed_lines(facts: Sequence[str]) -> tuple[str, str]:
    named = zip(_COLUMNS, facts, strict=True)
    key, *shown = (f"{name} {fact}" if name in ("age", "attempt") else fact for name, fact in named)
    return key, ", ".join(fact for fact in shown if fact != "-")


def _in_words(seconds: float) -> str:
    """Return a time of minutes or more in words, to a tenth, in brackets; "" for a shorter one."""
    for unit, length in (("d", 86_400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= max(length, 120.0):
            return f" ({seconds / length:.1f}".removesuffix(".0") + f"{unit})"
    return ""


def _since(record: Record) -> str:
    """Return the time of day of the acquisition, by the store's clock; "" if it is not known."""
    if not record.fence:
        return ""
    return f", since {datetime.fromtimestamp(record.fence // 1_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _lease(lease: float) -> str:
    return f"{lease:.1f} s left" if lease > 0 else f"over for {-lease:,.1f} s"


def _holder(record: Record) -> str:
    """Return the holder of a record, or an owner's name that its caller chose."""
    if record.holder is not None:
        return record.holder
    return "-" if not record.owner or is_drawn(owner_field(record.owner)) else record.owner


_COLUMNS: dict[str, Callable[[Record], str]] = {
    "key": attrgetter("key"),
    "kind": attrgetter("kind"),
    "state": attrgetter("state.value"),
    "age": lambda record: "-" if record.age is None else f"{record.age:,.0f} s",
    "lease": lambda record: "-" if record.lease is None else _lease(record.lease),
    "attempt": lambda record: str(record.attempt),
    "holder": _holder,
}
"""The columns of a list, by their headings."""

COMMANDS = (list_records, inspect, forget)
