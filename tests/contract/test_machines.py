"""Guarantee 11: state machines."""

from __future__ import annotations

import asyncio

import pytest

from fastdedup import ConfigError, TransitionOutcome
from fastdedup.protocol.operations import Code, Moved, TransitionOp

from ..stores import Backend

ORDER = {
    "pending": ("paid", "expired", "canceled"),
    "paid": ("shipped", "refunded"),
    "expired": (),
    "canceled": (),
    "shipped": (),
    "refunded": ("paid",),
}


async def test_a_machine_moves_along_its_definition(backend: Backend) -> None:
    async with backend.make() as dedup:
        orders = dedup.machine("order", initial="pending", transitions=ORDER)
        with backend.only_the_store_knows:
            assert await orders.get("42") == ("pending", 0)
        move = await orders.transition("42", to="paid")
        assert (move.outcome, move.state, move.version) == (TransitionOutcome.CHANGED, "paid", 1)
        assert move.changed
        again = await orders.transition("42", to="paid")
        assert (again.outcome, again.state, again.version) == (TransitionOutcome.ALREADY, "paid", 1)
        illegal = await orders.transition("42", to="canceled")
        assert (illegal.outcome, illegal.state, illegal.version) == (TransitionOutcome.ILLEGAL, "paid", 1)
        assert await orders.get("42") == ("paid", 1)
        with backend.only_the_store_knows:
            assert await orders.get("43") == ("pending", 0)


async def test_a_version_must_be_the_present_one(backend: Backend) -> None:
    async with backend.make() as dedup:
        orders = dedup.machine("order", initial="pending", transitions=ORDER)
        assert (await orders.transition("42", to="paid", version=3)).outcome is TransitionOutcome.STALE
        assert (await orders.transition("42", to="paid", version=0)).changed
        redelivered = await orders.transition("42", to="paid", version=0)
        assert redelivered.outcome is TransitionOutcome.ALREADY, "the same message, delivered again"
        assert (await orders.transition("42", to="refunded", version=1)).version == 2
        assert (await orders.transition("42", to="paid", version=2)).version == 3
        late = await orders.transition("42", to="paid", version=0)
        assert late.outcome is TransitionOutcome.STALE, (
            "back in this state by another way: not this message's doing"
        )


async def test_a_race_of_transitions_changes_once(backend: Backend) -> None:
    async with backend.make() as dedup:
        orders = dedup.machine("order", initial="pending", transitions=ORDER)
        targets = ["paid", "expired", "canceled"] * 20
        moves = await asyncio.gather(*(orders.transition("42", to=to) for to in targets))
        assert sum(move.changed for move in moves) == 1
        assert len({move.state for move in moves}) == 1


async def test_a_repeated_transition_is_answered_as_the_first_time(backend: Backend) -> None:
    """Guarantee 6: a call whose reply was lost is still the one that changed it."""
    async with backend.make() as dedup:
        orders = dedup.machine("order", initial="pending", transitions=ORDER)
        for _ in range(2):
            op = TransitionOp(
                orders._wire("42"),
                to="paid",
                initial="pending",
                sources=frozenset({"pending"}),
                version=None,
                change=b"0123456789",
                keep_ms=1000,
            )
            moved = await dedup._namespace.ask.run(op)
            assert isinstance(moved, Moved)
            assert (moved.code, moved.state, moved.version) == (Code.OK, "paid", 1)


SWITCH = {"open": ("closed",), "closed": ("open",)}


def sent_again(wire: bytes, change: bytes, version: int | None) -> TransitionOp:
    """A call that was sent before and got no reply."""
    op = TransitionOp(
        wire,
        to="closed",
        initial="open",
        sources=frozenset({"open"}),
        version=version,
        change=change,
        keep_ms=60_000,
    )
    op.unsure = True
    return op


@pytest.mark.parametrize(
    ("version", "moves", "expected"),
    [
        (None, 0, (Code.OK, "closed", 1)),
        (None, 1, (Code.ALREADY, "closed", 1)),
        (None, 2, (Code.UNSURE, "open", 2)),
        (0, 0, (Code.OK, "closed", 1)),
        (0, 2, (Code.UNSURE, "open", 2)),
        (1, 2, (Code.STALE, "open", 2)),
        (2, 2, (Code.OK, "closed", 3)),
        (2, 3, (Code.ALREADY, "closed", 3)),
        (2, 4, (Code.UNSURE, "open", 4)),
    ],
)
async def test_a_transition_sent_again_moves_only_where_it_has_not(
    backend: Backend, version: int | None, moves: int, expected: tuple[Code, str, int]
) -> None:
    """Guarantee 11: one call moves a machine at most once. The record names its last change alone."""
    async with backend.make() as dedup:
        door = dedup.machine("door", initial="open", transitions=SWITCH)
        for number in range(moves):
            assert (await door.transition("1", to="open" if number % 2 else "closed")).changed
        for _ in range(2):
            # Twice: it recognises its own change, and what it may not do it may not do later.
            moved = await dedup._namespace.ask.run(sent_again(door._wire("1"), b"0123456789", version))
            assert isinstance(moved, Moved)
            assert (moved.code, moved.state, moved.version) == expected


async def test_machines_of_different_names_do_not_meet(backend: Backend) -> None:
    async with backend.make() as dedup:
        one = dedup.machine("one", initial="a", transitions={"a": ("b",), "b": ()})
        two = dedup.machine("two", initial="a", transitions={"a": ("b",), "b": ()})
        assert (await one.transition("x", to="b")).changed
        assert (await two.transition("x", to="b")).changed
        assert (await dedup.claim("one/x")).acquired


@pytest.mark.parametrize(
    ("initial", "transitions", "named"),
    [
        ("pending", {"pending": ("piad",), "paid": ()}, "unknown states 'piad'"),
        ("start", {"pending": ("paid",), "paid": ()}, "initial state 'start'"),
        ("pending", {"pending": ("paid",), "paid": (), "lost": (), "found": ("lost",)}, "'found', 'lost'"),
        ("pending", {"pending": "paid", "paid": ()}, r"write \('paid',\)"),
        ("pending", {"pending": ("a\nb",), "a\nb": ()}, "line feeds"),
        ("", {"": ()}, "1 to 64 bytes"),
    ],
)
def test_a_definition_is_checked_when_made(
    initial: str, transitions: dict[str, tuple[str]], named: str
) -> None:
    from fastdedup import Dedup

    with pytest.raises(ConfigError, match=named):
        Dedup("memory://").machine("order", initial=initial, transitions=transitions)


async def test_an_unknown_target_is_a_mistake(backend: Backend) -> None:
    async with backend.make() as dedup:
        orders = dedup.machine("order", initial="pending", transitions=ORDER)
        with pytest.raises(ConfigError, match="no state 'payed'; it has 'canceled'"):
            await orders.transition("42", to="payed")
        with pytest.raises(ConfigError, match="version"):
            await orders.transition("42", to="paid", version=-1)
