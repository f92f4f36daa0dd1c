"""docs/sidecar.md: its table of the log has every line that a sidecar writes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import fastdedup.sidecar
from fastdedup.events import Event, name_of
from fastdedup.sidecar.service import logs

from ..sql_pages.pages import Page

SECTION = Page("sidecar.md").sections["The log"]
LEVELS = {"debug", "info", "warning", "error", "exception"}
OF_PROGRAMS = {
    "LeaseLost",
    "GateBypassed",
    "ConsumerPaused",
    "ConsumerResumed",
    "ConsumerEnded",
    "DeadLettered",
}
"""Events of renewals, inboxes and consumers: a sidecar has none of these."""
AUDITED = {"KeyForgotten", "RecordsListed"}
"""A sidecar's own lines tell of these, with the client's process."""


def written() -> Iterator[str]:
    """The beginning of each line that the sidecar's source logs, up to its first argument."""
    yield from (logs.AUDITED, logs.AUDITED_LIST)
    for path in Path(fastdedup.sidecar.__path__[0]).rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.args):
                continue
            text = call.args[0]
            logged = call.func.attr in LEVELS and ast.unparse(call.func.value) == "log"
            if logged and isinstance(text, ast.Constant):
                yield str(text.value).partition("%")[0].partition(": ")[0].strip()


def named() -> str:
    return " ".join(re.findall(r"^\| (.+?) \|", SECTION, re.MULTILINE))


def test_its_table_has_every_line_of_the_source() -> None:
    lines = [line for line in written() if line]
    assert len(lines) > 15
    assert not [line for line in lines if line not in named()]


def test_its_table_has_every_event_of_a_gate() -> None:
    told = {kind.__name__: name_of(kind) for kind in get_args(Event)}
    told = {name: line for name, line in told.items() if name not in OF_PROGRAMS | AUDITED}
    assert {"BreakerOpened", "Degraded", "LedgerFilling"} <= told.keys()
    assert not [line for line in told.values() if f"`{line}`" not in named()]
