"""One LocalLRU in gates of two event loops: each loop changes it, and a key could be acquired twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from fastdedup import Dedup, LocalLRU, Reject, UsageError
from fastdedup import sync as synchronous


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
