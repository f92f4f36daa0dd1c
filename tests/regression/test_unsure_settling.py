"""A settling whose reply was lost says so: its record may have been made, and have expired since."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fastdedup import ClaimLostError, Dedup, UnavailableError
from fastdedup.events import Event, LeaseLost
from fastdedup.protocol.operations import Code, SettleOp, Verb
from fastdedup.protocol.owners import owner_field
from fastdedup.stores.redis import RedisStore
from fastdedup.stores.sidecar import SidecarStore

from ..proxy import proxied
from ..servers import RedisServer
from ..sidecars import Sidecar


async def settled_twice(
    proxy: Any, store: RedisStore | SidecarStore, dedup: Dedup
) -> tuple[object, SettleOp]:
    """Settle a key for 1 ms; the first reply is lost, and the record gone before the second is made."""
    claim = await dedup.claim("k", lease=60)
    op = SettleOp(b"t:=k", owner_field(claim.owner), claim.fence, succeeded=True, keep_ms=1, payload=b"1")
    proxy.lose("settle")
    [code] = await store.execute(Verb.SETTLE, [op])
    return code, op


async def test_a_settling_that_was_answered_is_sure(redis_url: str, redis_server: RedisServer) -> None:
    async with Dedup(redis_url, namespace="t") as dedup:
        claim = await dedup.claim("k", lease=60)
        op = SettleOp(b"t:=k", owner_field(claim.owner), 1, succeeded=True, keep_ms=60_000, payload=b"1")
        assert await dedup._namespace.connection.store.execute(Verb.SETTLE, [op]) == [Code.LOST]
        assert not op.unsure


async def test_a_sidecar_passes_on_that_it_is_unsure(redis_server: RedisServer) -> None:
    """The sidecar sends it twice; its client hears LOST, and that the first may have been recorded."""
    async with proxied(redis_server) as proxy, Dedup(redis_server.url, namespace="t") as dedup:
        gate = Sidecar(proxy.url, timeout=5.0)
        await asyncio.to_thread(gate.start)
        store = SidecarStore(gate.url, timeout=5.0)
        try:
            await store.open()
            code, op = await settled_twice(proxy, store, dedup)
        finally:
            await store.aclose()
            await asyncio.to_thread(gate.stop)
        assert op.unsure is (code is Code.LOST)
        assert proxy.lost["settle"] == 1


@pytest.mark.parametrize("how", ["complete", "fail"])
async def test_an_outcome_that_the_store_has_lost_is_not_recorded(how: str) -> None:
    """It returned as if it were: a Redis that came back empty answers the second try, and nobody else has the key."""
    server = RedisServer().start()
    told: list[Event] = []
    try:
        async with Dedup(server.url, namespace="t", timeout=5.0, on_event=told.append) as dedup:
            claim = await dedup.claim("k", lease=60)
            await dedup.claim("another")  # its connection waits for nothing
            server.kill()
            server.start()
            with pytest.raises(
                UnavailableError, match="the store answers again without the record"
            ) as caught:
                await getattr(claim, how)("done")
            assert caught.value.unrecorded
            assert [event.key for event in told if isinstance(event, LeaseLost)] == ["k"]
            with pytest.raises(ClaimLostError):
                await getattr(claim, how)("done")
            assert (await dedup.claim("k")).acquired
    finally:
        server.stop()
