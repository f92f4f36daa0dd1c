"""A lease that ended in an outage was answered 409, "another request took over", where no other had."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route as Path

from fastdedup import ClaimLostError, Dedup, Outcome
from fastdedup.integrations import asgi, wsgi
from fastdedup.model import BreakerState
from fastdedup.sync import Dedup as SyncDedup

from ..servers import RedisServer

KEY = {"Idempotency-Key": "k"}
LEASE = 0.8


@pytest.fixture
def server() -> Iterator[RedisServer]:
    server = RedisServer().start()
    yield server
    server.stop()


def problem(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"].removeprefix("urn:fastdedup:problem:")


async def test_a_request_cut_off_by_an_outage_is_503_and_runs_again(
    server: RedisServer, wait_until: Callable[..., Awaitable[Any]]
) -> None:
    runs = []

    async def order(request: Any) -> PlainTextResponse:
        runs.append(request)
        if len(runs) == 1:
            server.freeze()
            await asyncio.Event().wait()
        return PlainTextResponse("done")

    async with Dedup(server.url, timeout=0.3, lease=LEASE) as dedup:
        app = Starlette(routes=[Path("/orders", order, methods=["POST"])])
        guarded = asgi.IdempotencyMiddleware(app, dedup, principal=asgi.everyone, wait=5.0)
        transport = httpx.ASGITransport(guarded)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop.test") as client:
            cut_off = await client.post("/orders", headers=KEY)
            server.thaw()
            await wait_until(lambda: dedup.breaker is BreakerState.CLOSED, description="Redis is back")
            again = await client.post("/orders", headers=KEY)
    assert problem(cut_off) == (503, "lease-lost")
    assert cut_off.headers["retry-after"] == "1"
    assert (again.text, len(runs)) == ("done", 2)


def test_a_wsgi_handler_that_stops_in_an_outage_is_503(server: RedisServer) -> None:
    def shop(environ: Any, start_response: Any) -> Any:
        claim = wsgi.claim_of(environ)
        assert claim is not None
        server.freeze()
        ends = time.monotonic() + 10.0
        while not claim.lost and time.monotonic() < ends:
            time.sleep(0.01)
        raise ClaimLostError("this handler stops, as its lease is lost")

    with SyncDedup(server.url, timeout=0.3, lease=LEASE) as dedup:
        guarded = wsgi.IdempotencyMiddleware(shop, dedup, principal=wsgi.everyone)
        with httpx.Client(transport=httpx.WSGITransport(guarded), base_url="http://shop.test") as client:
            assert problem(client.post("/orders", headers=KEY)) == (503, "lease-lost")
        server.thaw()


@pytest.mark.parametrize("outage", [True, False])
async def test_the_error_says_whether_the_store_told(server: RedisServer, outage: bool) -> None:
    async def work(dedup: Dedup) -> None:
        async with dedup.claim("k", renew=True):
            if outage:
                server.freeze()
            else:
                await dedup.forget("k")
            await asyncio.Event().wait()

    async with Dedup(server.url, timeout=0.3, lease=LEASE) as dedup:
        with pytest.raises(ClaimLostError) as lost:
            await work(dedup)
        server.thaw()
    assert lost.value.outage is outage


async def test_a_loop_that_was_blocked_beyond_the_lease_met_no_outage(server: RedisServer) -> None:
    async def work(dedup: Dedup) -> None:
        async with dedup.claim("k", renew=True):
            time.sleep(LEASE * 1.1)  # noqa: ASYNC251 -- a body that blocks its loop is what is tested
            await asyncio.Event().wait()

    async with Dedup(server.url, timeout=0.3, lease=LEASE) as dedup:
        with pytest.raises(ClaimLostError) as lost:
            await work(dedup)
    assert not lost.value.outage


@pytest.mark.parametrize("overtaken", [False, True])
def test_a_synchronous_body_that_ends_after_the_outage_is_recorded(
    server: RedisServer, overtaken: bool
) -> None:
    """A thread is not stopped: its work is done, so the store decides, by the fence, whether that counts."""
    with (
        SyncDedup(server.url, namespace="t", timeout=0.3, lease=LEASE) as dedup,
        SyncDedup(server.url, namespace="t", timeout=5.0) as other,
        pytest.raises(ClaimLostError) if overtaken else nullcontext(),
        dedup.claim("k", renew=True) as claim,
    ):
        server.freeze()
        until(lambda: claim.lost, "the lease is lost")
        server.thaw()
        until(lambda: dedup.breaker is BreakerState.CLOSED, "Redis is back")
        if overtaken:
            other.forget("k")
            assert other.claim("k").acquired
    with SyncDedup(server.url, namespace="t") as other:
        expected = Outcome.IN_PROGRESS if overtaken else Outcome.SUCCEEDED
        assert other.claim("k").outcome is expected


def until(predicate: Callable[[], bool], description: str) -> None:
    ends = time.monotonic() + 10.0
    while not predicate():
        assert time.monotonic() < ends, f"waited in vain: {description}"
        time.sleep(0.01)
