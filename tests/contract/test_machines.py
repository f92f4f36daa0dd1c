"""Guarantee 11: state machines."""

from __future__ import annotations

from typing import Any

import pytest

from fastdedup import ConfigError, Dedup, TransitionOutcome

from ..stores import Backend, on_both_faces

ORDER = {
    "pending": ("paid", "expired", "canceled"),
    "paid": ("shipped", "refunded"),
    "expired": (),
    "canceled": (),
    "shipped": (),
    "refunded": ("paid",),
}


@on_both_faces
async def test_a_machine_moves_along_its_definition(dedup: Dedup, backend: Backend) -> None:
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


@on_both_faces
async def test_a_version_must_be_the_present_one(dedup: Dedup) -> None:
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


@on_both_faces
async def test_machines_of_different_names_do_not_meet(dedup: Dedup) -> None:
    one = dedup.machine("one", initial="a", transitions={"a": ("b",), "b": ()})
    two = dedup.machine("two", initial="a", transitions={"a": ("b",), "b": ()})
    assert (one.name, one.initial, one.states) == ("one", "a", {"a", "b"})
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
        ("\ud800", {"\ud800": ()}, "state"),
        *((initial, {"new": ()}, "a state must be text") for initial in ([], None, 7)),
        ("a", None, "got None"),
        ("a", [("a", ())], "must map each state"),
        ("a", {"a": (1, "b"), "b": ()}, "got 1"),
        ("a", {"a": 7}, "must be a tuple of states, got 7"),
        ("a", {"a": None}, "must be a tuple of states"),
        ("a", {1: ()}, "got 1"),
    ],
)
def test_a_definition_is_checked_when_made(initial: Any, transitions: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Dedup("memory://").machine("order", initial=initial, transitions=transitions)


@on_both_faces
async def test_an_unknown_target_is_a_mistake(dedup: Dedup) -> None:
    orders = dedup.machine("order", initial="pending", transitions=ORDER)
    with pytest.raises(ConfigError, match="no state 'payed'; it has 'canceled'"):
        await orders.transition("42", to="payed")
    with pytest.raises(ConfigError, match="version"):
        await orders.transition("42", to="paid", version=-1)
    # A sidecar refuses a whole batch for it.
    with pytest.raises(ConfigError, match="version must be at most"):
        await orders.transition("42", to="paid", version=2**63)
