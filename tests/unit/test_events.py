"""Events tell what happens beside the answers, and never change one."""

import dataclasses
import logging
from collections.abc import Callable

import pytest

from fastdedup import Dedup
from fastdedup.events import BreakerClosed, Conflict, Degraded, Event, LeaseLost, Unreplayed, emit
from fastdedup.stores.memory import MemoryStore

DEGRADED = Degraded("shop", "claim", answered=False, reason="refused")


def test_a_callback_that_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Its author can find out where, and nobody else notices."""

    def fails(event: Event) -> None:
        raise ValueError(f"my own bug with {event}, {event.owner}")  # type: ignore[union-attr]

    with caplog.at_level(logging.ERROR, "fastdedup"):
        emit(fails, LeaseLost("shop", "order:7", "worker", 7))
    assert "on_event callback failed on LeaseLost in namespace 'shop': ValueError at " in caplog.text
    assert f"fails ({__file__}:" in caplog.text
    for secret in ("order:7", "worker"):
        assert secret not in caplog.text, "a key or an owner is logged"


@pytest.mark.parametrize(
    "event",
    [
        LeaseLost("shop", "order:7", "worker", 7),
        Conflict("shop", "order:7", ours="worker", theirs="worker", kept="ours"),
        Unreplayed("shop", "order:7", "worker", "too old"),
    ],
)
def test_an_event_shows_no_owner(event: Event) -> None:
    """Whoever knows one can settle the claim, and events are made to be logged."""
    assert "order:7" in repr(event)
    assert "worker" not in repr(event)


async def test_the_gate_hands_on_what_a_store_reports() -> None:
    """`ConfiguredStore`: the store builds the event, the gate's callback gets it."""

    class Reporting(MemoryStore):
        max_record, max_clock_skew = 1024, 1.0
        on_report: Callable[[Event], None] | None = None

    seen: list[Event] = []
    store, event = Reporting(), BreakerClosed("node", 1.0)
    async with Dedup(store, namespace="t", on_event=seen.append):
        assert store.on_report is not None
        store.on_report(event)
    assert seen == [event]


def test_a_callback_may_end_the_program() -> None:
    """Only errors are kept away from the answers: a KeyboardInterrupt is none."""

    def interrupts(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        emit(interrupts, DEGRADED)


@pytest.mark.parametrize("event", [DEGRADED, LeaseLost("shop", "order:7", "worker", 7)])
def test_events_are_frozen_facts(event: Event) -> None:
    """Comparable and hashable: good for counters."""
    assert event == dataclasses.replace(event)
    assert hash(event) == hash(dataclasses.replace(event))
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.namespace = "other"  # type: ignore[misc]
