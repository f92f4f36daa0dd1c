"""A connection that is cut off while redis-py shakes hands is an outage, also by uvloop's own error."""

from __future__ import annotations

from typing import Any

import pytest
from redis.asyncio.connection import AbstractConnection

from fastdedup import Dedup, Outcome, UnavailableError

CLOSED = "unable to perform operation on <UnixTransport closed=True>; the handler is closed"


async def test_a_claim_is_unavailable(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def cut(connection: Any) -> None:
        raise RuntimeError(CLOSED)

    async with Dedup(redis_url, namespace="shop", timeout=5.0) as direct:
        owner = await direct.claim("key")
        async with Dedup(redis_url, namespace="shop", timeout=5.0) as dedup:
            with monkeypatch.context() as patch:
                patch.setattr(AbstractConnection, "connect", cut)
                # The one that waits subscribes by a connection of its own; without news it looks again.
                assert (await dedup.claim("key", wait=0.2)).outcome is Outcome.IN_PROGRESS
        with monkeypatch.context() as patch:
            patch.setattr(AbstractConnection, "connect", cut)
            with pytest.raises(UnavailableError, match="Redis at"):
                async with Dedup(redis_url, namespace="shop", timeout=0.2) as away:
                    await away.claim("key")
        await owner.release()
