"""A duplicate got another type than the first call, two functions with one key each other's results: in silence."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from pickle import dumps, loads
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

import pytest
from pydantic import BaseModel

from fastdedup import Dedup
from fastdedup.sql import Inbox
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.sync.sql import Inbox as SyncInbox


@dataclass
class Receipt:
    number: int


class Model(BaseModel):
    number: int


class Pair(NamedTuple):
    number: int


class Colour(Enum):
    RED = "red"


class Row(TypedDict):
    number: int


class Pickle:
    dumps = staticmethod(dumps)
    loads = staticmethod(loads)


def told(decorate: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        decorate()
    assert all(each.filename == __file__ for each in caught), "at the function's own line"
    return [str(each.message) for each in caught]


def returning(declared: Any) -> Any:
    async def work(order: str) -> Any: ...

    work.__annotations__["return"] = declared
    return work


FACES: list[Callable[[], tuple[Any, bool]]] = [
    lambda: (Dedup("memory://").once, True),
    lambda: (SyncDedup("memory://").once, False),
    lambda: (Inbox("tests", keep=60.0, begin=lambda: None).once, True),
    lambda: (SyncInbox("tests", keep=60.0, begin=lambda: None).once, False),
]


@pytest.mark.parametrize(
    "declared",
    [
        *(Receipt, Model, Pair, Colour, UUID, datetime, Decimal, bytes, set[int], tuple[int, str]),
        *(Receipt | None, list[Receipt], dict[str, UUID]),
    ],
)
def test_a_type_that_json_does_not_have_is_told(declared: Any) -> None:
    (text,) = told(lambda: Dedup("memory://").once(key=lambda order: f"o:{order}")(returning(declared)))
    assert "a duplicate gets another type" in text


@pytest.mark.parametrize(
    "declared", [int, str, float, bool, None, dict[str, Any], list[int], Row, Any, "Missing"]
)
def test_a_type_that_comes_back_is_not_told(declared: Any) -> None:
    assert told(lambda: Dedup("memory://").once(key=lambda order: f"o:{order}")(returning(declared))) == []


def test_a_codec_of_ones_own_is_not_told_of() -> None:
    dedup = Dedup("memory://", codec=Pickle())
    assert told(lambda: dedup.once(key=lambda order: f"o:{order}")(returning(Receipt))) == []


@pytest.mark.parametrize("face", FACES, ids=["asyncio", "sync", "inbox", "sync inbox"])
def test_two_functions_with_equal_keys_are_told(face: Callable[[], tuple[Any, bool]]) -> None:
    once, is_async = face()

    def decorate(name: str, key: Any) -> list[str]:
        async def later(transaction: str, order: str = "") -> None: ...

        def now(transaction: str, order: str = "") -> None: ...

        function: Any = later if is_async else now
        function.__qualname__ = name
        return told(lambda: once(key=key)(function))

    assert decorate("ship", lambda *order: order[-1]) == []
    (text,) = decorate("charge", lambda *id: id[-1])
    assert "ship()" in text
    assert "charge()" in text
    assert decorate("ship", lambda *order: order[-1]) == [], "decorated again, as by a reload"
    assert decorate("refund", lambda *order: f"refund:{order[-1]}") == []
    prefix = "mail"
    assert decorate("mail", lambda *order: f"{prefix}:{order[-1]}") == []


def test_another_namespace_has_keys_of_its_own() -> None:
    dedup = Dedup("memory://")
    assert told(lambda: dedup.once(key=lambda order: order)(returning(int))) == []
    other = returning(int)
    other.__qualname__ = "other"
    assert told(lambda: dedup.scoped("sms").once(key=lambda order: order)(other)) == []
