"""Fault: while a gate closed, the policy of a scope gave its first answer, and no `aclose` ever ended well again.

What brings the journals home was looked at one by one, with a wait at each, and there was one more meanwhile.
"""

from __future__ import annotations

import asyncio

from fastdedup import Dedup, LocalLRU
from fastdedup.events import Event, Unreplayed

from ..servers import RedisServer


async def test_a_request_under_way_does_not_hinder_the_end() -> None:
    events: list[Event] = []
    server = RedisServer()  # which does not run
    dedup = Dedup(
        server.url, namespace="shop", timeout=0.1, on_unavailable=LocalLRU(), on_event=events.append
    )
    sms = dedup.scoped("sms", on_unavailable=LocalLRU())
    await dedup.open()
    await dedup.claim("early")
    (late, _) = await asyncio.gather(sms.claim("late"), dedup.aclose())
    assert late.degraded
    assert not dedup.is_open
    assert {event.key for event in events if isinstance(event, Unreplayed)} == {"early", "late"}
    await dedup.open()
    await dedup.aclose()
