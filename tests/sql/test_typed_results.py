"""A duplicate of an inbox's `once` gets the type and the value that the first call returned."""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest

from fastdedup import ConfigError, FailedError, ResultError, ResultWarning
from fastdedup.codec import UNSTORABLE
from fastdedup.results.values import same
from fastdedup.sync import Dedup
from fastdedup.sync.sql import Inbox
from fastdedup.testing import inbox_database

from ..codecs import CodecOf
from ..kinds import IDS, KINDS, ORDER, Order, Rushed, returning

OF_A_KIND = pytest.mark.parametrize(("declared", "value"), KINDS, ids=IDS)


@dataclass
class Other:
    never_there: bytes


class Desk:
    """An inbox in SQLite, and a function that it decorates."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.inbox = Inbox("billing", keep=60.0)
        self.runs: list[str] = []

    @contextmanager
    def begin(self) -> Iterator[sqlite3.Connection]:
        with self.connection:
            yield self.connection

    def once(self, declared: Any, value: Any, **options: Any) -> Any:
        work = returning(declared, value, is_async=False, before=True)

        def counted(transaction: Any, key: str) -> Any:
            self.runs.append(key)
            return work(transaction, key)

        counted.__annotations__["return"] = declared
        decorate = self.inbox.once(lambda transaction, key: key, begin=self.begin, **options)
        return decorate(counted)


@pytest.fixture
def desk() -> Iterator[Desk]:
    with inbox_database(Inbox("billing", keep=60.0)) as connection:
        yield Desk(connection)


@OF_A_KIND
def test_a_duplicate_gets_the_type_and_the_value(desk: Desk, declared: Any, value: Any) -> None:
    work = desk.once(declared, value)
    for _ in range(3):
        assert same(work("k"), value)
    assert desk.runs == ["k"]


@OF_A_KIND
def test_so_does_one_that_the_gate_answers(desk: Desk, declared: Any, value: Any) -> None:
    with Dedup("memory://", known_duplicates=0) as gate:
        work = desk.once(declared, value, gate=gate, wait=1.0)
        assert same(work("k"), value)
        desk.connection.execute("DELETE FROM fastdedup_inbox")
        desk.connection.commit()
        assert same(work("k"), value)
        assert desk.runs == ["k"]


@OF_A_KIND
def test_a_receipt_takes_it_and_gives_it_back(desk: Desk, declared: Any, value: Any) -> None:
    with desk.begin() as transaction:
        desk.inbox.receive(transaction, "k").complete(value)
    with desk.begin() as transaction:
        again = desk.inbox.receive(transaction, "k")
        if declared is not None:
            assert same(again.replay(declared), value)
        with pytest.raises(ResultError):
            again.replay(Other)


LOST: list[tuple[Any, Any, str]] = [
    (Any, (1, 2), "tuple"),
    (Any, {1, 2}, "set"),
    (Order, Rushed(ORDER.id, ORDER.at, []), "it would come back as Order"),
]


@pytest.mark.parametrize(("declared", "value", "why"), LOST, ids=["tuple", "set", "subclass"])
@pytest.mark.parametrize("is_gated", [False, True])
def test_a_result_that_duplicates_cannot_get_is_told(
    desk: Desk, declared: Any, value: Any, why: str, is_gated: bool
) -> None:
    """The work is committed, and is never done again."""
    with Dedup("memory://") as gate:
        work = desk.once(declared, value, gate=gate if is_gated else None)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert work("k") is value
        assert [each.category for each in caught] == [ResultWarning]
        for _ in range(2):
            with pytest.raises(FailedError, match=why) as failed:
                work("k")
            assert failed.value.error["message"] == UNSTORABLE
        assert desk.runs == ["k"]
        with desk.begin() as transaction, pytest.raises(FailedError):
            desk.inbox.receive(transaction, "k").replay()


def test_where_warnings_are_errors_the_work_is_committed(desk: Desk) -> None:
    work = desk.once(Any, (1, 2))
    with pytest.raises(ResultWarning) as told:
        work("k")
    assert told.value.result == (1, 2)
    with pytest.raises(FailedError):
        work("k")
    assert desk.runs == ["k"]


def test_a_type_that_cannot_come_back_is_refused(desk: Desk) -> None:
    with pytest.raises(ConfigError, match=r"Iterator.*cannot come back"):
        desk.once(Iterator[int], None)


def test_a_row_of_version_0_1_0_is_read(desk: Desk) -> None:
    with desk.begin() as transaction:
        desk.inbox.receive(transaction, "k").complete(["1.10", 7])
    assert desk.once(tuple[Decimal, int], None)("k") == (Decimal("1.10"), 7)
    with desk.begin() as transaction:
        desk.inbox.receive(transaction, "time").complete("no time")
    assert desk.once(datetime, None)("time") == "no time"
    assert desk.runs == []


def test_a_codec_of_ones_own_decides_alone(desk: Desk) -> None:
    own = CodecOf(lambda value: b"\xff" + repr(value).encode(), lambda data: eval(data[1:]))
    desk.inbox = Inbox("billing", keep=60.0, codec=own)
    with Dedup("memory://", codec=own) as gate:
        for key, options in (("a", {}), ("b", {"gate": gate})):
            work = desk.once(date, (1, {2}), **options)
            assert [work(key), work(key)] == [(1, {2})] * 2
