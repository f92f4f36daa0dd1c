"""A ledger that version 0.1.0 founded keeps its buckets, and 0.1.0 refuses one whose buckets it would not find."""

from __future__ import annotations

import orjson
import pytest

from fastdedup import Dedup
from fastdedup.protocol.ledger_forms import LedgerForm
from fastdedup.protocol.ledger_ids import ledger_wire
from fastdedup.protocol.ledgers import LedgerOp

WINDOW_MS = 60_000


def text_of_0_1_0(width: int) -> bytes:
    return orjson.dumps(
        {"capacity": 10_000, "width": width, "window_ms": WINDOW_MS, "slots": 100, "secret": "5a" * 32}
    )


@pytest.mark.parametrize(("width", "buckets"), [(3, 90), (4, 90), (7, 90), (16, 79)])
def test_an_old_form_has_its_buckets(width: int, buckets: int) -> None:
    form = LedgerForm.read(text_of_0_1_0(width))
    assert form is not None
    assert form.buckets == buckets
    assert form.text() == text_of_0_1_0(width)
    assert form.settled().buckets == buckets
    resized = LedgerForm.read(form.resized(20_000, 99).text())
    assert resized is not None
    assert resized.former is not None
    assert resized.former.buckets == buckets


@pytest.mark.parametrize(("width", "buckets"), [(3, 63), (4, 63), (7, 90), (16, 74)])
def test_a_new_form_says_its_buckets_where_they_differ(width: int, buckets: int) -> None:
    form = LedgerForm.drawn(capacity=10_000, width=width, window_ms=WINDOW_MS)
    again = LedgerForm.read(form.text())
    assert again is not None
    assert again.buckets == form.buckets == buckets
    # 0.1.0 asks for "slots" and refuses a form without them.
    assert ("slots" in orjson.loads(form.text())) == (width == 7)


@pytest.mark.parametrize("entries", [0, -1, 1001, "160", None, 1.5, True])
def test_a_form_with_a_wrong_plan_is_refused(entries: object) -> None:
    form = orjson.loads(LedgerForm.drawn(capacity=10_000, width=4, window_ms=WINDOW_MS).text())
    form["plan"]["entries"] = entries
    assert LedgerForm.read(orjson.dumps(form)) is None


async def test_its_ids_are_found_again(redis_url: str) -> None:
    """Where another version would look in other buckets, a week of ids would be new."""
    async with Dedup(redis_url, namespace="old-ledger", timeout=5.0) as dedup:
        wire = ledger_wire("old-ledger", "ids")
        await dedup._namespace.ask.run(LedgerOp(wire, text_of_0_1_0(16), WINDOW_MS))
        ledger = dedup.ledger("ids", window=60.0, capacity=10_000, width=16)
        assert all(await ledger.first_many(range(500)))
        view = ledger._view
        assert view is not None
        assert view.form.buckets == 79
    async with Dedup(redis_url, namespace="old-ledger", timeout=5.0) as dedup:
        ledger = dedup.ledger("ids", window=60.0, capacity=10_000, width=16)
        assert not any(await ledger.first_many(range(500)))
