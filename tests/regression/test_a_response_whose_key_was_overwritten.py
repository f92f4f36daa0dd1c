"""A response whose key another program had overwritten became a 500 under ASGI, though its handler had run."""

from __future__ import annotations

from typing import Any

import httpx
import redis

from fastdedup import Dedup
from fastdedup.integrations import asgi, wsgi
from fastdedup.sync import Dedup as SyncDedup

KEY = {"Idempotency-Key": "k"}


def overwrite(url: str) -> None:
    """Put another program's value in the place of the claim."""
    with redis.Redis.from_url(url) as raw:
        for key in raw.scan_iter():
            raw.set(key, "another program's", ex=60)


def sent(answer: httpx.Response) -> tuple[int, str, str | None]:
    return answer.status_code, answer.text, answer.headers.get("idempotency-stored")


async def test_asgi_sends_it_marked_as_not_stored(redis_url: str) -> None:
    async def shop(scope: Any, receive: Any, send: Any) -> None:
        overwrite(redis_url)
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"made"})

    async with Dedup(redis_url, namespace="t") as dedup:
        guarded = asgi.IdempotencyMiddleware(shop, dedup, principal=asgi.everyone)
        transport = httpx.ASGITransport(guarded)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop.test") as client:
            assert sent(await client.post("/orders", headers=KEY)) == (201, "made", "false")


def test_wsgi_sends_it_marked_as_not_stored(redis_url: str) -> None:
    def shop(environ: Any, start_response: Any) -> Any:
        overwrite(redis_url)
        start_response("201 Created", [])
        return [b"made"]

    with SyncDedup(redis_url, namespace="t") as dedup:
        guarded = wsgi.IdempotencyMiddleware(shop, dedup, principal=wsgi.everyone)
        with httpx.Client(transport=httpx.WSGITransport(guarded), base_url="http://shop.test") as client:
            assert sent(client.post("/orders", headers=KEY)) == (201, "made", "false")
