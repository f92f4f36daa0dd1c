"""Fault: a renewal that came while its claim was released told of a lost lease: an ERROR in the log, and an event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fastdedup import Dedup
from fastdedup.events import Event, LeaseLost

from ..proxy import proxied
from ..servers import RedisServer


@pytest.mark.parametrize("how", ["release", "complete"])
async def test_no_lease_is_lost(
    redis_url: str, redis_server: RedisServer, wait_until: Callable[..., Any], how: str
) -> None:
    events: list[Event] = []
    async with (
        proxied(redis_server) as proxy,
        Dedup(proxy.url, namespace="t", timeout=5.0, lease=1.5, on_event=events.append) as dedup,
    ):
        claim = await dedup.claim(how, renew=True)
        with redis_server.frozen():
            ending = asyncio.ensure_future(getattr(claim, how)())
            renewal = claim._renewal
            await wait_until(
                lambda: renewal._task is not None and renewal._task.done(), description="the renewal came"
            )
        await ending
        assert not claim.lost
    assert not [event for event in events if isinstance(event, LeaseLost)]
