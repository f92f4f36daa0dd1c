"""A callback's error changes no answer and stops no batch; gates are made in any thread."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from typing import Any

import pytest

from fastdedup import Dedup, LocalLRU
from fastdedup.testing import FakeStore

# Fault: an error of the `on_batch` callback left its batch in the engine: its claim, and `aclose`, never
# ended.


async def test_an_error_of_on_batch_stops_no_batch(redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR", "fastdedup")
    sizes: list[int] = []

    def counted(size: int) -> None:
        sizes.append(size)
        raise RuntimeError("the socket of statsd, secret, is gone")

    dedup = Dedup(redis_url, namespace="t")
    dedup.on_batch(counted)
    async with asyncio.timeout(20), dedup:
        for number in range(5):
            assert (await dedup.claim(f"k{number}")).acquired
        assert (dedup.in_flight, dedup.pending) == (0, 0)
    assert len(sizes) >= 5
    (line,) = [each for each in caplog.messages if "on_batch" in each]
    assert line.startswith("the on_batch callback failed: RuntimeError at ")
    assert "secret" not in line


# Fault: a callback that asked a cancelled future for its result, and so raised CancelledError, ended the
# claim.


@pytest.mark.parametrize("callback", ["on_event", "on_batch"])
async def test_a_cancellation_that_a_callback_raises_is_logged(
    callback: str, caplog: pytest.LogCaptureFixture
) -> None:
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


# Fault: while another thread made gates, a claim that learned of a success raised "Set changed size".


async def test_a_claim_does_not_see_them() -> None:
    over = threading.Event()

    def make_gates() -> None:
        while not over.is_set():
            gates = [Dedup("memory://") for _ in range(20)]
            del gates
            gc.collect(0)

    thread = threading.Thread(target=make_gates)
    former = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread.start()
    try:
        async with Dedup("memory://", known_duplicates=5.0) as dedup:
            for number in range(1_500):
                async with dedup.claim(f"k{number}"):
                    pass
                assert not (await dedup.claim(f"k{number}")).acquired
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(former)
