"""A request with two X-Api-Key headers got its key under the first one, where its application may take the last."""

from __future__ import annotations

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from fastdedup import Dedup
from fastdedup.integrations.asgi import IdempotencyMiddleware, by_header


async def order(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"an order of {dict(request.scope['headers'])[b'x-api-key'].decode()}")


@pytest.mark.parametrize("names", [["bob", "ann"], ["ann", "bob"], ["ann", "ann"], ["ann", ""], ["", "ann"]])
async def test_a_header_given_twice_names_nobody(names: list[str]) -> None:
    async with Dedup() as dedup:
        inner = Starlette(routes=[Route("/orders", order, methods=["POST"])])
        app = IdempotencyMiddleware(inner, dedup, principal=by_header("X-Api-Key"))
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop.test")
        async with client:
            key = ("Idempotency-Key", "k")
            await client.post("/orders", headers=[key, ("X-Api-Key", "ann")])
            refused = await client.post("/orders", headers=[key, *(("X-Api-Key", name) for name in names)])
    assert refused.status_code == 400
    assert refused.json()["type"] == "urn:fastdedup:problem:principal-required"
