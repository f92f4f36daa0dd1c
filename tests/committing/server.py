"""An application that stops at known points of a request, to be killed there: one request in a task for each point.

It prints the name of each request that has reached its point, and waits there; or what a request was answered
that has not. A request is named as its point is.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import httpx
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from fastdedup.integrations.fastapi import Committed

from .bank import Bank, open_bank

POINTS = ("claimed", "working", "responding", "committed", "recorded")
"""After the claim; in the handler; between the row's response and the COMMIT; after the COMMIT; after
the gate was told, before the response is sent."""
LEASE = 2.0
"""Seconds: a busy process must not lose it before it is at every point, and the tests wait for its end."""


async def stop(key: str) -> None:
    """Print a request's name, and wait for the end."""
    os.write(sys.stdout.fileno(), f"{key}\n".encode())
    await asyncio.Event().wait()


@asynccontextmanager
async def begin(sessions: Any, point: str, key: str) -> AsyncIterator[Any]:
    """Begin a transaction, and stop on either side of it."""
    if point == "claimed":
        await stop(key)
    async with sessions.begin() as session:
        yield session
        if point == "responding":
            await session.flush()
            await stop(key)
    if point == "committed":
        await stop(key)


async def ask(bank: Bank, point: str, key: str) -> None:
    """Send a request that stops at its point."""

    async def act(request: Committed[Any]) -> None:
        if point == "working":
            await stop(key)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def late(message: Any) -> None:
            if point == "recorded":
                await stop(key)
            await send(message)

        await bank.app(scope, receive, late)

    bank.act = act
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop.test") as client:
        headers = {"x-account": "ann", "idempotency-key": key}
        answer = await client.post("/payments", json={"note": key, "amount": 1}, headers=headers)
        os.write(
            sys.stdout.fileno(), f"{key} is past its point: {answer.status_code} {answer.text}\n".encode()
        )


async def main(url: str, namespace: str, database: str, prefix: str) -> None:
    """Stop at each point."""
    gate = {"namespace": namespace, "lease": LEASE, "timeout": 5.0}
    sessions = async_sessionmaker(create_async_engine(database))
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        for point in POINTS:
            key = f"{prefix}-{point}"
            begins = partial(begin, sessions, point, key)
            bank = await stack.enter_async_context(open_bank(url, begins, gate=gate))
            group.create_task(ask(bank, point, key))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
