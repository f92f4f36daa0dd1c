"""An owner that the caller chose keeps what it held, and loses what it never had."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest

from fastdedup import Claim, Dedup, ForeignRecordError, Outcome
from fastdedup.kernel.codes import Code
from fastdedup.kernel.operations import ClaimOp, ReleaseOp
from fastdedup.kernel.owners import draw_owner
from fastdedup.kernel.terms import Mode, terms
from fastdedup.kernel.verbs import Verb
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.sync.claim import take_back

from ..fixtures import fixture_of
from ..proxy import proxied
from ..servers import RedisServer
from ..stepping import SteppingServer
from ..topologies import until
from ..waiting import cancel, wait_until

# A named owner that was cancelled while its first reply was lost left the key held, although it held
# nothing.


async def test_a_first_claim_whose_clock_nobody_knows_is_left_alone(
    redis_url: str, redis_server: RedisServer
) -> None:
    """A gate that has had no reply yet cannot tell its own claim from an older one. The model has all others.

    The claim is cancelled once its first reply is lost, and before the second comes. Redis hangs a moment, so that
    its clock is past what it can have shown when the claim was sent.
    """
    async with (
        proxied(redis_server) as proxy,
        Dedup(proxy.url, namespace="t", timeout=5.0) as dedup,
        Dedup(redis_url, namespace="t", timeout=5.0) as other,
    ):
        held = await other.claim("k", owner="w1")
        proxy.lose("claim")
        with redis_server.frozen():
            asked = asyncio.create_task(dedup.claim("k", owner="w1"))
            await wait_until(lambda: proxy.seen["claim"], description="the claim is under way")
        proxy.hold()
        await wait_until(lambda: proxy.lost["claim"], description="its reply is lost")
        await cancel(asked)
        proxy.forward()
        await dedup.get("k")
        await held.complete("done")


# The server's clock is set ahead. A named owner gives up a further claim: what it held before stays its
# own.


AHEAD = 2.0
STEPS = pytest.mark.parametrize("step", [0.2, AHEAD])


stepping = fixture_of(SteppingServer, scope="module")


@asynccontextmanager
async def stepped(server: SteppingServer, step: float) -> AsyncIterator[Dedup]:
    """A gate that has learned the server's clock before that was set ahead."""
    server.set_back(0.0)
    with server.client() as raw:
        raw.flushdb()
    async with Dedup(server.url, namespace="t", timeout=5.0) as gate:
        await gate.claim("warm", owner="q")
        server.set_back(-step)
        yield gate


async def cancel_repeat(gate: Dedup) -> None:
    """Claim once more what worker-1 holds, and cancel that when it is sent."""
    repeat = asyncio.ensure_future(gate.claim("k", owner="worker-1"))
    while not gate.in_flight:  # noqa: ASYNC110 -- it is sent at the end of a turn
        await asyncio.sleep(0)
    await cancel(repeat)


async def holds(gate: Dedup, claim: Claim) -> bool:
    """Tell whether a claim still keeps others out."""
    other = await gate.claim(claim.key, owner="other")
    return other.outcome is Outcome.IN_PROGRESS


@STEPS
async def test_a_cancelled_repeat_frees_nothing(stepping: SteppingServer, step: float) -> None:
    async with stepped(stepping, step) as gate:
        claim = await gate.claim("k", owner="worker-1")
        await cancel_repeat(gate)
        assert await holds(gate, claim)
        await claim.complete(1)


@STEPS
async def test_a_list_that_fails_frees_only_what_it_took_itself(
    stepping: SteppingServer, step: float
) -> None:
    async with stepped(stepping, step) as gate:
        with stepping.client() as raw:
            raw.set("t:=foreign", "not ours")
        claim = await gate.claim("k", owner="worker-1")
        with pytest.raises(ForeignRecordError):
            await gate.claim_many(["k", "free", "foreign"], owner="worker-1")
        assert await holds(gate, claim)
        assert (await gate.claim("free")).acquired
        await claim.complete(1)


async def test_an_unseen_step_frees_nothing(stepping: SteppingServer) -> None:
    """The claim is another process's, under the same name; this one is told of the step by its own answer."""
    async with stepped(stepping, AHEAD) as gate, Dedup(stepping.url, namespace="t", timeout=5.0) as twin:
        claim = await twin.claim("k", owner="worker-1")
        await cancel_repeat(gate)
        assert await holds(gate, claim)
        await claim.complete(1)


# Two calls of one name shared an acquisition; the one that was given up freed it under the other's hands. The model
# has the winner that cancels the loser.


async def test_a_list_that_is_given_up_leaves_what_another_call_was_told(
    redis_url: str, redis_server: RedisServer
) -> None:
    """The list waits for a key of another owner; meanwhile its name claims the same key by a call of its own.

    Redis executes the list long after it was sent. So the gate can tell by the server's time that the acquisition is
    its own: the fastest answer shows it that time.
    """
    now = asyncio.get_running_loop().time
    async with (
        Dedup(redis_url, namespace="t", timeout=5.0) as gate,
        Dedup(redis_url, namespace="t", timeout=5.0) as other,
    ):
        busy = await other.claim("busy", owner="other")
        began = now()
        for _ in range(20):
            await gate.get("k")
        slowest = now() - began
        with redis_server.frozen():
            listed = asyncio.ensure_future(gate.claim_many(["k", "busy"], owner="worker-1", wait=30.0))
            await wait_until(lambda: gate.in_flight, description="the list is sent")
            sent = now()
            await wait_until(lambda: now() > sent + slowest, description="Redis would have answered by now")
        await wait_until(lambda: other.get("k"), description="the list has one of its keys")
        claim = await gate.claim("k", owner="worker-1")
        assert claim.acquired
        await cancel(listed)
        assert await holds(gate, claim)
        await claim.complete(1)
        await busy.complete(1)


async def test_a_list_that_is_given_up_leaves_no_key_that_it_has_twice(redis_url: str) -> None:
    """Both of its claims of the key know of one acquisition, and both are gone."""
    async with Dedup(redis_url, namespace="t", timeout=5.0) as gate:
        busy = await gate.claim("busy", owner="other")
        listed = asyncio.ensure_future(gate.claim_many(["k", "k", "busy"], owner="worker-1", wait=30.0))
        await wait_until(lambda: gate.get("k"), description="the list has one of its keys")
        await cancel(listed)
        claim = await gate.claim("k", owner="other", wait=5.0)
        assert claim.acquired
        await claim.complete(1)
        await busy.complete(1)


def test_a_claim_that_waited_is_freed_if_it_never_reaches_its_caller(
    redis_url: str, redis_server: RedisServer
) -> None:
    """Its caller was interrupted. The look that has acquired the key is not the claim's first one."""
    with (
        redis_server.client() as raw,
        SyncDedup(redis_url, namespace="t", timeout=5.0) as gate,
        ThreadPoolExecutor() as threads,
    ):
        before = gate.claim("k", owner="before")
        waiting = threads.submit(gate.claim, "k", owner="worker-1", wait=30.0)
        until(lambda: raw.getrange("t:=k", 1, 1) == b"W", "it waits")
        before.release()
        waiting.result().tell(take_back)
        claim = gate.claim("k", owner="other", wait=5.0)
        assert claim.acquired
        claim.complete(1)


async def test_a_token_that_was_used_for_a_moment_is_freed_if_it_never_reaches_its_redeemer(
    redis_url: str, redis_server: RedisServer
) -> None:
    """As a claim that waited: the use was undone, and a later look took the token."""
    with redis_server.client() as raw, SyncDedup(redis_url, namespace="t", timeout=2.0) as gate:

        def scripts() -> int:
            return sum(
                stats["calls"] for name, stats in raw.info("commandstats").items() if "evalsha" in name
            )

        async with Dedup(redis_url, namespace="t") as other:
            token, user = await other.tokens.issue(), draw_owner()
            op = ClaimOp(other.tokens.wire(token), terms(Mode.CONSUME, 60_000, 60_000, False), user, None)
            store = other.gate.connection.store
            [used] = await store.execute(Verb.CLAIM, [op])
            asked = scripts()
            waiting = asyncio.create_task(asyncio.to_thread(gate.tokens.redeem, token, owner="worker-1"))
            await wait_until(lambda: scripts() > asked, description="it has looked")
            undo = ReleaseOp(op.wire, user, used.fence, consumed=True)  # type: ignore[union-attr]
            assert await store.execute(Verb.RELEASE, [undo]) == [Code.OK]
            claim = await waiting
            assert claim.acquired
            claim.tell(take_back)
            again = await other.tokens.redeem(token, owner="other", wait=5.0)
            assert again.acquired
            await again.complete(1)
