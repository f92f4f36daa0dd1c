"""A ledger on `memory://` forgot ids up to a millisecond before their window ended: it cut the time of the start."""

from __future__ import annotations

import pytest

from fastdedup import Dedup
from fastdedup.stores.memory import MemoryStore
from fastdedup.testing import Clock


@pytest.mark.parametrize(("passed", "is_seen"), [(0.0995, True), (0.1, True), (0.1012, False)])
async def test_an_id_is_kept_to_the_windows_end(passed: float, is_seen: bool) -> None:
    clock = Clock(1_800_000_000.0009)  # the last tenth of a millisecond
    async with Dedup(MemoryStore(clock=clock)) as dedup:
        ledger = dedup.ledger("orders", window=0.1, capacity=100)
        assert await ledger.first("id") is True
        clock.advance(passed)
        assert await ledger.seen("id") is is_seen
