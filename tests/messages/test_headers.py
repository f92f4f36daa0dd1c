"""What the headers of a message tell, whoever has written them."""

from __future__ import annotations

from typing import Any

import pytest

from fastdedup.messages import Action, Decision, Reason
from fastdedup.messages.headers import (
    AGAIN,
    ATTEMPTS,
    ERROR,
    KEY,
    ORIGIN,
    again_headers,
    attempts_of,
    dead_letter_headers,
    is_again,
    retry_headers,
)

FAILED = Decision(Action.DEAD_LETTER, Reason.FAILED, "order-7", 5, error=ValueError("no such customer"))


@pytest.mark.parametrize(
    ("value", "attempts"),
    [
        (3, 3),
        ("3", 3),
        (b"3", 3),
        (-1, 0),
        (10**9, 0),
        ("many", 0),
        (None, 0),
        ([], 0),
        (1.9, 1),
        (float("inf"), 0),
        ("9" * 5000, 0),
    ],
)
def test_attempts_that_are_no_count_are_none(value: Any, attempts: int) -> None:
    assert attempts_of({ATTEMPTS: value}) == attempts


def test_a_delayed_twin_spends_no_attempt() -> None:
    waiting = Decision(Action.RETRY, Reason.IN_PROGRESS, "order-7")
    assert retry_headers({"a": 1, ATTEMPTS: 2}, waiting) == {"a": 1, ATTEMPTS: 2}


def test_a_dead_letter_says_what_it_died_of() -> None:
    headers = dead_letter_headers({"a": 1, AGAIN: 1}, FAILED, "orders")
    assert headers["a"] == 1
    assert (headers[KEY], headers[ATTEMPTS]) == ("order-7", 5)
    assert headers[ERROR] == "ValueError: no such customer"
    assert not is_again(headers)


def test_an_error_of_any_length_and_text_fits() -> None:
    died = Decision(Action.DEAD_LETTER, Reason.FAILED, "\ud800", 1, error=ValueError("\ud800" * 10_000))
    headers = dead_letter_headers({}, died, "orders")
    assert len(headers[ERROR].encode()) <= 2000
    headers[KEY].encode()


def test_a_dead_letter_taken_again_begins_anew() -> None:
    headers = again_headers(dead_letter_headers({"a": 1}, FAILED, "orders"))
    assert headers == {"a": 1, AGAIN: 1}
    entry = {name.encode(): b"" for name in (ORIGIN, *dead_letter_headers({"a": 1}, FAILED, "orders"))}
    assert again_headers(entry) == {b"a": b"", AGAIN: 1}
    assert is_again(headers)
    assert attempts_of(headers) == 0
