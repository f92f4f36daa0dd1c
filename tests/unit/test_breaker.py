"""The breaker alone, a decider: no store, no clock, no sleep."""

from __future__ import annotations

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
