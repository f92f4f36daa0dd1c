"""The ledger's scenarios: how answers are judged, and that each target finds its row."""

from __future__ import annotations

import random
from math import isnan

import pytest

from bench import ledger, ledger_windows
from bench.contest import Row, Table
from bench.ledger import CALCULATED, PLANNED, calculated
from bench.ledger_windows import Stream
from bench.report import Report
from bench.targets import PLAYED, TARGETS

WINDOW = 10.0


def stream_with_repeats() -> tuple[Stream, int]:
    """Return a stream of which one list was answered at once, and one of its ids."""
    stream = Stream(WINDOW, 4, random.Random(1))
    first = stream.next_list()
    stream.judge(first, [True] * 4, (0.0, 0.1))
    return stream, first.numbers[0]


@pytest.mark.parametrize(
    ("at", "new", "wrong"),
    [
        (5.0, False, (0, 0)),
        (5.0, True, (1, 0)),
        (10.05, True, (0, 0)),
        (10.05, False, (0, 0)),
        (20.0, True, (0, 0)),
        (20.0, False, (0, 1)),
    ],
)
def test_a_repeat_is_held_against_its_window(at: float, new: bool, wrong: tuple[int, int]) -> None:
    stream, number = stream_with_repeats()
    asked = stream.next_list()
    asked.numbers[:] = [number]
    asked.known.clear()
    asked.known[number] = (0.0, 0.1)
    stream.judge(asked, [new], (at, at + 0.01))
    assert (stream.wrongly_new, stream.wrongly_duplicate) == wrong


def test_a_fresh_id_that_is_told_a_duplicate_is_wrong() -> None:
    stream, _ = stream_with_repeats()
    asked = stream.next_list()
    asked.known.clear()
    asked.numbers[:] = range(4, 8)
    stream.judge(asked, [True, False, True, True], (1.0, 1.1))
    assert stream.wrongly_duplicate == 1


def test_no_two_lists_under_way_have_one_earlier_id() -> None:
    stream = Stream(WINDOW, 50, random.Random(2))
    stream.judge(stream.next_list(), [True] * 50, (0.0, 0.1))
    under_way = [stream.next_list() for _ in range(20)]
    earlier = [each for asked in under_way for each in asked.known]
    assert earlier
    assert len(earlier) == len(set(earlier))


def test_a_calculated_row_multiplies_the_bytes_of_an_id() -> None:
    row = calculated(Row("a ledger", {"bytes_an_id": 2**30 / PLANNED * 7}))
    assert row.contestant == f"{CALCULATED}a ledger"
    assert row.figures["calculated_gib"] == pytest.approx(7)


def test_every_ledger_target_has_its_row() -> None:
    figures = {"rate": 1.0, "server_us": 1.0, "bytes_an_id": 1.0, "resident_ratio": 1.0}
    figures |= {"wrongly_new": 0.0, "wrongly_duplicate": 0.0}
    ratios = {ledger.CLAIMS: 1.0, ledger.KEYS + ledger.SERVER: 1.0, ledger_windows.IDLE_P99: 1.0}
    names = {
        "ledger": (ledger.CLAIMS, ledger.FIRST, ledger.FIRST_MANY, ledger.FIRST_FEW, ledger.SET_NX),
        "ledger-memory": (*ledger.LEDGERS, ledger.KEYS, ledger.RECORDS),
        "ledger-windows": ledger_windows.ROWS,
    }
    tables = [
        Table(name, name, "rate", tuple(Row(row, figures, ratios) for row in rows))
        for name, rows in names.items()
    ]
    report = Report({}, {}, tuple(tables))
    ours = [each for each in TARGETS if names.keys() & set(PLAYED[each.number])]
    assert len(ours) == 19
    assert not [each.title for each in ours if isnan(each.figure(report))]
