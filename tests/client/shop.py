"""A shop behind `IdempotencyMiddleware` under uvicorn, whose process dies where a request says so.

    python -m tests.client.shop REDIS_URL

prints its port. A parent holds the listening socket and forks a worker, and the next one when that was killed: so
connection is refused, and a killed worker is replaced in some milliseconds. End them as a process group.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from typing import Any

import redis.asyncio as redis
import uvicorn

from fastdedup import Dedup
from fastdedup.integrations.asgi import IdempotencyMiddleware, everyone
from fastdedup.integrations.http.lifespan import ASGIApp, Message, Receive, Scope, Send

LEASE = (
    60.0  # longer than a busy machine takes to start a worker; a test ends the lease of a dead one by hand
)


class Shop:
    """`POST /orders` is one effect. The headers `x-order` and `x-fate` name the order and what becomes of it."""

    def __init__(self, url: str) -> None:
        self._redis: Any = redis.from_url(url, socket_timeout=60.0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            raise RuntimeError("no lifespan")
        if scope["path"] == "/orders/":
            return await answer(send, 307, b"", [(b"location", b"/orders")])
        while (await receive()).get("more_body"):
            pass
        order, fate = order_of(scope)
        if fate == "conflict":
            return await answer(send, 409, b"sold out")
        if fate == "before" and await self.first(order):
            os.kill(os.getpid(), signal.SIGKILL)
        if fate == "held":
            await self._redis.set(f"{order}:held", 1, ex=60)
            await self._redis.blpop(f"{order}:go", 10)
        count = await self._redis.incr(f"{order}:effects")
        await self._redis.expire(f"{order}:effects", 60)
        return await answer(send, 201, json.dumps({"order": order, "effects": count}).encode())

    async def first(self, order: str) -> bool:
        """Return whether this order has not killed a worker yet."""
        return bool(await self._redis.set(f"{order}:died", 1, nx=True, ex=60))

    def dying(self, app: ASGIApp) -> ASGIApp:
        """Die when the response of the app is known, and stored: before it is sent, or in its middle."""

        async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                return await app(scope, receive, send)
            order, fate = order_of(scope)
            dies = fate in ("unsent", "half") and await self.first(order)

            async def sending(message: Message) -> None:
                begins = message["type"] == "http.response.start"
                if dies and fate == "half" and not begins:
                    await send({**message, "body": message["body"][:5], "more_body": True})
                if dies and not (fate == "half" and begins):
                    os.kill(os.getpid(), signal.SIGKILL)
                await send(message)

            return await app(scope, receive, sending)

        return wrapped


def order_of(scope: Scope) -> tuple[str, str]:
    headers = dict(scope["headers"])
    return headers.get(b"x-order", b"").decode(), headers.get(b"x-fate", b"").decode()


async def answer(
    send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [length, *(headers or [])]})
    await send({"type": "http.response.body", "body": body})


def work(url: str, listening: socket.socket) -> None:
    """Serve until killed."""
    shop = Shop(url)
    dedup = Dedup(url, namespace="t", lease=LEASE, timeout=0.25)
    guarded = IdempotencyMiddleware(shop, dedup, principal=everyone, routes=["/orders"])
    config = uvicorn.Config(shop.dying(guarded), log_config=None, lifespan="on")
    asyncio.run(uvicorn.Server(config).serve(sockets=[listening]))


def main() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    worker = 0
    while True:
        worker = os.fork()
        if not worker:
            work(sys.argv[1], listening)
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) != -signal.SIGKILL:
            return


if __name__ == "__main__":
    main()
