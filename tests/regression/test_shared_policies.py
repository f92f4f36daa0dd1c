"""Gates that share a policy: in two event loops, in a forked child, and if one of them closes in an outage."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Coroutine
from weakref import WeakSet

import pytest

from fastdedup import Dedup, LocalLRU, Outcome, Reject, UsageError
from fastdedup import sync as synchronous
from fastdedup.events import Unreplayed
from fastdedup.testing import FakeStore

from ..heard import HeardGate
from ..programs import until
from ..servers import RedisServer
from ..waiting import wait_until


async def first(policy: LocalLRU | Reject) -> bool:
    async with Dedup("memory://", on_unavailable=policy) as dedup:
        return (await dedup.claim("k")).acquired


@pytest.mark.parametrize("is_reopened", [False, True])
async def test_the_second_loop_is_refused_while_the_first_is_open(is_reopened: bool) -> None:
    policy = LocalLRU()
    async with Dedup("memory://", on_unavailable=policy) as dedup:
        if is_reopened:
            await dedup.aclose()
            await dedup.open()
        with pytest.raises(
            UsageError, match=r"LocalLRU\(maxsize=100000\) is in use by a gate .* another event loop"
        ):
            await asyncio.to_thread(asyncio.run, first(policy))
        with synchronous.Dedup("memory://", on_unavailable=LocalLRU()) as gate:
            assert gate.claim("k").acquired
        assert await first(policy)  # in this loop it may be shared
        assert (await dedup.claim("k")).acquired
    assert await asyncio.to_thread(asyncio.run, first(policy))


def test_loops_one_after_another_may_share_it() -> None:
    policy = LocalLRU()
    assert [asyncio.run(first(policy)) for _ in range(3)] == [True] * 3


def test_a_loop_that_ended_without_closing_its_gate_does_not_count() -> None:
    policy = LocalLRU()

    async def leave_open() -> None:
        await Dedup("memory://", on_unavailable=policy).open()

    asyncio.run(leave_open())
    assert asyncio.run(first(policy))


def test_a_policy_without_memory_may_be_shared_by_loops() -> None:
    policy = Reject()

    async def second() -> bool:
        async with Dedup("memory://", on_unavailable=policy):
            return await asyncio.to_thread(asyncio.run, first(policy))

    assert asyncio.run(second())


class Counting(Reject):
    """A user's policy that counts its users."""

    def __init__(self) -> None:
        self.users = {"ann"}
        self.connections = 3


async def test_a_policy_may_have_attributes_of_any_name() -> None:
    """Its `users` was taken for LocalLRU's set of connections, and `open()` failed with AttributeError."""
    policy = Counting()
    assert await first(policy)
    assert policy.users == {"ann"}


async def with_scope(policy: LocalLRU) -> None:
    dedup = Dedup("memory://")
    scope = dedup.scoped("mail", on_unavailable=policy)
    async with dedup:
        assert (await scope.claim("k")).acquired


async def with_late_scope(policy: LocalLRU) -> None:
    async with Dedup("memory://") as dedup:
        assert (await dedup.scoped("mail", on_unavailable=policy).claim("k")).acquired


@pytest.mark.parametrize("other", [with_scope, with_late_scope])
async def test_a_policy_of_a_scope_only_is_refused_in_a_second_loop(
    other: Callable[[LocalLRU], Coroutine[None, None, None]],
) -> None:
    policy = LocalLRU()
    async with Dedup("memory://") as dedup:
        scope = dedup.scoped("mail", on_unavailable=policy)
        with pytest.raises(UsageError, match="in use by a gate that is open in another event loop"):
            await asyncio.to_thread(asyncio.run, other(policy))
        await other(policy)  # in this loop it may be shared
        assert (await scope.claim("k")).acquired
    await asyncio.to_thread(asyncio.run, other(policy))


# A child that was forked in an outage wrote its parent's records into the store, after the parent had done that.


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # Python 3.12+
def test_a_child_leaves_the_records_of_an_outage_to_its_parent(own_redis: RedisServer) -> None:
    """It held a key again that its parent had released, and an id was first twice."""
    policy = LocalLRU()
    goes_on, lets_go_on = os.pipe()
    with (
        synchronous.Dedup(own_redis.url, namespace="shop", on_unavailable=policy) as dedup,
        synchronous.Dedup(own_redis.url, namespace="shop") as other,
    ):
        ids, theirs = (gate.ledger("ids", window=60.0, capacity=100) for gate in (dedup, other))
        own_redis.kill()
        claim, _ = dedup.claim("k"), ids.forget("id")
        child = os.fork()
        if not child:
            code = 1
            try:
                os.read(goes_on, 1)
                code = 0 if ids.seen("id") and dedup.claim("k").acquired else 2
            finally:
                os._exit(code)
        try:
            own_redis.start()
            until(lambda: not policy.lines, description="the parent's records are in the store")
            claim.release()
            assert theirs.first("id")
        finally:
            os.write(lets_go_on, b".")
            _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0


# Gates that share a `LocalLRU`: one that closed in an outage reported records as forgotten that were not.


async def test_a_gate_that_closes_leaves_its_records_to_another_one(own_redis: RedisServer) -> None:
    """The gate that stays open never answered by its policy, so before it left the records in the journal."""
    policy = LocalLRU()
    own_redis.kill()
    async with HeardGate(own_redis.url, namespace="shop", on_unavailable=policy) as open_gate:
        async with HeardGate(own_redis.url, namespace="shop", on_unavailable=policy) as closing:
            claim = await closing.dedup.claim("k")
            await claim.complete("done")
            assert await closing.dedup.ledger("ids", window=60.0, capacity=100).first("id")
        assert policy.lines == 2
        own_redis.start()
        await wait_until(lambda: not policy.lines, description="the records are in the store")
        assert closing.of(Unreplayed) == open_gate.of(Unreplayed) == []
    async with HeardGate(own_redis.url, namespace="shop") as later:
        again = await later.dedup.claim("k")
        assert (again.outcome, again.result) == (Outcome.SUCCEEDED, "done")


async def test_the_last_gate_reports_what_the_store_never_got(own_redis: RedisServer) -> None:
    policy = LocalLRU()
    own_redis.kill()
    last, first = (HeardGate(own_redis.url, namespace="shop", on_unavailable=policy) for _ in range(2))
    async with last, first:
        await (await first.dedup.claim("k")).complete("done")
    assert (len(first.of(Unreplayed)), len(last.of(Unreplayed))) == (0, 1)


async def test_policies_of_scopes_that_are_gone_are_dropped() -> None:
    """A connection kept the policy of each tenant that was ever served in an outage, with all its records."""
    store, policies = FakeStore(), WeakSet[LocalLRU]()
    async with HeardGate(store) as gate:

        async def outage(tenant: int) -> None:
            policies.add(policy := LocalLRU())
            with store.outage("refused"):
                await gate.dedup.scoped(f"t{tenant}", on_unavailable=policy).claim("k")
            await wait_until(lambda: not policy.lines, description="the store has the record")

        for tenant in range(200):
            await outage(tenant)
        gc.collect()
        assert 0 < len(policies) < 100
