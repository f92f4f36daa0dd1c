"""The client's rules: keys, statuses, waits, bounds. No I/O, no time."""

from __future__ import annotations

import math
import ssl
import uuid
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdedup.client import Retry, RetryRules, new_key
from fastdedup.client.rules import Attempts, lasting, told_seconds
from fastdedup.errors import ConfigError, InvalidKeyError
from fastdedup.testing import Clock
from fastdedup.web.header import parse

NO_HEADERS: dict[str, str] = {}


def begin(*, fresh: bool = False, repeatable: bool = True, **settings: Any) -> Attempts:
    """Attempts under a caller's own key, whose waits are the longest that may be drawn."""
    rules = RetryRules(**{"jitter": lambda: 1.0, "clock": Clock(1000.0), **settings})
    attempts = Attempts(rules, "k", fresh=fresh)
    attempts.repeatable = repeatable
    return attempts


def made(rules: RetryRules) -> str:
    key = rules.key_for("POST", None)
    assert key is not None
    return key


def wait(retry: Retry | None) -> float | None:
    return None if retry is None else retry.wait


# Keys


@pytest.mark.parametrize(
    ("method", "gets"), [("POST", True), ("PATCH", True), ("GET", False), ("PUT", False)]
)
def test_post_and_patch_get_a_key(method: str, gets: bool) -> None:
    assert (RetryRules().key_for(method, None) is not None) == gets


def test_each_key_is_a_new_uuid() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert {uuid.UUID(key).version for key in keys} == {4}


def test_a_callers_own_key_is_kept_for_any_method() -> None:
    assert [RetryRules().key_for(method, "mine") for method in ("POST", "GET")] == ["mine", "mine"]
    assert RetryRules().key_for("POST", b"mine") == "mine"


@pytest.mark.parametrize("own", ["", " ", "\t", '""', b""])
def test_an_empty_own_key_is_refused(own: str | bytes) -> None:
    """A server may take it for no key at all, and then a retry acts twice."""
    with pytest.raises(
        InvalidKeyError, match="Idempotency-Key is empty: give a key, or leave the header out"
    ):
        RetryRules().key_for("POST", own)


@pytest.mark.parametrize(
    "key", ["8e03978e-40d5-43e8-bc93-6894a57f9324", "a b", 'say "x"', "back\\slash", "a,b;c"]
)
def test_a_quoted_key_reads_as_it_was_made(key: str) -> None:
    rules = RetryRules(quoted=True, make_key=lambda: key)
    assert parse([made(rules).encode()]) == key


def test_a_bare_key_is_sent_as_it_was_made() -> None:
    assert made(RetryRules(make_key=lambda: "order-7")) == "order-7"


@pytest.mark.parametrize(
    "key", ["", "a b", "a,b", "a;b", '"a"', "a\\b", "a\r\nX: y", "é", "x" * 256, None, 7, b"k"]
)
def test_a_maker_of_no_key_is_refused(key: Any) -> None:
    with pytest.raises(InvalidKeyError, match="make_key must return 1 to 255"):
        RetryRules(make_key=lambda: key).key_for("POST", None)


# Which responses are asked for again


@pytest.mark.parametrize("status", [408, 409, 429, 502, 503, 504])
def test_a_passing_status_is_retried(status: int) -> None:
    assert wait(begin().after_response(status, {"retry-after": "1"})) == 1.2


@pytest.mark.parametrize("status", [200, 201, 302, 307, 400, 401, 402, 403, 404, 412, 422, 500, 501])
def test_a_final_status_is_not_retried(status: int) -> None:
    assert begin().after_response(status, {"retry-after": "1"}) is None


@pytest.mark.parametrize("header", ["idempotency-replayed", "idempotent-replayed"])
def test_a_replayed_response_is_not_retried(header: str) -> None:
    """It is stored: it comes again and again."""
    assert begin().after_response(503, {header: "true", "retry-after": "1"}) is None
    assert begin().after_response(503, {header: "false"}) is not None


@pytest.mark.parametrize(
    ("verdict", "status", "retried"),
    [("true", 500, True), ("false", 503, False), ("?", 503, True), ("true", 200, False)],
)
def test_stripes_verdict_goes_before_the_status(verdict: str, status: int, retried: bool) -> None:
    assert (begin().after_response(status, {"stripe-should-retry": verdict}) is not None) == retried


def test_a_conflict_at_the_first_use_of_a_fresh_key_is_final() -> None:
    """Nobody else knows the key: the handler itself says 409, and would again."""
    assert begin(fresh=True).after_response(409, NO_HEADERS) is None


def test_a_conflict_that_may_be_an_earlier_attempt_is_retried() -> None:
    later = begin(fresh=True)
    assert later.after_error(TimeoutError()) is not None
    assert later.after_response(409, NO_HEADERS) is not None
    assert begin(fresh=True).after_response(409, {"retry-after": "1"}) is not None
    assert begin().after_response(409, NO_HEADERS) is not None


# How long


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("7", 7.0),
        (" 7 ", 7.0),
        ("0.5", 0.5),
        ("999999999999999999", 1e18),
        ("", None),
        ("-5", None),
        ("1e9", None),
        ("nan", None),
        ("inf", None),
        ("5 days", None),
        ("1, 2", None),
        # Longer than any wait, so the response is the caller's: as if absent, it was asked again at once.
        ("9" * 19, 1e19),
        ("9" * 5000, inf),
        ("0." + "9" * 5000, 1.0),
        ("\u0661", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("Wed, 21 Oct 2015 07:28:00", 0.0),
        ("Wed, 21 Oct 99999 07:28:00 GMT", inf),
        ("Wed, 21 Abc 99999 07:28:00 GMT", None),
        ("Wed, 21 Oct 2015 25:61:61 GMT", None),
    ],
)
def test_retry_after_is_read(value: str, seconds: float | None) -> None:
    assert told_seconds({"retry-after": value}) == seconds


@given(st.text())
def test_no_text_of_retry_after_is_an_error(value: str) -> None:
    seconds = told_seconds({"retry-after": value, "date": value})
    assert seconds is None or (seconds >= 0.0 and math.isfinite(seconds))


def test_a_date_is_compared_with_the_servers_own() -> None:
    """A client whose clock is an hour off waits as long as any other."""
    then = datetime(2015, 10, 21, 7, 28, tzinfo=UTC)
    headers = {
        "date": format_datetime(then, usegmt=True),
        "retry-after": format_datetime(then + timedelta(seconds=30), usegmt=True),
    }
    assert told_seconds(headers) == 30.0


def test_a_date_without_the_servers_own_is_compared_with_ours() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    told = told_seconds({"retry-after": soon})
    assert told is not None
    assert 60.0 < told <= 90.0


def test_the_longest_wait_doubles_up_to_its_bound() -> None:
    attempts = begin(attempts=100, within=1000.0, backoff=0.5, max_backoff=3.0)
    assert [wait(attempts.after_error(TimeoutError())) for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_the_wait_is_drawn_from_zero_up() -> None:
    draws = iter([0.0, 0.25, 1.0])
    attempts = begin(jitter=lambda: next(draws), backoff=1.0)
    assert [wait(attempts.after_error(TimeoutError())) for _ in range(3)] == [0.0, 0.5, 4.0]


def test_a_thousand_attempts_overflow_nothing() -> None:
    attempts = begin(attempts=2000, max_backoff=1.0)
    assert {wait(attempts.after_error(TimeoutError())) for _ in range(1999)} == {0.2, 0.4, 0.8, 1.0}


def test_it_never_asks_earlier_than_told() -> None:
    attempts = begin(jitter=lambda: 0.0)
    assert wait(attempts.after_response(503, {"retry-after": "5"})) == 5.0


def test_told_to_wait_longer_than_is_left_it_stops() -> None:
    assert wait(begin(within=30.0).after_response(503, {"retry-after": "30"})) == 30.0
    assert begin(within=30.0).after_response(503, {"retry-after": "31"}) is None


# Bounds


def test_attempts_are_counted() -> None:
    attempts = begin(attempts=3)
    assert [attempts.after_error(TimeoutError()) is None for _ in range(3)] == [False, False, True]


def test_no_attempt_starts_after_the_time_is_over() -> None:
    clock = Clock(1000.0)
    attempts = begin(clock=clock, within=10.0, backoff=4.0)
    clock.advance(9.0)
    assert wait(attempts.after_error(TimeoutError())) == 1.0
    clock.advance(1.0)
    assert attempts.after_error(TimeoutError()) is None


def test_a_body_that_cannot_be_sent_again_is_not() -> None:
    error = TimeoutError()
    assert begin(repeatable=False).after_error(error) is None
    assert "cannot be read twice" in error.__notes__[0]
    assert begin(repeatable=False).after_response(503, NO_HEADERS) is None


def test_the_last_error_says_how_often_it_was_tried() -> None:
    attempts, error = begin(attempts=2), TimeoutError()
    attempts.after_error(TimeoutError())
    assert attempts.after_error(error) is None
    assert error.__notes__[0].startswith(
        "fastdedup: attempt 2 under this Idempotency-Key was the last; whether"
    )


@pytest.mark.parametrize("linked", ["__cause__", "__context__"])
def test_a_bad_certificate_is_not_retried(linked: str) -> None:
    error = OSError()
    setattr(error, linked, ssl.SSLCertVerificationError())
    assert begin().after_error(error) is None
    assert lasting(error)


def test_errors_that_go_in_a_circle_end_the_search() -> None:
    one, other = OSError(), OSError()
    one.__cause__, other.__cause__ = other, one
    assert not lasting(one)


def test_a_retry_has_its_facts() -> None:
    error = TimeoutError()
    assert begin().after_error(error) == Retry("k", 1, 0.2, None, error)
    assert begin().after_response(503, NO_HEADERS) == Retry("k", 1, 0.2, 503, None)


# Settings


@pytest.mark.parametrize(
    ("length", "fits"),
    [("0", True), ("10", True), ("11", False), ("-1", False), ("x", False), ("9" * 5000, False)],
)
def test_a_body_is_held_up_to_the_buffer(length: str, fits: bool) -> None:
    assert RetryRules(buffer=10).fits({"content-length": length}) == fits


def test_a_body_of_unknown_length_is_not_held() -> None:
    assert not RetryRules().fits({})
    assert not RetryRules().fits({"content-length": "5", "transfer-encoding": "chunked"})


@pytest.mark.parametrize(
    "setting",
    [
        {"methods": "POST"},
        {"methods": [7]},
        {"header": "Idempotency Key"},
        {"header": ""},
        {"make_key": "k"},
        {"quoted": 1},
        {"statuses": 503},
        {"statuses": [200]},
        {"statuses": ["503"]},
        {"attempts": 0},
        {"attempts": True},
        {"within": 0},
        {"within": math.inf},
        {"backoff": -1},
        {"max_backoff": "1"},
        {"buffer": -1},
        {"on_retry": 1},
        {"jitter": None},
        {"clock": None},
    ],
    ids=str,
)
def test_a_setting_that_cannot_be_used_is_named(setting: dict[str, Any]) -> None:
    (name,) = setting
    with pytest.raises(ConfigError, match=name):
        RetryRules(**setting)


def test_times_may_be_timedeltas_and_methods_small() -> None:
    rules = RetryRules(within=timedelta(seconds=5), methods=["put"])
    assert rules.within == 5.0
    assert rules.key_for("PUT", None) is not None
