"""The example application in aiohttp, on its own server; clients of ASGI reach it by HTTP."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import httpx
from aiohttp import web
from aiohttp.test_utils import TestServer
from multidict import CIMultiDict

from fastdedup.integrations.aiohttp import setup
from fastdedup.integrations.http.lifespan import ASGIApp, Receive, Scope, Send

from .desk import Desk, Made, pieces, whole


def aiohttp_app(desk: Desk, *given: Any, **settings: Any) -> web.Application:
    """Return the application under `setup`, which gets a gate and these settings."""

    async def call(request: web.Request) -> web.StreamResponse:
        made = await desk.work(request.match_info["name"], await request.read(), request)
        return await response_of(made, request)

    async def upload(request: web.Request) -> web.StreamResponse:
        file: Any = (await request.post())["file"]
        return await response_of(await desk.work("upload", file.file.read()), request)

    app = web.Application(client_max_size=0)
    app.router.add_post("/upload", upload)
    app.router.add_route("*", "/{name}", call)
    setup(app, *given, **settings)
    return app


async def response_of(made: Made, request: web.Request) -> web.StreamResponse:
    headers = CIMultiDict([("content-type", made.kind), *made.headers])
    if isinstance(made.body, bytes):
        return web.Response(body=made.body, status=made.status, headers=headers)
    response = web.StreamResponse(status=made.status, headers=headers)
    await response.prepare(request)
    async for piece in pieces(made.body):
        await response.write(piece)
    return response


def hosted(app: web.Application, stack: AsyncExitStack) -> ASGIApp:
    """Return what sends a request to a server of the application. The first one starts it, `stack` ends it."""
    opening: list[asyncio.Future[httpx.AsyncClient]] = []

    async def opened() -> httpx.AsyncClient:
        server = await stack.enter_async_context(TestServer(app))
        http = httpx.AsyncClient(
            base_url=str(server.make_url("/")), timeout=30, verify=False, trust_env=False
        )
        return await stack.enter_async_context(http)

    async def sent_on(scope: Scope, receive: Receive, send: Send) -> None:
        if not opening:
            opening.append(asyncio.ensure_future(opened()))
        http = await asyncio.shield(opening[0])
        url = httpx.URL(path=scope["path"], query=scope["query_string"])
        headers = [(name, value.strip()) for name, value in scope["headers"]]  # as each server reads them
        answer = await http.request(scope["method"], url, headers=headers, content=await whole(receive))
        headers = [(name, value) for name, value in answer.headers.raw if name.lower() != b"date"]
        await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
        await send({"type": "http.response.body", "body": answer.content})

    return sent_on
