"""The breaker alone, a decider: no store, no clock, no sleep."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fastdedup import BreakerState
from fastdedup.backoff import Backoff
from fastdedup.kernel.breaker import FAILURES, FIRST_PAUSE, LONGEST_PAUSE, Breaker

CLOSED, OPEN = BreakerState.CLOSED, BreakerState.OPEN
failures = st.integers(1, 20)


def opened(breaker: Breaker) -> Breaker:
    while breaker.state is CLOSED:
        breaker.failed("down")
    return breaker


@given(failures)
def test_it_opens_at_exactly_so_many_failures_in_a_row(count: int) -> None:
    breaker = Breaker(failures=count)
    assert [breaker.failed("down") for _ in range(count + 3)] == [False] * (count - 1) + [True] + [False] * 3
    assert breaker.state is OPEN


@given(st.integers(0, 30))
def test_opening_again_begins_with_the_first_pause_again(pauses: int) -> None:
    breaker = opened(Breaker(probes=Backoff(FIRST_PAUSE, LONGEST_PAUSE, steady=1.0)))
    for _ in range(pauses):
        before = breaker.pause()
        breaker.probed("still down")
        assert before <= breaker.pause() <= LONGEST_PAUSE
    breaker.probed(None)
    assert opened(breaker).pause() == FIRST_PAUSE


def test_the_reason_is_that_of_the_last_failure() -> None:
    breaker = opened(Breaker())
    assert breaker.reason == "down"
    breaker.probed("loading")
    assert breaker.reason == "loading"


class Events(RuleBasedStateMachine):
    """Any sequence of events, beside a model that is nothing but a count and a flag."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Breaker()
        self.count = 0
        self.open = False
        self.changes = 0

    @rule()
    def a_batch_is_answered(self) -> None:
        self.breaker.succeeded()
        self.count = 0

    @rule()
    def a_batch_fails(self) -> None:
        self.count += 1
        opens = not self.open and self.count >= FAILURES
        assert self.breaker.failed(f"failure {self.count}") is opens
        self.open = self.open or opens

    @precondition(lambda self: self.open)
    @rule(back=st.booleans())
    def it_is_probed(self, back: bool) -> None:
        assert 0.5 * FIRST_PAUSE <= self.breaker.pause() <= LONGEST_PAUSE
        assert self.breaker.probed(None if back else "still down") is back
        if back:
            self.open, self.count = False, 0

    @invariant()
    def it_stands_where_the_model_does(self) -> None:
        assert self.breaker.state is (OPEN if self.open else CLOSED)
        assert self.breaker.failed_in_a_row == self.count
        assert self.open or self.count < FAILURES
        assert not self.open or self.breaker.reason, "whoever is refused is told why"


TestEvents = Events.TestCase


# The pauses between attempts, without any that is made.


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
