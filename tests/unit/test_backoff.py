"""The pauses between attempts, without any that is made."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fastdedup.backoff import Backoff

chances = st.floats(0.0, 1.0, exclude_max=True)


@given(st.floats(0.001, 10.0), st.floats(0.001, 10.0), st.floats(1.0, 3.0))
def test_pauses_grow_and_never_exceed_the_longest(first: float, more: float, growth: float) -> None:
    backoff = Backoff(first, first + more, growth=growth, steady=1.0)
    made = [backoff.pause(count) for count in range(100)]
    assert made[0] == first
    assert all(later >= earlier for earlier, later in pairwise(made))
    assert max(made) <= first + more
    assert growth < 1.2 or abs(made[-1] - first - more) < 1e-9


def test_the_next_pause_is_as_much_longer_as_it_says() -> None:
    backoff = Backoff(0.1, 100.0, growth=2.0, steady=1.0)
    assert [backoff.pause(count) for count in range(4)] == [0.1, 0.2, 0.4, 0.8]


@given(st.integers(0, 5000), st.floats(0.0, 1.0), chances)
def test_only_the_part_that_is_not_steady_is_drawn(count: int, steady: float, chance: float) -> None:
    backoff = Backoff(0.02, 0.4, steady=steady)
    longest = backoff.longest(count)
    assert steady * longest - 1e-9 <= backoff.pause(count, lambda: chance) <= longest + 1e-9
    assert abs(backoff.draw(longest, lambda: chance) - (steady + (1 - steady) * chance) * longest) < 1e-9


def test_two_processes_pause_for_different_times() -> None:
    backoff = Backoff(0.02, 0.4)
    assert len({backoff.pause(0) for _ in range(10)}) > 1


def test_a_million_pauses_are_no_error() -> None:
    assert Backoff(0.02, 0.4).longest(1_000_000) == 0.4
