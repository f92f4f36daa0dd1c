"""Step 4: one-time tokens, locks and state machines, on the same ground as claims."""

from __future__ import annotations

import pytest

from fastdedup import Dedup, InProgressError, Outcome


async def test_a_token_is_consumed_once(url: str) -> None:
    """The first use is ACQUIRED, each later one is told that it was used."""
    async with Dedup(url) as dedup:
        token = await dedup.tokens.issue()
        assert await dedup.tokens.consume(token) is Outcome.ACQUIRED
        assert await dedup.tokens.consume(token) is Outcome.SUCCEEDED


async def test_a_token_is_good_for_its_subject_alone(url: str) -> None:
    """A token that was issued for one user is a MISMATCH to another, and stays unused."""
    async with Dedup(url) as dedup:
        token = await dedup.tokens.issue(subject="user:7")
        assert await dedup.tokens.consume(token, subject="user:8") is Outcome.MISMATCH
        assert await dedup.tokens.consume(token, subject="user:7") is Outcome.ACQUIRED


async def test_a_second_click_on_a_form_replays_the_first(url: str) -> None:
    """`redeem` makes a claim of a token: it is settled like any other, and its result is replayed."""
    async with Dedup(url) as dedup:
        token = await dedup.tokens.issue(subject="user:7")
        async with dedup.tokens.redeem(token, subject="user:7") as claim:
            await claim.complete("order 1")
        assert (await dedup.tokens.redeem(token, subject="user:7")).result == "order 1"


async def test_a_lock_excludes_and_remembers_nothing(url: str) -> None:
    """While a lock is held nobody else enters; afterwards the next holder does, with a higher fence."""
    async with Dedup(url) as dedup:
        async with dedup.lock("stock:9") as first:
            with pytest.raises(InProgressError):
                async with dedup.lock("stock:9"):
                    pass
        async with dedup.lock("stock:9") as second:
            assert second.fence > first.fence


ORDER = {"pending": ("paid", "canceled"), "paid": (), "canceled": ()}


async def test_a_machine_moves_once(url: str) -> None:
    """The first transition changes the state; the same message, delivered again, changes nothing."""
    async with Dedup(url) as dedup:
        orders = dedup.machine("order", initial="pending", transitions=ORDER)
        move = await orders.transition("42", to="paid")
        assert (move.outcome, move.state, move.version) == ("changed", "paid", 1)
        assert (await orders.transition("42", to="paid")).outcome == "already"
        assert await orders.get("42") == ("paid", 1)


async def test_a_machine_says_why_it_does_not_move(url: str) -> None:
    """ILLEGAL: no such move is defined. STALE: it has moved on since the version that the caller had read."""
    async with Dedup(url) as dedup:
        orders = dedup.machine("order", initial="pending", transitions=ORDER)
        _, version = await orders.get("42")
        await orders.transition("42", to="paid")
        assert (await orders.transition("42", to="canceled")).outcome == "illegal"
        assert (await orders.transition("42", to="canceled", version=version)).outcome == "stale"
        assert await orders.get("42") == ("paid", 1)
