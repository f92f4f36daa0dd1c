"""A claim that its owner holds no longer is told of once, whoever finds it.

Only a renewal told of it: where the loss was found as the work was recorded, after a process had stood still for
longer than its lease, no event, figure or line said that the work may have been done twice.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Annotated

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, generate_latest

from fastdedup import Claim, ClaimLostError, Dedup
from fastdedup.events import Event, LeaseLost
from fastdedup.integrations.fastapi import Claimed, Idempotency, everyone
from fastdedup.integrations.prometheus import watch
from fastdedup.testing import FakeStore, fake_dedup

WAYS: list[Callable[[Claim], Awaitable[None]]] = [
    lambda claim: claim.complete("done"),
    lambda claim: claim.fail("no"),
    lambda claim: claim.release(),
    lambda claim: claim.renew(),
]


@pytest.mark.parametrize("way", WAYS, ids=["complete", "fail", "release", "renew"])
async def test_each_way_tells_of_it_once(way: Callable[[Claim], Awaitable[None]]) -> None:
    events: list[Event] = []
    store = FakeStore()
    async with fake_dedup(store, namespace="shop", lease=5.0, on_event=events.append) as dedup:
        claim = await dedup.claim("order:42")
        store.clock.advance(6)
        assert (await dedup.claim("order:42")).acquired, "another owner has it"
        for _ in range(2):
            with pytest.raises(ClaimLostError):
                await way(claim)
        with pytest.raises(ClaimLostError):
            await claim.complete("done")
    assert events == [LeaseLost("shop", "order:42", claim.owner, claim.fence)]


async def test_the_end_of_its_block_tells_of_it(redis_url: str) -> None:
    events: list[Event] = []
    async with Dedup(redis_url, on_event=events.append) as dedup:
        with pytest.raises(ClaimLostError):
            async with dedup.claim("order:42"):
                await dedup.forget("order:42")
    assert [type(event) for event in events if isinstance(event, LeaseLost)] == [LeaseLost]


async def test_the_figures_have_it_and_stand_at_0_before(redis_url: str) -> None:
    registry = CollectorRegistry()
    dedup = Dedup(redis_url, namespace="shop")
    watch(dedup, registry=registry)
    lost = 'fastdedup_operations_total{namespace="shop",outcome="claim_lost",verb="complete"}'

    def figures() -> list[str]:
        lines = generate_latest(registry).decode().splitlines()
        return [line for line in lines if line.startswith((lost, "fastdedup_leases_lost_total "))]

    assert sorted(figures()) == ["fastdedup_leases_lost_total 0.0", f"{lost} 0.0"]
    async with dedup:
        claim = await dedup.claim("order:42")
        await dedup.forget("order:42")
        with pytest.raises(ClaimLostError):
            await claim.complete()
    assert sorted(figures()) == ["fastdedup_leases_lost_total 1.0", f"{lost} 1.0"]


async def test_a_crowd_of_lost_responses_is_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    """Each of them was a line."""
    caplog.set_level(logging.WARNING)
    app = FastAPI()
    store = FakeStore()
    dedup = fake_dedup(store, namespace="shop")
    Idempotency(app, dedup)

    @app.post("/orders")
    async def order(claim: Annotated[Claim, Claimed(principal=everyone)]) -> int:
        await dedup.scoped("http").forget(claim.key)
        return 1

    transport = httpx.ASGITransport(app)
    async with dedup, httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        for number in range(20):
            answer = await client.post("/orders", headers={"Idempotency-Key": f"k-{number}"})
            assert (answer.status_code, answer.json()["type"]) == (409, "urn:fastdedup:problem:claim-lost")
    told = [record.getMessage() for record in caplog.records if record.name.startswith("fastdedup")]
    assert [line.startswith("gate 'shop': the lease of 'POST /orders|") for line in told[:5]] == [True] * 5
    assert [line for line in told if "more of this" in line] == [
        "gate 'shop': 15 more of this within 60 s: lease lost"
    ]
    assert len(told) == 6
