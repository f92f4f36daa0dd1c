"""Numbers that users pass: checked in one place, named in the message."""

import math
from typing import Any

import pytest

from fastdedup import ConfigError
from fastdedup.checks import MAX_SECONDS, check_count, check_seconds, milliseconds

HUGE = [pytest.param(10**400, id="huge"), pytest.param(-(10**400), id="-huge")]
NO_TIMES = [math.nan, math.inf, -math.inf, True, False, "30", None, [], 1j, *HUGE]


@pytest.mark.parametrize(("seconds", "expected"), [(0.001, 1), (0.0015, 2), (1, 1000), (30.0, 30_000)])
def test_a_time_becomes_whole_milliseconds(seconds: float, expected: int) -> None:
    """Rounded, and at least one."""
    assert milliseconds(seconds, "lease") == expected


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
    with pytest.raises(ConfigError, match=r"lease=.*between 0.001 s and"):
        check_seconds(value, "lease")


def test_some_times_may_be_zero() -> None:
    """Not to wait at all is a way of waiting."""
    assert check_seconds(0, "wait", least=0.0) == 0.0
    with pytest.raises(ConfigError, match="wait=-1"):
        check_seconds(-1, "wait", least=0.0)


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "7", None, math.nan])
def test_what_is_no_count_is_refused(value: Any) -> None:
    """The message names the setting and its least value."""
    with pytest.raises(ConfigError, match="maxsize is a whole number of at least 1"):
        check_count(value, "maxsize")


def test_a_count_is_any_whole_number_from_its_least_on() -> None:
    """Zero only where it makes sense."""
    assert check_count(1, "maxsize") == 1
    assert check_count(10**30, "maxsize") == 10**30
    assert check_count(0, "version", least=0) == 0
