"""Events tell what happens beside the answers, and never change one."""

import dataclasses
import logging

import pytest

from fastdedup.events import Degraded, Event, LeaseLost, emit

DEGRADED = Degraded("shop", "claim", answered=False, reason="refused")


def test_an_event_reaches_the_callback() -> None:
    """As it is, once."""
    seen: list[Event] = []
    emit(seen.append, DEGRADED)
    assert seen == [DEGRADED]


def test_without_a_callback_nothing_happens() -> None:
    """Events are optional."""
    emit(None, DEGRADED)


def test_a_callback_that_raises_is_logged_with_the_event(caplog: pytest.LogCaptureFixture) -> None:
    """Its author can find out, and nobody else notices."""

    def fails(event: Event) -> None:
        raise ValueError("my own bug")

    with caplog.at_level(logging.ERROR, "fastdedup"):
        emit(fails, DEGRADED)
    assert "on_event callback failed on Degraded(namespace='shop'" in caplog.text
    assert "my own bug" in caplog.text


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
