"""A claim that was granted before its gate was closed is settled, renewed and freed afterwards.

After `aclose()` each of these was a UsageError, mostly suppressed. A body that was cancelled or raised held its key
for the whole lease, a body that ended well was done and not recorded, a renewed body ran on beside the next owner.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import uvloop
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route as Path

from fastdedup import ClaimLostError, Dedup, InProgressError, LocalLRU, Outcome, UsageError
from fastdedup.events import Event, Unreplayed
from fastdedup.integrations import asgi
from fastdedup.sync import Dedup as SyncDedup

from ..integrations.desk import client
from ..servers import RedisServer
from ..stores import Backend
from ..waiting import wait_until

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
Body = Callable[[], Any]


def gate(url: str, **settings: Any) -> Dedup:
    return Dedup(url, **{"namespace": "t", "lease": 60.0, **settings})


async def by_block(dedup: Dedup, body: Body) -> None:
    async with dedup.claim("k"):
        await body()


async def by_hand(dedup: Dedup, body: Body) -> None:
    claim = await dedup.claim("k", owner="w1")
    try:
        await body()
    except BaseException:
        await claim.release()
        raise
    await claim.complete()


async def by_lock(dedup: Dedup, body: Body) -> None:
    async with dedup.lock("k"):
        await body()


async def by_once(dedup: Dedup, body: Body) -> None:
    @dedup.once(key=lambda: "k")
    async def run() -> None:
        await body()

    await run()


WAYS = [by_block, by_hand, by_lock, by_once]


def beside(url: str, way: Any, body: Body, loop: Any, **settings: Any) -> None:
    """Run a worker's task beside `async with dedup:`; the end of the program cancels it where it still works."""

    async def main() -> None:
        began = asyncio.Event()

        async def works() -> None:
            began.set()
            await body()

        async with gate(url, **settings) as dedup:
            main.worker = asyncio.create_task(way(dedup, works))  # type: ignore[attr-defined]
            await began.wait()
        with pytest.raises(UsageError, match="is closed"):
            await dedup.claim("another")

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())
    gc.collect()


async def outcome(url: str) -> str:
    async with gate(url) as dedup:
        return str((await dedup.claim("k")).outcome)


async def forever() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("way", WAYS)
def test_a_body_that_the_programs_end_cancels_frees_its_key(
    redis_url: str, redis_server: RedisServer, way: Any, loop: Any
) -> None:
    with redis_server.client() as raw:
        before = raw.info("clients")["connected_clients"]  # a test that failed may have left one
        beside(redis_url, way, forever, loop)
        assert asyncio.run(outcome(redis_url)) == "acquired"

        async def nothing_is_open() -> None:
            await wait_until(
                lambda: raw.info("clients")["connected_clients"] <= before, description="all is closed"
            )

        asyncio.run(nothing_is_open())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("raises", [False, True])
async def test_a_body_that_ends_after_its_gate_is_settled(redis_url: str, way: Any, raises: bool) -> None:
    began, goes_on = asyncio.Event(), asyncio.Event()

    async def body() -> None:
        began.set()
        await goes_on.wait()
        if raises:
            raise ZeroDivisionError

    async with gate(redis_url) as dedup:
        work = asyncio.create_task(way(dedup, body))
        await began.wait()
    goes_on.set()
    with suppress(ZeroDivisionError):
        await work
    assert not dedup.is_open
    free = raises or way is by_lock
    assert await outcome(redis_url) == ("acquired" if free else "succeeded")


async def test_a_list_that_waits_gives_back_what_it_took(redis_url: str) -> None:
    async with gate(redis_url) as other:
        await other.claim("busy")
        async with gate(redis_url) as dedup:
            waiting = asyncio.create_task(dedup.claim_many(["k", "busy"], wait=30.0))
            await wait_until(lambda: other.get("k"), description="it has taken what was free")
        with pytest.raises(UsageError, match="is closed"):
            await waiting
        assert (await other.claim("k")).acquired


async def test_a_renewed_body_keeps_its_key(redis_url: str) -> None:
    """Its gate is closed in the first third of the lease."""
    began, goes_on = asyncio.Event(), asyncio.Event()
    lease = 0.6

    async def work(dedup: Dedup) -> float:
        async with dedup.claim("k", renew=True):
            began.set()
            await goes_on.wait()
        return asyncio.get_running_loop().time()

    async with gate(redis_url) as other:
        async with gate(redis_url, lease=lease) as dedup:
            working = asyncio.create_task(work(dedup))
            await began.wait()
        ends = asyncio.get_running_loop().time() + 2 * lease

        async def is_held() -> bool:
            assert (await other.claim("k")).outcome is Outcome.IN_PROGRESS
            return asyncio.get_running_loop().time() > ends

        await wait_until(is_held, description="two leases are over")
        goes_on.set()
        await working
        assert (await other.claim("k")).outcome is Outcome.SUCCEEDED


async def test_in_memory_a_renewed_body_is_stopped() -> None:
    """Closing has forgotten its claim."""

    async def work(dedup: Dedup) -> None:
        async with dedup.claim("k", renew=True):
            began.set()
            await forever()

    began = asyncio.Event()
    async with Dedup("memory://", lease=0.3) as dedup:
        working = asyncio.create_task(work(dedup))
        await began.wait()
    with pytest.raises(ClaimLostError):
        await working


async def test_many_use_one_connection(redis_url: str, redis_server: RedisServer) -> None:
    async with gate(redis_url) as dedup:
        claims = await dedup.claim_many([f"k{number}" for number in range(500)])
    with redis_server.client() as raw:
        before = raw.info("stats")["total_connections_received"]
        await asyncio.gather(*(claim.complete() for claim in claims))
        assert raw.info("stats")["total_connections_received"] - before == 1
    async with dedup:
        assert (await dedup.claim("k7")).outcome is Outcome.SUCCEEDED


async def test_on_every_store_that_has_a_url(backend: Backend) -> None:
    async with backend.make(lease=60.0) as dedup:
        first, second = await dedup.claim_many(["k", "l"])
    if backend.name in (
        "memory",
        "local",
        "fakeredis",
        "cluster by slot",
    ):  # objects, or they end with their gate
        with pytest.raises(UsageError, match="is closed"):
            await first.complete()
        return
    await first.renew()
    await asyncio.gather(first.complete(), second.release())
    async with backend.make() as other:
        outcomes = [claim.outcome for claim in await other.claim_many(["k", "l"])]
    assert outcomes == [Outcome.SUCCEEDED, Outcome.ACQUIRED]


async def test_a_gate_that_is_open_again_settles_by_itself(redis_url: str) -> None:
    dedup = gate(redis_url)
    async with dedup:
        first, second = await dedup.claim_many(["k", "l"])
    settling = asyncio.create_task(first.complete())
    await asyncio.sleep(0)
    async with dedup:
        await settling
        await second.complete()
        assert (await dedup.claim("k")).outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize("how", ["complete", "release"])
def test_what_the_programs_end_cuts_short_goes_on(redis_url: str, how: str) -> None:
    async def main() -> None:
        async with gate(redis_url) as dedup:
            claim = await dedup.claim("k")
        main.settling = asyncio.create_task(getattr(claim, how)())  # type: ignore[attr-defined]
        await asyncio.sleep(0)

    asyncio.run(main())
    gc.collect()
    assert asyncio.run(outcome(redis_url)) == ("succeeded" if how == "complete" else "acquired")


def test_the_loops_end_tells_of_what_it_could_not_record(
    redis_url: str, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with gate(redis_url, timeout=0.2) as dedup:
            claim = await dedup.claim("k")
        redis_server.freeze()
        main.settling = asyncio.create_task(claim.complete())  # type: ignore[attr-defined]
        await asyncio.wait([main.settling], timeout=0.1)  # type: ignore[attr-defined]

    try:
        asyncio.run(main())
    finally:
        redis_server.thaw()
    gc.collect()
    assert "k: its caller was cancelled, and its result could not be recorded: " in caplog.text
    assert "destroyed" not in caplog.text


async def test_what_only_the_policy_knows_is_told_once(redis_url: str, redis_server: RedisServer) -> None:
    """Claims that the policy granted in an outage, and that are settled after the gate was closed."""
    events: list[Event] = []
    local = {"on_unavailable": LocalLRU(), "on_event": events.append, "timeout": 0.2}
    with redis_server.frozen():
        async with gate(redis_url, **local) as dedup:
            claims = await dedup.claim_many(["k", "l", "m"])
        told_at_closing = len(events)
        await asyncio.gather(claims[0].complete(), claims[1].fail(), claims[2].release())
    told = [event.key for event in events[told_at_closing:] if isinstance(event, Unreplayed)]
    assert sorted(told) == ["k", "l"]


@pytest.mark.parametrize("raises", [False, True])
def test_without_asyncio(redis_url: str, raises: bool) -> None:
    dedup = SyncDedup(redis_url, namespace="t", lease=60.0)
    with suppress(ZeroDivisionError), dedup, dedup.claim("k"):
        dedup.close()
        if raises:
            raise ZeroDivisionError
    assert asyncio.run(outcome(redis_url)) == ("acquired" if raises else "succeeded")


@pytest.mark.parametrize("cancels", [False, True])
async def test_a_request_that_the_servers_end_overtakes(redis_url: str, cancels: bool) -> None:
    """The lifespan ends while a handler still works, as it does after uvicorn's graceful timeout."""
    began, goes_on = asyncio.Event(), asyncio.Event()

    async def order(request: Any) -> PlainTextResponse:
        began.set()
        await goes_on.wait()
        return PlainTextResponse("done")

    dedup = gate(redis_url)
    app = Starlette(routes=[Path("/orders", order, methods=["POST"])])
    guarded = asgi.IdempotencyMiddleware(app, dedup, principal=asgi.everyone)
    messages: asyncio.Queue[Any] = asyncio.Queue()
    answers: asyncio.Queue[Any] = asyncio.Queue()
    lifespan = asyncio.create_task(guarded({"type": "lifespan"}, messages.get, answers.put))
    await messages.put({"type": "lifespan.startup"})
    await answers.get()
    async with client(guarded, raises=True) as visitor:
        asked = asyncio.create_task(visitor.post("/orders", headers={"idempotency-key": "k"}))
        await began.wait()
        await messages.put({"type": "lifespan.shutdown"})
        await lifespan
        if cancels:
            asked.cancel()
        goes_on.set()
        with suppress(asyncio.CancelledError):
            assert (await asked).headers.get("idempotency-stored") is None
        async with dedup:
            with suppress(InProgressError):
                again = await visitor.post("/orders", headers={"idempotency-key": "k"})
    assert again.status_code == 200
    assert ("idempotency-replayed" in again.headers) is not cancels


async def test_a_closed_gate_with_a_local_policy_tries_until_the_store_answers(
    redis_url: str, redis_server: RedisServer
) -> None:
    """The policy answered for a claim of the store's, though nobody would bring its answer there any more."""
    async with gate(redis_url, timeout=0.3, on_unavailable=LocalLRU()) as dedup:
        claim = await dedup.claim("k", lease=30.0)
    redis_server.freeze()
    completing = asyncio.ensure_future(claim.complete("done"))
    await asyncio.wait([completing], timeout=1.0)  # longer than the policy waited
    redis_server.thaw()
    await completing
    async with gate(redis_url) as other:
        assert (await other.claim("k")).result == "done"
