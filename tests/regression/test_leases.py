"""An owner believes in its lease no longer than the store does, and its loss is told as what it is."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import nullcontext
from typing import Annotated, Any

import httpx
import pytest
import uvloop
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route as Path

from fastdedup import Claim, ClaimLostError, Dedup, Outcome, UnavailableError
from fastdedup.events import Event, LeaseLost
from fastdedup.integrations import wsgi
from fastdedup.integrations.fastapi import Claimed, Idempotency, everyone
from fastdedup.integrations.prometheus import watch
from fastdedup.model import BreakerState
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.testing import FakeStore, fake_dedup

from ..idle import IdleTime
from ..integrations.desk import behind, client
from ..programs import until
from ..servers import RedisServer
from ..waiting import wait_until

# A renewal believed in its lease for too long where the loop was blocked between the sending and the reply.


BLOCKED = 0.6
LEASE = 0.9


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_body_ends_before_the_servers_lease(
    redis_url: str, redis_server: RedisServer, new_loop: Callable[[], Any]
) -> None:
    """The loop is blocked right behind the sending; then Redis hangs, and no renewal succeeds."""

    async def work() -> tuple[float, float]:
        async with Dedup(redis_url, namespace="t", timeout=0.2) as dedup:
            await dedup.get("warm")
            entering = asyncio.ensure_future(enter(dedup))
            engine = dedup.gate.connection.engine
            assert engine is not None
            while not engine.in_flight:  # noqa: ASYNC110 -- in this very turn
                await asyncio.sleep(0)
            sent = time.monotonic()
            await asyncio.sleep(0)
            time.sleep(BLOCKED)  # noqa: ASYNC251 -- the fault
            ended = await entering
            return sent, ended

    async def enter(dedup: Dedup) -> float:
        try:
            async with dedup.claim("k", lease=LEASE, renew=True) as claim:
                assert claim.acquired
                redis_server.freeze()
                await asyncio.Event().wait()
        except (ClaimLostError, UnavailableError):
            return time.monotonic()
        finally:
            redis_server.thaw()
        raise AssertionError("the body went on")

    with asyncio.Runner(loop_factory=new_loop) as runner:
        sent, ended = runner.run(work())
    assert ended - sent < LEASE + 0.4 < LEASE + BLOCKED


async def test_renewal_begins_when_the_claim_was_sent(redis_url: str) -> None:
    """Also of each claim in a list, and of one that waited."""
    loop = asyncio.get_running_loop()
    async with Dedup(redis_url, namespace="t", timeout=5.0) as dedup:
        await dedup.get("warm")
        began = loop.time()
        asked = [
            asyncio.ensure_future(claim)
            for claim in (
                dedup.claim("a", lease=60, renew=True),
                dedup.claim("b", lease=60, renew=True, wait=1.0),
                dedup.claim_many(["c", "d"], lease=60, renew=True),
            )
        ]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        time.sleep(BLOCKED)  # noqa: ASYNC251 -- the fault
        a, b, listed = await asyncio.gather(*asked)
        for claim in (a, b, *listed):
            assert claim.acquired
            assert claim.settlement.renewal.began < began + BLOCKED / 2
            assert claim.settlement.lease_left < 60 - BLOCKED / 2
            await claim.release()


# A claim that its owner holds no longer is told of once, whoever finds it. Only a renewal told of it: where
# the loss was found as the work was recorded, after a process had stood still for longer than its lease, no
# event, figure or line said that the work may have been done twice.


WAYS: list[Callable[[Claim], Awaitable[None]]] = [
    lambda claim: claim.complete("done"),
    lambda claim: claim.fail("no"),
    lambda claim: claim.release(),
    lambda claim: claim.renew(),
]


@pytest.mark.parametrize("way", WAYS, ids=["complete", "fail", "release", "renew"])
async def test_each_way_tells_of_a_lost_lease_once(way: Callable[[Claim], Awaitable[None]]) -> None:
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


async def test_the_end_of_a_block_tells_of_a_lost_lease(redis_url: str) -> None:
    events: list[Event] = []
    async with Dedup(redis_url, on_event=events.append) as dedup:
        with pytest.raises(ClaimLostError):
            async with dedup.claim("order:42"):
                await dedup.forget("order:42")
    assert [type(event) for event in events if isinstance(event, LeaseLost)] == [LeaseLost]


async def test_the_figures_count_lost_leases_from_0(redis_url: str) -> None:
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

    async with dedup, client(app, raises=True) as visitor:
        for number in range(20):
            answer = await visitor.post("/orders", headers={"Idempotency-Key": f"k-{number}"})
            assert (answer.status_code, answer.json()["type"]) == (409, "urn:fastdedup:problem:claim-lost")
    told = [record.getMessage() for record in caplog.records if record.name.startswith("fastdedup")]
    assert [line.startswith("gate 'shop': the lease of 'POST /orders|") for line in told[:5]] == [True] * 5
    assert [line for line in told if "more of this" in line] == [
        "gate 'shop': 15 more of this within 60 s: lease lost"
    ]
    assert len(told) == 6


# A lease that ended in an outage was answered 409, "another request took over", where no other had.


KEY = {"Idempotency-Key": "k"}
SHORT_LEASE = 0.8


def problem(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"].removeprefix("urn:fastdedup:problem:")


async def test_a_request_cut_off_by_an_outage_is_503_and_runs_again(own_redis: RedisServer) -> None:
    runs = []

    async def order(request: Any) -> PlainTextResponse:
        runs.append(request)
        if len(runs) == 1:
            own_redis.freeze()
            await asyncio.Event().wait()
        return PlainTextResponse("done")

    dedup = Dedup(own_redis.url, timeout=0.3, lease=SHORT_LEASE)
    app = Starlette(routes=[Path("/orders", order, methods=["POST"])])
    async with behind(dedup, app, wait=5.0) as visitor:
        cut_off = await visitor.post("/orders", headers=KEY)
        own_redis.thaw()
        await wait_until(lambda: dedup.breaker is BreakerState.CLOSED, description="Redis is back")
        again = await visitor.post("/orders", headers=KEY)
    assert problem(cut_off) == (503, "lease-lost")
    assert cut_off.headers["retry-after"] == "1"
    assert (again.text, len(runs)) == ("done", 2)


def test_a_wsgi_handler_that_stops_in_an_outage_is_503(own_redis: RedisServer) -> None:
    def shop(environ: Any, start_response: Any) -> Any:
        claim = wsgi.claim_of(environ)
        assert claim is not None
        own_redis.freeze()
        until(lambda: claim.lost, "the lease is lost")
        raise ClaimLostError("this handler stops, as its lease is lost")

    with SyncDedup(own_redis.url, timeout=0.3, lease=SHORT_LEASE) as dedup:
        guarded = wsgi.IdempotencyMiddleware(shop, dedup, principal=wsgi.everyone)
        with httpx.Client(transport=httpx.WSGITransport(guarded), base_url="http://shop.test") as client:
            assert problem(client.post("/orders", headers=KEY)) == (503, "lease-lost")
        own_redis.thaw()


@pytest.mark.parametrize("cause", ["outage", "forgotten", "blocked loop"])
async def test_the_error_says_whether_it_was_an_outage(own_redis: RedisServer, cause: str) -> None:
    async def work(dedup: Dedup) -> None:
        async with dedup.claim("k", renew=True):
            if cause == "outage":
                own_redis.freeze()
            elif cause == "forgotten":
                await dedup.forget("k")
            else:
                time.sleep(SHORT_LEASE * 1.1)  # noqa: ASYNC251 -- a body that blocks its loop is what is tested
            await asyncio.Event().wait()

    async with Dedup(own_redis.url, timeout=0.3, lease=SHORT_LEASE) as dedup:
        with pytest.raises(ClaimLostError) as lost:
            await work(dedup)
        own_redis.thaw()
    assert lost.value.outage is (cause == "outage")


@pytest.mark.parametrize("overtaken", [False, True])
def test_a_synchronous_body_that_ends_after_the_outage_is_recorded(
    own_redis: RedisServer, overtaken: bool
) -> None:
    """A thread is not stopped: its work is done, so the store decides, by the fence, whether that counts."""
    with (
        SyncDedup(own_redis.url, namespace="t", timeout=0.3, lease=SHORT_LEASE) as dedup,
        SyncDedup(own_redis.url, namespace="t", timeout=5.0) as other,
        pytest.raises(ClaimLostError) if overtaken else nullcontext(),
        dedup.claim("k", renew=True) as claim,
    ):
        own_redis.freeze()
        until(lambda: claim.lost, "the lease is lost")
        own_redis.thaw()
        until(lambda: dedup.breaker is BreakerState.CLOSED, "Redis is back")
        if overtaken:
            other.forget("k")
            assert other.claim("k").acquired
    with SyncDedup(own_redis.url, namespace="t") as other:
        expected = Outcome.IN_PROGRESS if overtaken else Outcome.SUCCEEDED
        assert other.claim("k").outcome is expected


# A program that blocked its event loop for about a deadline got UnavailableError from a healthy Redis.


TIMEOUT = 0.25
BLOCKS = (0.24, 0.26, 0.305, 0.5)
"""Seconds for which the loop is blocked: around the deadline, and around what a claim is given beyond it."""
both_loops = pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
Wait = Callable[[Dedup, RedisServer], Coroutine[Any, Any, None]]


async def before_the_send(dedup: Dedup, server: RedisServer) -> None:
    """The claim is accepted; its batch leaves at the end of this turn of the loop."""


async def right_after_the_send(dedup: Dedup, server: RedisServer) -> None:
    engine = dedup.gate.connection.engine
    assert engine is not None
    while not engine.in_flight:  # noqa: ASYNC110 -- in this very turn
        await asyncio.sleep(0)


async def while_the_reply_arrives(dedup: Dedup, server: RedisServer) -> None:
    """Redis has the claim, and answers once the loop is blocked."""
    server.freeze()
    try:
        await right_after_the_send(dedup, server)
        for _ in range(3):
            await asyncio.sleep(0)  # uvloop writes at the end of a turn
    finally:
        server.thaw()


def block(seconds: float) -> None:
    """Block the loop: no fault can be made without it."""
    time.sleep(seconds)


@both_loops
@pytest.mark.parametrize("until", [before_the_send, right_after_the_send, while_the_reply_arrives])
async def test_a_blocked_loop_is_no_outage(
    redis_url: str, redis_server: RedisServer, new_loop: Callable[[], Any], until: Wait
) -> None:
    async def blocks(dedup: Dedup, seconds: float) -> None:
        await until(dedup, redis_server)
        block(seconds)

    async with Dedup(redis_url, namespace="t", timeout=TIMEOUT) as dedup:
        await dedup.get("warm")
        for seconds in BLOCKS:
            claim, _ = await asyncio.gather(dedup.claim(f"k{seconds}", lease=60), blocks(dedup, seconds))
            assert claim.acquired
            await claim.release()
        assert not len(dedup.gate.connection.orphans)


@both_loops
async def test_claims_of_a_list_and_of_the_blocking_task_succeed(
    redis_url: str, new_loop: Callable[[], Any]
) -> None:
    async def claims_and_blocks(dedup: Dedup, seconds: float) -> Claim:
        call = asyncio.ensure_future(dedup.claim(f"own{seconds}", lease=60))
        await asyncio.sleep(0)
        block(seconds)
        return await call

    async with Dedup(redis_url, namespace="t", timeout=TIMEOUT) as dedup:
        await dedup.get("warm")
        for seconds in BLOCKS:
            keys = [f"{seconds}:{number}" for number in range(300)]
            listed, own = await asyncio.gather(
                dedup.claim_many(keys, lease=60), claims_and_blocks(dedup, seconds)
            )
            assert all(claim.acquired for claim in (*listed, own))


@both_loops
async def test_a_loop_that_is_blocked_again_and_again_is_no_outage(
    redis_url: str, new_loop: Callable[[], Any]
) -> None:
    async def blocks(seconds: float) -> None:
        for _ in range(3):
            block(seconds)
            await asyncio.sleep(0)

    async with Dedup(redis_url, namespace="t", timeout=TIMEOUT) as dedup:
        await dedup.get("warm")
        for seconds in (0.06, 0.13, 0.26):
            claim, _ = await asyncio.gather(dedup.claim(f"k{seconds}", lease=60), blocks(seconds))
            assert claim.acquired


@both_loops
async def test_a_frozen_redis_ends_at_the_deadline(
    redis_url: str, redis_server: RedisServer, new_loop: Callable[[], Any]
) -> None:
    """What a blocked loop is given on top, a silent server does not get."""
    async with Dedup(redis_url, namespace="t", timeout=TIMEOUT) as dedup:
        await dedup.get("warm")
        with redis_server.frozen():
            for number in range(3):
                with IdleTime() as idle, pytest.raises(UnavailableError):
                    await dedup.claim(f"frozen{number}", lease=60)
                assert idle.seconds < TIMEOUT + 0.1
