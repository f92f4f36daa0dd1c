"""Fault: an error of the `on_batch` callback left its batch in the engine: its claim, and `aclose`, never ended."""

from __future__ import annotations

import asyncio

import pytest

from fastdedup import Dedup


async def test_its_error_stops_no_batch(redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
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
