"""A record says in which trace it was made, and whoever meets it links to that run."""

from __future__ import annotations

import asyncio
import os

from fastdedup import Outcome

from ..otel import Otel, attributes, links, origin
from ..stores import Backend, on_stores
from ..waiting import wait_until

pytestmark = on_stores("memory", "local", "redis", "sidecar")
"""One row for each way in which an owner's field travels; the others run the same scripts."""


async def test_a_duplicate_links_to_the_run_that_it_meets(backend: Backend) -> None:
    otel = Otel()
    async with otel.instrument(backend.make()) as dedup:
        with otel.tracer.start_as_current_span("first"):
            claim = await dedup.claim("k", fingerprint="a")
        with otel.tracer.start_as_current_span("second"):
            await dedup.claim("k", fingerprint="a")
            waiter = asyncio.create_task(dedup.claim("k", fingerprint="a", wait=10.0))
            watched = dedup.gate.connection.wakeups.waiting
            await wait_until(lambda: watched, description="it waits")
        await claim.complete(7)
        assert (await waiter).result == 7
        with otel.tracer.start_as_current_span("third"):
            await dedup.claim("k", fingerprint="b")
        record = await dedup.get("k")
    first, present, replay, other = [each for each in otel.finished() if each.name == "claim t"]
    assert links(first) == []
    assert links(present) == [origin(first, "present_run")]
    assert links(replay) == [origin(first, "first_run")]
    assert links(other) == [origin(first, "other_request")]
    assert attributes(replay)["fastdedup.replay"] is True
    assert "fastdedup.replay" not in attributes(present)
    assert record is not None
    assert (record.trace, record.holder) == (f"{first.context.trace_id:032x}", None)


async def test_the_next_attempt_links_to_the_one_before(backend: Backend) -> None:
    otel = Otel()
    async with otel.instrument(backend.make(holder="pay")) as dedup:
        with otel.tracer.start_as_current_span("first"):
            await (await dedup.claim("k")).release()
        with otel.tracer.start_as_current_span("second"):
            claim = await dedup.claim("k")
        record = await dedup.get("k")
    first, second = [each for each in otel.finished() if each.name == "claim t"]
    assert (claim.outcome, claim.attempt) == (Outcome.ACQUIRED, 2)
    assert links(second) == [origin(first, "attempt_before")]
    assert record is not None
    assert record.trace == f"{second.context.trace_id:032x}"
    assert record.holder
    assert record.holder.endswith(f":{os.getpid()}")


async def test_many_claims_are_one_span_with_their_links(backend: Backend) -> None:
    otel = Otel()
    async with otel.instrument(backend.make()) as dedup:
        with otel.tracer.start_as_current_span("first"):
            claims = await dedup.claim_many(["a", "b"])
        with otel.tracer.start_as_current_span("second"):
            await claims[0].complete()
            await dedup.claim_many(["a", "b", "c"])
    first, second = [each for each in otel.finished() if each.name == "claim_many t"]
    assert links(second) == [origin(first, "first_run")], "a run has one link"
    settled = otel.spans()["complete t"]
    assert [link.context for link in settled.links] == [first.context]
    counts = {"fastdedup.acquired": 1, "fastdedup.succeeded": 1, "fastdedup.in_progress": 1}
    assert attributes(second).items() >= {**counts, "fastdedup.key_count": 3}.items()
