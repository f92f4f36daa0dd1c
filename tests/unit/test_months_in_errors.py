"""Errors and reprs show long times and large counts in full: `2592000 s`, never `2.592e+06 s`."""

from __future__ import annotations

import pytest

from fastdedup import ConfigError, Dedup, Reject
from fastdedup.messages.memory import check_memory


def test_a_month_of_a_broker_is_shown_in_whole_seconds() -> None:
    with pytest.raises(ConfigError, match=r"after 2592000 s \(retention\).* for 1209600 s only"):
        check_memory(1_209_600.0, 2_592_000.0, "retention")


def test_a_ledger_shows_its_window_in_full() -> None:
    dedup = Dedup("memory://", namespace="shop")
    ledger = dedup.ledger("clicks", window=2_592_000.0, capacity=80_000_000)
    assert repr(ledger).endswith("window=2592000>")


def test_a_policy_shows_its_time_in_full() -> None:
    assert repr(Reject(retry_after=1_209_601.0)) == "Reject(retry_after=1209601)"
