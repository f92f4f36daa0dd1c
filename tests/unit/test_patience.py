"""The timeout of steps to a store, in a loop that has time and in one that has none."""

from __future__ import annotations

import asyncio
from itertools import chain
from types import SimpleNamespace

import pytest

from fastdedup.tasks import patience


@pytest.mark.parametrize(
    ("turns", "more"),
    [
        pytest.param([0.0, 0.0, 0.0], 0.0, id="idle"),
        pytest.param([0.4, 0.5, 0.3], 6.0, id="busy"),
        pytest.param([5.0, 0.0, 0.0], 0.0, id="blocked once"),
        pytest.param([60.0, 60.0, 60.0], 10.0, id="blocked"),
    ],
)
async def test_only_a_loop_that_never_has_time_gets_more(
    turns: list[float], more: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long timeout would also hold back the next attempt while a server is gone."""
    times = chain.from_iterable((0.0, turn) for turn in turns)
    loop = SimpleNamespace(time=lambda: next(times))
    measured = SimpleNamespace(get_running_loop=lambda: loop, sleep=asyncio.sleep)
    monkeypatch.setattr("fastdedup.tasks.asyncio", measured)
    assert await patience(0.25) == pytest.approx(0.25 + more)
