"""Claims over HTTP whose client goes while the store does not answer: they are released when it does again."""

from __future__ import annotations

import json
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ..waiting import wait_until
from .attacks import post
from .conftest import Running, Serve


async def pending(sidecar: Running) -> int:
    return sidecar.namespaces.root.gate.connection.running_engine().pending


def is_open(sidecar: Running) -> bool:
    with sidecar.http() as http:
        return bool(http.get("/readyz").json()["breaker"] == "open")


async def test_a_batch_whose_client_goes_in_an_outage_is_released_after_it(
    serve: Serve, redis_url: str, redis_server: Any
) -> None:
    """The release was sent once; if the store did not answer then, the key was held until its lease ended."""
    sidecar = serve(redis_url, timeout=0.1)
    batch = [
        {"op": "claim", "key": "won", "lease": 600_000},
        {"op": "claim", "key": "other's", "wait": 60_000},
    ]
    with redis.Redis(
        unix_socket_path=sidecar.path, retry=Retry(NoBackoff(), 0), decode_responses=True
    ) as other:

        def state() -> str:
            try:
                return str(json.loads(other.execute_command("FD.GET", "won") or "{}").get("state"))
            except redis.ResponseError:
                return "unknown"  # the store does not answer

        other.execute_command("FD.CLAIM", "other's", "LEASE", "600000")
        try:
            with sidecar.raw() as client:
                client.sendall(post("/v1/batch", batch))
                await wait_until(lambda: state() == "processing", description="the first claim is won")
                redis_server.freeze()
                await wait_until(lambda: state() == "unknown" and is_open(sidecar), description="an outage")
            await wait_until(lambda: len(sidecar.server.connections) == 1, description="the client has gone")
            await wait_until(
                lambda: not sidecar.call(pending(sidecar)), description="no release is under way"
            )
        finally:
            redis_server.thaw()
        await wait_until(lambda: state() == "released", description="the claim is released")
