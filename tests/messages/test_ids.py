"""Ids of messages: the same one for the same event, a new one that sorts by time."""

from __future__ import annotations

import builtins
import sys
import uuid
from typing import Any

import pytest

from fastdedup import ConfigError, InvalidKeyError
from fastdedup.messages import new_id, republished_id

EVENTS = uuid.UUID("0b2c7a54-6f1e-4a53-9f0c-2f6a3d1c8e77")


def test_an_event_has_one_id() -> None:
    found = republished_id(EVENTS, "invoice-paid", 7)
    assert found == republished_id(EVENTS, "invoice-paid", 7) == str(uuid.uuid5(EVENTS, "invoice-paid|7"))
    assert uuid.UUID(found).version == 5


def test_two_events_have_two_ids() -> None:
    given = [("a", "b"), ("a|b",), ("ab",), ("b", "a")]
    assert len({republished_id(EVENTS, *parts) for parts in given}) == 4
    assert republished_id(EVENTS, "a") != republished_id(uuid.NAMESPACE_DNS, "a")


def test_an_id_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidKeyError):
        republished_id(EVENTS)
    with pytest.raises(ConfigError, match="namespace must be a uuid"):
        republished_id("shop", "a")  # type: ignore[arg-type]


def test_new_ids_differ_and_sort_by_their_time() -> None:
    found = [new_id() for _ in range(1000)]
    assert len(set(found)) == 1000
    assert {uuid.UUID(each).version for each in found} == {7}
    assert found == sorted(found)


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *more: Any) -> Any:
        if name == "uuid_utils":
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.delattr(uuid, "uuid7", raising=False)
    monkeypatch.delitem(sys.modules, "uuid_utils", raising=False)
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ImportError, match=r"fastdedup\[ids\]"):
        new_id()


def test_a_python_that_has_it_needs_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uuid, "uuid7", lambda: EVENTS, raising=False)
    assert new_id() == str(EVENTS)
