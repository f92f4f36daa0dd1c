"""Pages with tables of what is in the code: errors.md, http-rules.md, versions.md, sidecar.md and the model's."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_args

import pytest
from packaging.requirements import Requirement

import fastdedup
import fastdedup.sidecar
from fastdedup.errors import DedupError, RetryTransaction
from fastdedup.events import Event, name_of
from fastdedup.messages import AbandonedError, DeadLetterError, ExhaustedError
from fastdedup.messages.keys import NoKeyError
from fastdedup.sidecar.service import logs
from fastdedup.sidecar.wire_verbs import VERBS
from fastdedup.web.fingerprints import request_fingerprint
from fastdedup.web.problems import PROBLEMS
from fastdedup.web.rules import ClaimSettings, KeySettings, RouteSettings, Rule, keeps

from ..model import calls, interleavings
from ..model.test_calls import FIRSTS, TRANSITIONS
from ..model.test_closure import SCENES
from ..model.test_crashes import CRASHES, TAKEOVERS
from ..model.test_interleavings import CASTS
from ..model.test_simulation import FEWEST
from ..mutants.table import ALL
from ..sql_pages.pages import DOCS, Page

ERRORS_PAGE = Page("errors.md")
OF_THE_PACKAGE = [each for each in map(vars(fastdedup).get, fastdedup.__all__) if isinstance(each, type)]
ERRORS = [each for each in OF_THE_PACKAGE if issubclass(each, DedupError)]
ERRORS += [RetryTransaction, DeadLetterError, NoKeyError, ExhaustedError, AbandonedError]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_each_error_has_a_way_out(error: type[Exception]) -> None:
    assert len(ERRORS_PAGE.sections[error.__name__].strip()) > 80


@pytest.mark.parametrize("error", ERRORS[1:], ids=lambda error: error.__name__)
def test_its_table_names_each_error_s_parents(error: type[Exception]) -> None:
    (row,) = (row for row in ERRORS_PAGE.sections[""].splitlines() if f"(#{error.__name__.lower()})" in row)
    parents = {base.__name__ for base in error.__bases__} - {"DedupError", "Exception"}
    assert {*filter(None, row.split("|")[2].strip().split(", "))} == parents


def test_every_problem_of_http_has_a_way_out() -> None:
    rows = [row.split("|") for row in ERRORS_PAGE.sections["Over HTTP"].splitlines() if row.startswith("| `")]
    assert {(row[1].strip(" `"), int(row[2])) for row in rows} == {
        (each.name, each.status) for each in PROBLEMS
    }


# docs/http-rules.md: its tables have every setting of `Rule`, with its default, and every refusal over HTTP.


HTTP_PAGE = Page("http-rules.md")
NAMED = {"keeps": keeps, "request_fingerprint": request_fingerprint}
DEFAULTS = {field.name: field.default for field in fields(Rule) if field.init and field.name != "path"}


def settings_in(section: str) -> dict[str, Any]:
    """The settings that a section's table names, each with its default as a value."""
    found = re.findall(r"^\| `(\w+)` \| (.+?) \| .+ \|$", HTTP_PAGE.sections[section], re.MULTILINE)
    return {
        name: MISSING if shown == "required" else eval(shown.strip("`"), dict(NAMED)) for name, shown in found
    }


@pytest.mark.parametrize(
    ("section", "declared", "below"),
    [
        ("Of every claim, also of forms", ClaimSettings, None),
        ("Of keys, not of forms", KeySettings, ClaimSettings),
        ("Of the middlewares", RouteSettings, KeySettings),
    ],
)
def test_each_table_has_its_settings_with_their_defaults(section: str, declared: Any, below: Any) -> None:
    own = set(declared.__annotations__) - set(below.__annotations__ if below else ())
    assert settings_in(section) == {name: DEFAULTS[name] for name in own}


def test_every_setting_of_a_rule_may_be_given() -> None:
    assert set(DEFAULTS) == set(RouteSettings.__annotations__)


def test_every_problem_of_http_is_an_answer_of_the_table() -> None:
    answers = re.findall(r"(\d{3}) `([a-z-]+)`", HTTP_PAGE.sections["What a request meets"])
    assert {(name, int(status)) for status, name in answers} == {
        (each.name, each.status) for each in PROBLEMS
    }


# docs/versions.md: its table of extras has every extra of pyproject.toml, with the packages that it brings.


PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
OF_OURS = {"dev", "examples", "bench", "docs", "release"}
ROWS = [
    (re.findall(r"`([\w-]+)`", names), brings)
    for names, brings in re.findall(
        r"^\| (.+?) \| (.+?) \| .+ \|$", Page("versions.md").sections["Extras"], re.M
    )
][1:]


def plain(name: str) -> str:
    return re.sub(r"[-_ ]", "", name).lower()


def test_its_table_has_every_extra() -> None:
    told = [name for names, _ in ROWS for name in names]
    assert sorted(told) == sorted(EXTRAS)


def test_each_row_names_the_packages_that_it_brings() -> None:
    for names, brings in ROWS:
        for name in {*names} - OF_OURS:
            for line in EXTRAS[name]:
                needed = Requirement(line)
                packages = sorted(needed.extras) if needed.name == "fastdedup" else [needed.name]
                for package in packages:
                    assert plain(package) in plain(brings) or "that driver" in brings, (name, package)


# docs/sidecar.md: its tables have every line of the log, and the usage of the commands of ledgers and
# records.


SIDECAR_PAGE = Page("sidecar.md").text
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


def test_its_tables_have_the_usage_of_each_command() -> None:
    usages = [verb.command for verb in VERBS if not verb.item]
    assert len(usages) == 7
    assert not [usage for usage in usages if f"| `{usage}` |" not in SIDECAR_PAGE]


# tests/model/README.md: the figures of the model are those that its tests find.


MODEL = (DOCS.parent / "tests" / "model" / "README.md").read_text("utf-8")
MODEL_ROWS = dict(re.findall(r"^\| (.+) \| ([\d,]+) \|$", MODEL, re.MULTILINE))
GAMES = [*FIRSTS.values(), *TRANSITIONS.values()]


def test_the_page_tells_how_much_the_model_tries() -> None:
    played = [(cast.schedules, cast.worlds) for cast in CASTS.values()] + [game[:2] for game in GAMES]
    found = {
        "places: what a store can keep under one key": sum(scene.places for scene in SCENES.values()),
        "transitions: an operation at a place, after a wait": sum(
            scene.transitions for scene in SCENES.values()
        ),
        "schedules: orders of what clients and faults do": sum(schedules for schedules, _ in played),
        "distinct worlds on these schedules": sum(worlds for _, worlds in played),
    }
    assert {name: MODEL_ROWS[name] for name in found} == {
        name: f"{number:,}" for name, number in found.items()
    }


def test_the_page_tells_how_often_the_gate_is_simulated() -> None:
    assert f"in {sum(FEWEST.values()):,} runs at least" in " ".join(MODEL.split())


def test_the_page_tells_how_often_a_delivery_dies() -> None:
    text = " ".join(MODEL.split())
    assert f"at {CRASHES:,} steps at least" in text
    assert f"At {TAKEOVERS:,} further steps" in text


def test_the_page_tells_how_many_faults_are_tried() -> None:
    assert f"puts {len(ALL)} faults into" in MODEL


def test_the_page_tells_what_is_accepted() -> None:
    reasons = [
        *zip(
            interleavings.ACCEPTED, zip(*(cast.accepted for cast in CASTS.values()), strict=True), strict=True
        ),
        *zip(calls.ACCEPTED, zip(*(game[2] for game in GAMES), strict=True), strict=True),
    ]
    assert dict(list(MODEL_ROWS.items())[4:]) == {reason: f"{sum(ends):,}" for reason, ends in reasons}
