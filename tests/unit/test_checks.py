"""Numbers that users pass: checked in one place, named in the message."""

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdedup import ConfigError, DedupError
from fastdedup.checks import MAX_SECONDS, check_count, check_seconds, milliseconds, shown
from fastdedup.ledger.ids import id_bytes, number_bytes
from fastdedup.web.request import name_of_caller

HUGE = [pytest.param(10**400, id="huge"), pytest.param(-(10**400), id="-huge")]
NO_TIMES = [math.nan, math.inf, -math.inf, True, False, "30", None, [], 1j, *HUGE]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.001, 1),
        (0.0011, 2),
        (0.0015, 2),
        (0.0301, 31),
        (1, 1000),
        (30.0, 30_000),
        (timedelta(microseconds=1001), 2),
        (timedelta(minutes=5), 300_000),
        (timedelta(days=3650), 315_360_000_000),
    ],
)
def test_a_time_becomes_whole_milliseconds_rounded_up(seconds: Any, expected: int) -> None:
    """A lease that ended early would have two owners."""
    assert milliseconds(seconds, "lease") == expected


@given(thousandths=st.integers(1, 10**9))
def test_a_decimal_number_of_milliseconds_stays_what_it_is(thousandths: int) -> None:
    """What a float has above 16.1 does not cost another millisecond."""
    assert milliseconds(thousandths / 1000, "lease") == thousandths


@given(micros=st.integers(1000, 10**15))
def test_a_timedelta_never_ends_early(micros: int) -> None:
    """Rounded up by less than a millisecond."""
    span = timedelta(microseconds=micros)
    if span.total_seconds() <= MAX_SECONDS:
        assert 0 <= milliseconds(span, "ttl") - micros / 1000 < 1.001
        assert check_seconds(span, "ttl") == span.total_seconds()


@pytest.mark.parametrize("value", ["s3cret", b"s3cret", ["s3cret"], {"s3cret": 1}])
def test_only_numbers_are_shown(value: Any) -> None:
    """Whatever else was given may be the wrong variable: a password, a URL with one."""
    for check in (check_seconds, check_count, milliseconds):
        with pytest.raises(ConfigError, match=f"got {type(value).__name__}$"):
            check(value, "lease")
    assert shown(timedelta(seconds=-1)) == "timedelta(-1 day, 23:59:59)"
    assert len(shown(10**400)) < 50


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (id_bytes, "an id must have fewer digits, got a whole number of 16610 bits: take its digest"),
        (number_bytes, r"must be 0 to 2\^63 - 1, got a whole number of 16610 bits"),
        (lambda number: name_of_caller(number, "principal"), "a whole number in a principal is too long"),
        (lambda number: check_seconds(number, "lease"), "lease must be .*, got a whole number of 16610 bits"),
        (lambda number: check_count(number, "limit", most=9), "limit must be .*, got a whole number"),
    ],
    ids=range(5),
)
def test_a_number_that_python_does_not_write_is_refused_by_name(call: Any, told: str) -> None:
    with pytest.raises(DedupError, match=told):
        call(10**5000)


def test_ten_years_are_the_longest_time() -> None:
    """The limit itself is allowed."""
    assert check_seconds(MAX_SECONDS, "ttl") == MAX_SECONDS
    with pytest.raises(ConfigError, match="ten years"):
        check_seconds(math.nextafter(MAX_SECONDS, math.inf), "ttl")


@pytest.mark.parametrize("value", NO_TIMES)
def test_what_is_no_time_is_refused(value: Any) -> None:
    """The message names the setting and shows the value."""
    with pytest.raises(ConfigError, match="lease"):
        check_seconds(value, "lease")


@pytest.mark.parametrize("value", [0, 0.0, -0.0, -1, 0.0009, -0.001])
def test_a_time_of_nothing_is_refused(value: float) -> None:
    """A lease of 0 s would give every key to everybody."""
    with pytest.raises(ConfigError, match=r"lease must be between 0.001 s and .* got "):
        check_seconds(value, "lease")


def test_some_times_may_be_zero() -> None:
    """Not to wait at all is a way of waiting."""
    assert check_seconds(0, "wait", least=0.0) == 0.0
    with pytest.raises(ConfigError, match=r"wait must .* got -1"):
        check_seconds(-1, "wait", least=0.0)


def test_a_count_is_any_whole_number_from_its_least_on() -> None:
    """Zero only where it makes sense."""
    assert check_count(1, "maxsize") == 1
    assert check_count(10**30, "maxsize") == 10**30
    assert check_count(0, "version", least=0) == 0
