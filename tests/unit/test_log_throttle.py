"""How many lines a trouble that repeats may have, without a log."""

from __future__ import annotations

from math import inf

import pytest

from fastdedup import log_throttle
from fastdedup.log_throttle import LogThrottle


def test_a_line_at_once_and_then_one_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 7.0
    monkeypatch.setattr(log_throttle, "monotonic", lambda: now)
    throttle = LogThrottle()
    told = []
    for _ in range(121):
        told.append(throttle.passes())
        now += 1.0
    assert [second for second, is_told in enumerate(told) if is_told] == [0, 60, 120]


def test_a_window_has_so_many_lines_and_counts_the_others() -> None:
    throttle = LogThrottle(3, 10.0)
    assert [throttle.passes(now) for now in (5.0, 6.0, 7.0, 8.0, 14.9)] == [True, True, True, False, False]
    assert throttle.passes(15.0)
    assert throttle.take_left_out() == 2
    assert throttle.take_left_out() == 0


def test_a_window_without_end_lets_only_its_first_lines_pass() -> None:
    throttle = LogThrottle(2, inf)
    for left_out in (3, 5):
        assert not any([throttle.passes(1e9 * left_out) for _ in range(5)][2:])
        assert throttle.take_left_out() == left_out


def test_a_clock_that_is_set_back_begins_a_window() -> None:
    throttle = LogThrottle(1, 60.0)
    assert throttle.passes(1_000_000.0)
    assert throttle.passes(10.0)
    assert not throttle.passes(11.0)
