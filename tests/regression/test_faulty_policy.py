"""A policy's own error, raised while a batch's replies were handed out, left the rest of the batch unanswered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fastdedup import Dedup, LocalLRU
from fastdedup.protocol.operations import ClaimOp, Op, Reply

from ..proxy import proxied
from ..servers import RedisServer

WaitUntil = Callable[..., Any]


class FaultyPolicy(LocalLRU):
    """Fails for keys that are called bad: when it hears of a claim, or when it is asked after that."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self._at = at
        self._heard: set[bytes] = set()

    def saw(self, op: Op, reply: Reply) -> None:
        if b"bad" in op.wire and isinstance(op, ClaimOp):
            if self._at == "saw":
                raise ValueError("the policy's own")
            self._heard.add(op.wire)
        super().saw(op, reply)

    def holds(self, wire: bytes) -> bool:
        if self._at == "holds" and b"bad" in wire:
            raise ValueError("the policy's own")
        if wire in self._heard:
            self._heard.discard(wire)
            return True
        return super().holds(wire)

    def answer(self, op: Op, error: Any) -> Reply:
        if b"bad" in op.wire:
            raise ValueError("the policy's own")
        return super().answer(op, error)


@pytest.mark.parametrize("at", ["saw", "answer", "holds"])
async def test_others_of_its_batch_are_answered(redis_url: str, wait_until: WaitUntil, at: str) -> None:
    """And the key that nobody was told of is freed."""
    policy = FaultyPolicy(at)
    async with (
        Dedup(redis_url, namespace="t", timeout=5.0, on_unavailable=policy) as dedup,
        Dedup(redis_url, namespace="t", timeout=5.0) as other,
    ):
        keys = ["a", "bad", "b", "bad", "c"]
        async with asyncio.timeout(5.0):
            answers = await asyncio.gather(*[dedup.claim(key) for key in keys], return_exceptions=True)
        for key, answer in zip(keys, answers, strict=True):
            assert isinstance(answer, ValueError) if key == "bad" else answer.acquired  # type: ignore[union-attr]
        engine = dedup._namespace.connection.engine
        assert engine is not None
        await wait_until(lambda: not engine.pending, description="nothing is left")

        async def taken() -> bool:
            return (await other.claim("bad")).acquired

        await wait_until(taken, description="another caller acquires the key", deadline=1.0)


@pytest.mark.parametrize("at", ["saw", "answer", "holds"])
async def test_a_list_that_fails_holds_nothing(redis_url: str, wait_until: WaitUntil, at: str) -> None:
    """Wherever it fails: before the rest is sent, or when the replies come."""
    async with (
        Dedup(redis_url, namespace="t", timeout=5.0, on_unavailable=FaultyPolicy(at)) as dedup,
        Dedup(redis_url, namespace="t", timeout=5.0) as other,
    ):
        for options in ({}, {"wait": 1.0}):
            with pytest.raises(ValueError, match="the policy's own"):
                await dedup.claim_many(["a", "b", "bad", "c"], **options)

        async def all_taken() -> bool:
            claims = await other.claim_many(["a", "b", "bad", "c"], owner="w2")
            return all(claim.acquired for claim in claims)

        await wait_until(all_taken, description="another caller acquires the keys", deadline=1.0)


async def test_a_list_that_fails_while_others_are_under_way_holds_nothing(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil
) -> None:
    """What it had accepted waits for its turn then, and must not be sent for nobody."""
    async with (
        proxied(redis_server) as proxy,
        Dedup(proxy.url, namespace="t", timeout=5.0, on_unavailable=FaultyPolicy("holds")) as dedup,
        Dedup(redis_url, namespace="t", timeout=5.0) as other,
    ):
        engine = dedup._namespace.connection.engine
        assert engine is not None
        proxy.hold()
        under_way = []
        for number in range(4):
            under_way.append(asyncio.ensure_future(dedup.claim(f"x{number}")))
            await wait_until(lambda n=number: engine.in_flight > n, description="it is under way")
        with pytest.raises(ValueError, match="the policy's own"):
            await dedup.claim_many(["a", "b", "bad"])
        proxy.forward()
        await asyncio.gather(*under_way)
        await wait_until(lambda: not engine.pending, description="nothing is left")
        claims = await other.claim_many(["a", "b"])
        assert all(claim.acquired for claim in claims)
