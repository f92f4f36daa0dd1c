"""docs/http-rules.md: its tables have every setting of `Rule`, with its default, and every refusal over HTTP."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from typing import Any

import pytest

from fastdedup.web.fingerprints import request_fingerprint
from fastdedup.web.problems import PROBLEMS
from fastdedup.web.rules import ClaimSettings, KeySettings, RouteSettings, Rule, keeps

from ..sql_pages.pages import Page

PAGE = Page("http-rules.md")
NAMED = {"keeps": keeps, "request_fingerprint": request_fingerprint}
DEFAULTS = {field.name: field.default for field in fields(Rule) if field.init and field.name != "path"}


def settings_in(section: str) -> dict[str, Any]:
    """The settings that a section's table names, each with its default as a value."""
    found = re.findall(r"^\| `(\w+)` \| (.+?) \| .+ \|$", PAGE.sections[section], re.MULTILINE)
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
    answers = re.findall(r"(\d{3}) `([a-z-]+)`", PAGE.sections["What a request meets"])
    assert {(name, int(status)) for status, name in answers} == {
        (each.name, each.status) for each in PROBLEMS
    }
