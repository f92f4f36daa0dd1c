"""Redis was frozen for 2 s while a client died: 244 of its 500 EPHEMERAL claims stayed until their leases ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis

from ..servers import RedisServer
from ..sidecar.attacks import answered, connect
from ..sidecar.fuzz import pack
from ..sidecar.running import Sidecar, figure
from .test_many_ephemeral_claims import are_free

WaitUntil = Callable[..., Any]
KEYS = [b"%d" % number for number in range(200)]


async def test_releases_are_tried_until_the_store_takes_them(
    redis_server: RedisServer, redis_url: str, wait_until: WaitUntil
) -> None:
    options = ("--url", redis_url, "--namespace", "freeze", "--timeout", "0.4", "--ttl", "60")
    with Sidecar(*options) as sidecar, redis_server.client() as store:
        with connect(sidecar.path) as raw:
            raw.sendall(b"".join(pack(b"FD.CLAIM", key, b"EPHEMERAL") for key in KEYS))
            answered(raw, len(KEYS))
            redis_server.freeze()
        try:
            await wait_until(
                lambda: figure(sidecar.figures(), "fastdedup_breaker_opened_total") == 1,
                description="the sidecar has given up on the store for now",
            )
        finally:
            redis_server.thaw()
        keys = [f"freeze:={key.decode()}" for key in KEYS]
        await wait_until(lambda: are_free(store, keys), description="all are free")


async def test_an_owner_that_comes_back_keeps_its_claim(
    redis_server: RedisServer, redis_url: str, wait_until: WaitUntil
) -> None:
    """Its former connection ended while the store was not asked."""
    options = ("--url", redis_url, "--namespace", "freeze", "--timeout", "0.4", "--ttl", "60")
    mine = ("FD.CLAIM", "mine", "OWNER", "worker:1", "EPHEMERAL")
    with Sidecar(*options) as sidecar, connect(sidecar.path) as again, sidecar.client() as other:

        def is_open() -> bool:
            other.execute_command("PING")
            again.sendall(pack(b"FD.GET", b"probe"))
            again.recv(100)
            return figure(sidecar.figures(), "fastdedup_breaker_state", state="open") == 1

        with sidecar.client() as ask:
            fence = ask.execute_command(*mine)[2]
            assert ask.execute_command("FD.CLAIM", "other", "EPHEMERAL")[0] == b"acquired"
            redis_server.freeze()
            await wait_until(is_open, description="the store is not asked")
        try:
            await wait_until(
                lambda: figure(sidecar.figures(), "fastdedup_degraded_total", verb="release") >= 2,
                description="the store was not told that the client has gone",
            )
            again.sendall(pack(*(each.encode() for each in mine)))
            assert again.recv(100).startswith(b"-UNAVAILABLE")
        finally:
            redis_server.thaw()
        await wait_until(
            lambda: asked(other, "other")[:1] == [b"acquired"], description="the other claim is free"
        )
        assert asked(other, "mine")[::2][:2] == [b"in_progress", fence]


def asked(client: redis.Redis, key: str) -> list[Any]:
    """Return the answer to a claim; empty while the store does not answer."""
    try:
        return list(client.execute_command("FD.CLAIM", key))
    except redis.ResponseError:
        return []
