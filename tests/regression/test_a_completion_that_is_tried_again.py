"""A completion that goes through an outage is counted once, by what came of it in the end.

Each of its tries was counted as refused, so that the alert for refused operations fired for work that was recorded.
"""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from fastdedup import Dedup, UnavailableError
from fastdedup.integrations.prometheus import watch
from fastdedup.testing import FakeStore

from ..sidecar.running import figure


@pytest.mark.parametrize("given_up", [False, True])
async def test_it_is_counted_once(given_up: bool) -> None:
    registry, store, events = CollectorRegistry(), FakeStore(), []
    dedup = Dedup(store, namespace="shop", lease=30.0, on_event=events.append)
    watch(dedup, registry=registry)
    async with dedup:
        claim = await dedup.claim("order:42")
        store.outage.start("refused")
        completing = asyncio.ensure_future(claim.complete("done", within=0.2 if given_up else None))
        while len(events) < 2:  # noqa: ASYNC110 -- it has tried twice
            await asyncio.sleep(0.001)
        if given_up:
            with pytest.raises(UnavailableError):
                await completing
        store.outage.stop()
        await completing if not given_up else None
    text = generate_latest(registry).decode()
    counts = [
        figure(text, "fastdedup_operations_total", verb="complete", outcome=outcome)
        for outcome in ("ok", "unavailable")
    ]
    assert counts == ([0, 1] if given_up else [1, 0])
