"""A consumer that stops at known points, to be killed there: three messages in a task each, three in a thread each.

It prints the name of each point that it has reached, and waits there. The message is named as the point is.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import asyncpg
import psycopg

from fastdedup import Dedup
from fastdedup.sql import Inbox
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.sync.sql import Inbox as SyncInbox

from .times import LEASE, WEEK

POINTS = ("claimed", "working", "committed")
FOREVER = 60.0


def tell(key: str) -> None:
    """Print a line in one write: print() writes the line's end by itself, and other threads may write between."""
    os.write(sys.stdout.fileno(), f"{key}\n".encode())


def key_of(transaction: Any, key: str) -> str:
    return key


async def handle(url: str, namespace: str, connect: Callable[[], Any], prefix: str) -> None:
    """Handle a message at each point, in async code."""

    async def stop_at(point: str, key: str) -> None:
        if key == f"{prefix}-{point}":
            tell(key)
            await asyncio.sleep(FOREVER)

    @asynccontextmanager
    async def begin(key: str) -> AsyncIterator[Any]:
        await stop_at("claimed", key)
        connection = await connect()
        async with connection.transaction():
            yield connection
        await stop_at("committed", key)

    async with (
        Dedup(url, namespace=namespace, lease=LEASE, timeout=5.0) as gate,
        asyncio.TaskGroup() as group,
    ):
        for key in (f"{prefix}-{point}" for point in POINTS):

            async def work(transaction: Any, key: str) -> str:
                await transaction.execute("INSERT INTO work VALUES ($1)", key)
                await stop_at("working", key)
                return key

            inbox = Inbox("shop", keep=WEEK)
            group.create_task(inbox.once(key=key_of, begin=partial(begin, key), gate=gate)(work)(key))


def handle_in_threads(url: str, namespace: str, connect: Callable[[], Any], prefix: str) -> None:
    """Handle a message at each point, in synchronous code."""

    def stop_at(point: str, key: str) -> None:
        if key == f"{prefix}-{point}":
            tell(key)
            time.sleep(FOREVER)

    @contextmanager
    def begin(key: str) -> Iterator[Any]:
        stop_at("claimed", key)
        with connect() as connection:
            yield connection
        stop_at("committed", key)

    def work(transaction: Any, key: str) -> str:
        transaction.execute("INSERT INTO work VALUES (%s)", (key,))
        stop_at("working", key)
        return key

    gate = SyncDedup(url, namespace=namespace, lease=LEASE, timeout=5.0)
    for key in (f"{prefix}-{point}" for point in POINTS):
        once = SyncInbox("shop", keep=WEEK).once(key=key_of, begin=partial(begin, key), gate=gate)
        threading.Thread(target=once(work), args=(key,), daemon=True).start()


def main(url: str, namespace: str, folder: str, database: str, prefix: str) -> None:
    options = {"host": folder, "user": "fastdedup"}
    connect = partial(psycopg.connect, **options, dbname=database)
    handle_in_threads(url, namespace, connect, f"{prefix}-sync")
    asyncio.run(
        handle(url, namespace, partial(asyncpg.connect, **options, database=database), f"{prefix}-async")
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
