"""Fault: a callback that asked a cancelled future for its result, and so raised CancelledError, ended the claim."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fastdedup import Dedup, LocalLRU
from fastdedup.testing import FakeStore


@pytest.mark.parametrize("callback", ["on_event", "on_batch"])
async def test_it_is_logged_and_changes_no_answer(callback: str, caplog: pytest.LogCaptureFixture) -> None:
    future = asyncio.get_running_loop().create_future()
    future.cancel()

    def asks(_: Any) -> None:
        future.result()

    store = FakeStore()
    dedup = Dedup(store, on_unavailable=LocalLRU(), on_event=asks if callback == "on_event" else None)
    if callback == "on_batch":
        dedup.on_batch(asks)
    async with asyncio.timeout(20), dedup:
        assert (await dedup.claim("before")).acquired
        with store.outage("refused"):
            assert (await dedup.claim("order:42")).degraded
    assert f"the {callback} callback failed" in caplog.text
    assert "CancelledError" in caplog.text
