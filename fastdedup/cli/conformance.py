"""`fastdedup conformance`: the numbered guarantees of a store, checked. `cli.main` registers `COMMANDS`."""

from __future__ import annotations

from dataclasses import asdict

import click

from ..sidecar.urls import without_secrets
from ..testing.guarantees import Conformance
from ..testing.guarantees import conformance as check
from .gate import ask, gate_options
from .tables import print_rows
from .terminal import AnsweringCommand, print_json

_HEADINGS = ("guarantee", "sentence", "result", "detail")


@click.command(cls=AnsweringCommand, short_help="Check that a store keeps its guarantees.")
@gate_options(namespace="conformance", url="memory://", json="a list of findings")
def conformance(url: str, namespace: str, as_json: bool) -> None:
    """Check that a store keeps each of its guarantees, and print a table.

    Exits with 1 if a guarantee is broken. Every run has a new namespace, which begins with the given name: no other
    record is touched. Its records are forgotten at the end; its ledgers expire within about a day.
    """
    found = ask(check(url, namespace=namespace))
    if as_json:
        print_json([asdict(finding) for finding in found])
    else:
        _print(found, without_secrets(url))
    if found.broken:
        raise SystemExit(1)


def _print(found: Conformance, url: str) -> None:
    print_rows(
        [(str(each.number), each.sentence, each.status, each.detail) for each in found],
        headings=_HEADINGS,
        numbers=_HEADINGS[:1],
        lines=lambda row: [f"{row[0]}. {row[2]}  {row[1]}", *filter(None, row[3:])],
        title=f"The guarantees of {url}",
    )


COMMANDS = (conformance,)
