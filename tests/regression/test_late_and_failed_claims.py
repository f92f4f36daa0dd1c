"""No key is held for nobody: not by a late copy of a claim, by a batch that failed, or by a lost lease's renewal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route as Path

from fastdedup import BreakerState, ClaimLostError, Dedup, InProgressError, UnavailableError
from fastdedup.core.orphans import Orphans
from fastdedup.events import Event, UndoOverflow
from fastdedup.integrations import asgi
from fastdedup.kernel.operations import ClaimOp, Op, ReadOp, Reply
from fastdedup.kernel.owners import draw_owner
from fastdedup.kernel.records import Stored
from fastdedup.kernel.terms import Mode, terms
from fastdedup.ledger.forms import LedgerForm
from fastdedup.ledger.operations import FOREVER_MS, FirstOp, LedgerTerms
from fastdedup.ledger.orphan_ids import OrphanIds
from fastdedup.stores.memory import MemoryStore

from ..integrations.desk import client
from ..servers import RedisServer
from ..virtual import virtual
from ..waiting import acquired, wait_until

# Fault: a claim that a proxy held back, and passed on after the release, took the key for nobody. The claim
# had been sent again meanwhile, so its owner had worked and released the key. The late copy acquired it for
# the same owner, who was gone, and the key was held until the lease ended. The same for a claim that was
# given up: it was looked for twice within a second, and not again. The model has the late copies.


LEASE = 60.0


async def claim(dedup: Dedup) -> None:
    await (await dedup.claim("key", lease=LEASE)).release()


async def claim_and_wait(dedup: Dedup) -> None:
    await (await dedup.claim("key", lease=LEASE, wait=5.0)).release()


async def claim_many(dedup: Dedup) -> None:
    for each in await dedup.claim_many(["key"], lease=LEASE, wait=5.0):
        await each.release()


async def lock(dedup: Dedup) -> None:
    async with dedup.lock("key", lease=LEASE):
        pass


async def test_a_claim_that_was_sent_once_is_not_watched(redis_url: str) -> None:
    async with Dedup(redis_url, namespace="t") as dedup:
        for use in (claim, claim_and_wait, claim_many, lock):
            await use(dedup)
        assert not dedup.gate.connection.orphans


# What was taken back once was not looked at again, so a copy that came after that stayed.


def a_claim() -> ClaimOp:
    return ClaimOp(b"t:=key", terms(Mode.CLAIM, 30_000, 60_000, False), draw_owner(), None)


def an_id() -> FirstOp:
    form = LedgerForm.drawn(capacity=1_000, width=7, window_ms=60_000)
    return FirstOp(b"t:~l{AAAA}", bytes(7) + b"call\0", LedgerTerms(form, "set", FOREVER_MS))


def is_held(store: MemoryStore, op: ClaimOp) -> bool:
    found = store.apply(ReadOp(op.wire))
    return isinstance(found, Stored) and found.state == "P"


@virtual
async def test_a_copy_that_comes_after_the_taking_back_is_taken_back_as_well() -> None:
    """And no key is watched for ever. The model has the copies of a token's use and of an id."""
    loop = asyncio.get_running_loop()
    store, op = MemoryStore(clock=lambda: 1_700_000_000 + loop.time()), a_claim()

    def submit(sent: Op) -> asyncio.Future[Reply]:
        reply: asyncio.Future[Reply] = loop.create_future()
        reply.set_result(store.apply(sent))
        return reply

    orphans = Orphans(submit, lambda event: pytest.fail(f"{event}"))
    orphans.add(op)
    for copy in range(2):
        store.apply(op)
        assert is_held(store, op)
        await wait_until(lambda: not is_held(store, op), description=f"copy {copy} is taken back")
        assert not len(orphans)
    await wait_until(lambda: not orphans, description="no key is watched any more", deadline=60.0)
    assert loop.time() < 60


async def test_a_call_takes_no_place_whose_removal_may_come_late() -> None:
    """The removal of a given-up id arrived late, and removed the id of the call that had taken its place."""
    lost: list[asyncio.Future[Reply]] = []

    def submit(sent: Op) -> asyncio.Future[Reply]:
        lost.append(asyncio.get_running_loop().create_future())
        return lost[-1]

    orphans = Orphans(submit, lambda event: None)
    ids = OrphanIds(orphans)
    for asked in (False, True):
        op, again = an_id(), an_id()
        again.entry = op.entry[:7] + b"more\0"
        ids.add(op)
        if asked:
            looking = asyncio.ensure_future(ids.free_now(again))
            await asyncio.sleep(0)
            lost.pop().set_exception(UnavailableError("no reply"))
            with pytest.raises(UnavailableError):
                await looking
        mine = again.entry
        ids.leave_to_call(again, named=False)
        assert (again.entry == mine, ids.is_removing(again)) == (asked, asked)
    await orphans.finish(0.0)


@virtual
async def test_what_is_only_watched_makes_room_for_what_is_to_be_taken_back() -> None:
    told: list[Event] = []
    never = asyncio.get_running_loop().create_future()
    orphans = Orphans(lambda op: never, told.append, most=3)
    pending = [a_claim() for _ in range(3)]
    for op in pending[:2]:
        orphans.add(op)
    for _ in range(9):
        orphans.watch(a_claim())
    orphans.add(pending[2])
    assert {owner for _, owner in orphans.held_keys()} == {op.owner for op in pending}
    assert told == []
    orphans.add(a_claim())
    assert [type(event) for event in told] == [UndoOverflow]
    await orphans.finish(0.0)


# A batch that failed as a whole left what it had written before: keys held, and nobody was told of it.


@pytest.fixture
def forbidding(redis_server: RedisServer) -> Any:
    """Lets Redis refuse SETRANGE: a claimant that asks again for its own claim needs it, a first one does not."""
    with redis_server.client() as raw:

        def forbid() -> None:
            raw.execute_command("ACL", "SETUSER", "default", "-setrange")

        yield forbid
        raw.execute_command("ACL", "SETUSER", "default", "+@all")


async def attempts(other: Dedup, keys: list[str]) -> list[int]:
    """Acquire each key as another caller, soon; return how often each was acquired by then."""
    return [(await acquired(other, key, lease=60)).attempt for key in keys]


async def test_what_a_failed_batch_had_written_is_undone(
    redis_url: str, forbidding: Callable[[], None]
) -> None:
    async with (
        Dedup(redis_url, namespace="t", timeout=5.0) as dedup,
        Dedup(redis_url, namespace="t") as other,
    ):
        await dedup.claim("held", owner="w1", lease=1)
        forbidding()
        # As few as one batch takes: the last of them fails, the others are written before.
        keys = [f"k{number}" for number in range(10)]
        asked = [dedup.claim(key, lease=60) for key in keys]
        answers = await asyncio.gather(
            *asked, dedup.claim("held", owner="w1", lease=60), return_exceptions=True
        )
        assert all(isinstance(answer, UnavailableError) for answer in answers)
        assert dedup.breaker is BreakerState.CLOSED

        # Written, and undone: each was acquired before.
        assert await attempts(other, keys) == [2] * len(keys)


# A claim that was lost in an outage, and whose body was stopped, is freed once the store answers. Its
# renewals lay in the socket of a frozen Redis, and held the key for one lease more when that went on.


Freeze = Callable[[], Awaitable[None]]
SHORT_LEASE = 2.0
AT_ONCE = 1.0
"""Seconds in which the key is free again; a renewal would hold it for the whole lease."""


async def by_block(dedup: Dedup, work: Freeze) -> None:
    async with dedup.claim("k", renew=True):
        await work()


async def by_middleware(dedup: Dedup, work: Freeze) -> None:
    async def order(request: Any) -> PlainTextResponse:
        await work()
        return PlainTextResponse("done")

    app = Starlette(routes=[Path("/orders", order, methods=["POST"])])
    guarded = asgi.IdempotencyMiddleware(app, dedup, principal=asgi.everyone)
    async with client(guarded, raises=True) as visitor:
        answer = await visitor.post("/orders", headers={"idempotency-key": "k"})
    if answer.status_code == 409:
        raise InProgressError("in progress", retry_after=0.0)
    if answer.status_code == 503:
        raise ClaimLostError("lease-lost", outage=True)


@pytest.mark.parametrize("way", [by_block, by_middleware])
async def test_no_late_renewal_holds_the_key(redis_url: str, redis_server: RedisServer, way: Any) -> None:
    async def frozen() -> None:
        redis_server.freeze()
        await asyncio.Event().wait()

    ran = []

    async def work() -> None:
        ran.append("again")

    async with (
        Dedup(redis_url, namespace="t", timeout=0.2, lease=SHORT_LEASE) as dedup,
        Dedup(redis_url, namespace="t", lease=SHORT_LEASE) as other,
    ):
        try:
            with pytest.raises(ClaimLostError):
                await way(dedup, frozen)
        finally:
            redis_server.thaw()

        async def runs() -> bool:
            with suppress(InProgressError):
                await way(other, work)
            return bool(ran)

        await wait_until(runs, description="the next owner runs", deadline=AT_ONCE)


async def test_a_body_that_ended_well_is_not_made_undone(redis_url: str, redis_server: RedisServer) -> None:
    """It has swallowed the cancellation: its work may be done, so only the lease's end frees its key."""
    async with Dedup(redis_url, namespace="t", timeout=0.2, lease=0.6) as dedup:

        async def work() -> None:
            async with dedup.claim("k", renew=True):
                redis_server.freeze()
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()

        try:
            with pytest.raises(ClaimLostError):
                await work()
        finally:
            redis_server.thaw()
        assert not len(dedup.gate.connection.orphans)
