"""A header that `Connection` names was stored and replayed, though it is of one connection."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from fastdedup import Dedup
from fastdedup.integrations import asgi
from fastdedup.web.response import HeaderFilter

KEY = {"Idempotency-Key": "k"}
HOP: Any = [
    (b"Connection", b"close, X-Hop"),
    (b"connection", b"x-other"),
    (b"x-hop", b"1"),
    (b"X-Other", b"2"),
]


@pytest.mark.parametrize("keep", [None, ["x-hop", "x-end"]])
def test_a_header_that_connection_names_is_not_stored(keep: Any) -> None:
    assert HeaderFilter(keep, [])([*HOP, (b"x-end", b"3")]) == [(b"x-end", b"3")]


async def test_a_header_that_connection_names_is_not_replayed(redis_url: str) -> None:
    async def order(request: Request) -> PlainTextResponse:
        return PlainTextResponse("made", headers={"Connection": "X-Hop", "X-Hop": "1", "X-End": "3"})

    dedup = Dedup(redis_url, namespace="t")
    shop = Starlette(routes=[Route("/orders", order, methods=["POST"])])
    transport = httpx.ASGITransport(asgi.IdempotencyMiddleware(shop, dedup, principal=asgi.everyone))
    async with dedup, httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        first, again = [await client.post("/orders", headers=KEY) for _ in range(2)]
    assert (first.headers["x-hop"], first.headers["x-end"]) == ("1", "3")
    assert "x-hop" not in again.headers
    assert again.headers["x-end"] == "3"
