"""In an outage LocalLRU gave away what `get()` had told this process: a key done elsewhere, and a machine's state."""

from __future__ import annotations

from typing import Any

from fastdedup import Dedup, LocalLRU, Outcome
from fastdedup.events import Conflict, Event

from ..servers import RedisServer

MACHINE: dict[str, Any] = {
    "initial": "new",
    "transitions": {"new": ("paid",), "paid": ("sent",), "sent": ("back",), "back": ()},
}


async def test_an_outage_forgets_nothing_that_was_read() -> None:
    server, policy, events = RedisServer().start(), LocalLRU(), list[Event]()
    try:
        async with (
            Dedup(server.url, namespace="t") as other,
            Dedup(
                server.url, namespace="t", timeout=0.5, on_unavailable=policy, on_event=events.append
            ) as dedup,
        ):
            orders = other.machine("orders", **MACHINE)
            await orders.transition("1", to="paid")
            await orders.transition("1", to="sent")
            await (await other.claim("done")).complete("result")
            await other.claim("held")
            seen = dedup.machine("orders", **MACHINE)
            await dedup.get("done")
            await dedup.get("held")
            await seen.get("1")
            with server.frozen():
                done, held = await dedup.claim_many(["done", "held"])
                moved = await seen.transition("1", to="back", version=2)
            assert (done.outcome, done.result, done.degraded) == (Outcome.SUCCEEDED, "result", True)
            assert (held.outcome, held.degraded) == (Outcome.IN_PROGRESS, True)
            assert (moved.changed, moved.version, moved.degraded) == (True, 3, True)
        assert not [event for event in events if isinstance(event, Conflict)]
    finally:
        server.stop()
