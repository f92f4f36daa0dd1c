"""docs/errors.md names every error that a user can meet, with its parents, and its links lead somewhere."""

from __future__ import annotations

import pytest

import fastdedup
from fastdedup.errors import DedupError, RetryTransaction
from fastdedup.messages import AbandonedError, DeadLetterError, ExhaustedError
from fastdedup.messages.keys import NoKeyError
from fastdedup.web.problems import PROBLEMS

from ..sql_pages.pages import Page

PAGE = Page("errors.md")
OF_THE_PACKAGE = [each for each in map(vars(fastdedup).get, fastdedup.__all__) if isinstance(each, type)]
ERRORS = [each for each in OF_THE_PACKAGE if issubclass(each, DedupError)]
ERRORS += [RetryTransaction, DeadLetterError, NoKeyError, ExhaustedError, AbandonedError]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_each_error_has_a_way_out(error: type[Exception]) -> None:
    assert len(PAGE.sections[error.__name__].strip()) > 80


@pytest.mark.parametrize("error", ERRORS[1:], ids=lambda error: error.__name__)
def test_its_table_names_each_error_s_parents(error: type[Exception]) -> None:
    (row,) = (row for row in PAGE.sections[""].splitlines() if f"(#{error.__name__.lower()})" in row)
    parents = {base.__name__ for base in error.__bases__} - {"DedupError", "Exception"}
    assert {*filter(None, row.split("|")[2].strip().split(", "))} == parents


def test_every_problem_of_http_has_a_way_out() -> None:
    rows = [row.split("|") for row in PAGE.sections["Over HTTP"].splitlines() if row.startswith("| `")]
    assert {(row[1].strip(" `"), int(row[2])) for row in rows} == {
        (each.name, each.status) for each in PROBLEMS
    }
