"""Faults: a shortfall that was raised burned a token, and a transition repeated after it was said to be confirmed.

`consume` raised ShortfallError, so no caller was ever told ACQUIRED, and the token was SUCCEEDED from then on. A
transition whose state stood already wrote nothing, so WAIT had nothing to wait for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fastdedup import Dedup, Outcome, ShortfallError, TransitionOutcome

from ..topologies import Pair

WaitUntil = Callable[..., Any]
TRANSITIONS = {"pending": ("paid",), "paid": ()}


@pytest.fixture(scope="module")
def running() -> Iterator[Pair]:
    pair = Pair()
    try:
        yield pair.start()
    finally:
        pair.stop()


@pytest.fixture
def frozen_pair(pair: Pair) -> Pair:
    """A server with one replica, which is frozen."""
    pair.replica.freeze()
    return pair


def gate(pair: Pair, *, replicas: int = 1, on_shortfall: str = "raise") -> Dedup:
    return Dedup(pair.url, namespace="t", timeout=1.0, replicas=replicas, on_shortfall=on_shortfall)


async def test_a_token_that_fell_short_is_issued_again(frozen_pair: Pair) -> None:
    async with gate(frozen_pair) as dedup, gate(frozen_pair, replicas=0) as other:
        token = await other.tokens.issue()
        with pytest.raises(ShortfallError):
            await dedup.tokens.consume(token)
        assert await other.tokens.consume(token) is Outcome.ACQUIRED


async def test_a_named_use_that_fell_short_is_its_owners(frozen_pair: Pair, wait_until: WaitUntil) -> None:
    """The same owner asks again, and is asked for by the replicas' word again."""
    async with gate(frozen_pair) as dedup, gate(frozen_pair, replicas=0) as other:
        token = await other.tokens.issue()
        for _ in range(2):
            with pytest.raises(ShortfallError):
                await dedup.tokens.consume(token, owner="desk")
        assert await other.tokens.consume(token) is Outcome.SUCCEEDED
        frozen_pair.replica.thaw()

        async def is_confirmed() -> bool:
            with contextlib.suppress(ShortfallError):
                return await dedup.tokens.consume(token, owner="desk") is Outcome.ACQUIRED
            return False

        await wait_until(is_confirmed, description="the replica has the use")


async def test_an_id_that_fell_short_is_new_again(frozen_pair: Pair) -> None:
    async with gate(frozen_pair) as dedup, gate(frozen_pair, replicas=0) as other:
        ours, theirs = (each.ledger("orders", window=60, capacity=1_000) for each in (dedup, other))
        await theirs.open()
        for remember in (lambda: ours.first("1"), lambda: ours.first_many(["1", "2"])):
            with pytest.raises(ShortfallError):
                await remember()
        assert await theirs.first_many(["1", "2"]) == [True, True]


@pytest.mark.parametrize("again", ["the same gate", "another gate"])
async def test_a_repeated_transition_is_not_confirmed(
    frozen_pair: Pair, wait_until: WaitUntil, again: str
) -> None:
    async with (
        gate(frozen_pair, on_shortfall="report") as dedup,
        gate(frozen_pair, on_shortfall="report") as other,
    ):
        machines = [
            each.machine(f"order-{len(again)}", initial="pending", transitions=TRANSITIONS)
            for each in (dedup, other)
        ]
        moved = await machines[0].transition("42", to="paid")
        assert (moved.outcome, moved.confirmed) == (TransitionOutcome.CHANGED, False)
        repeated = await machines[again == "another gate"].transition("42", to="paid")
        assert (repeated.outcome, repeated.confirmed) == (TransitionOutcome.ALREADY, False)
        frozen_pair.replica.thaw()

        async def is_confirmed() -> bool:
            return (await machines[0].transition("42", to="paid")).confirmed

        await wait_until(is_confirmed, description="the replica has the change")


async def test_a_repeated_transition_that_fell_short_raises(frozen_pair: Pair) -> None:
    async with gate(frozen_pair) as dedup:
        machine = dedup.machine("invoice", initial="pending", transitions=TRANSITIONS)
        for _ in range(2):
            with pytest.raises(ShortfallError):
                await machine.transition("42", to="paid")
