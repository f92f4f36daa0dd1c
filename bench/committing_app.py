"""The FastAPI application of the committing table's servers: an order is one row of PostgreSQL (internal).

`BENCH_GATE` names one of ENDPOINTS and a driver, `BENCH_URL` the Redis, `BENCH_DATABASE` the database and
`BENCH_FOLDER` the folder of its socket.
"""

# No `from __future__ import annotations` here: FastAPI reads the annotations of handlers made in a function.

import gc
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import asyncpg  # type: ignore[import-untyped] # ships no types
from fastapi import Depends, FastAPI, Header, Request
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from bench.contest import GC_THRESHOLDS
from bench.webapp import Order, gate
from fastdedup import Claim
from fastdedup.integrations.fastapi import Claimed, Commits, Committed, Idempotency, everyone
from fastdedup.sql import Inbox
from tests.databases import PostgresDatabase

CONNECTIONS = 16
"""Connections of a server to its database: more wait for each other on two cores."""
INSERT = "INSERT INTO orders (quantity) VALUES ($1)"


class Base(DeclarativeBase):
    """The mapped tables."""


class Placed(Base):
    """An order that was placed."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    quantity: Mapped[int]


def database() -> Any:
    """Return the database."""
    return PostgresDatabase(os.environ["BENCH_DATABASE"], Path(os.environ["BENCH_FOLDER"]))


class Pool:
    """A pool of asyncpg's, open while the server runs."""

    def __init__(self) -> None:
        # Mutable: the pool.
        self._pool: Any = None

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Open the pool before the first request."""
        sizes = {"min_size": CONNECTIONS, "max_size": CONNECTIONS}
        async with asyncpg.create_pool(**database().asyncpg, **sizes) as self._pool:
            yield

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        """Begin a transaction."""
        async with self._pool.acquire() as connection, connection.transaction():
            yield connection


def sessions() -> Any:
    """Return SQLAlchemy's sessions over asyncpg."""
    url = database().urls["asyncpg"]
    return async_sessionmaker(create_async_engine(url, pool_size=CONNECTIONS, max_overflow=0))


async def insert(connection: Any, order: Order) -> dict[str, object]:
    """Write the row, by asyncpg."""
    await connection.execute(INSERT, order.quantity)
    return {"order": 42, "quantity": order.quantity, "status": "paid"}


async def add(session: Any, order: Order) -> dict[str, object]:
    """Write the row, by SQLAlchemy's ORM."""
    placed = Placed(quantity=order.quantity)
    session.add(placed)
    await session.flush()
    return {"order": placed.id, "quantity": order.quantity, "status": "paid"}


def bare(begin: Callable[[], Any], work: Callable[..., Any], app: FastAPI) -> None:
    """An endpoint that only writes its row, and commits before the response is sent."""

    async def transaction() -> AsyncIterator[Any]:
        async with begin() as opened:
            yield opened

    @app.post("/orders", status_code=201)
    async def order(body: Order, opened: Annotated[Any, Depends(transaction, scope="function")]) -> Any:
        return await work(opened, body)


def claimed(begin: Callable[[], Any], work: Callable[..., Any], app: FastAPI) -> None:
    """The same endpoint behind the gate alone."""
    Idempotency(app, gate())

    async def transaction() -> AsyncIterator[Any]:
        async with begin() as opened:
            yield opened

    @app.post("/orders", status_code=201)
    async def order(
        body: Order,
        opened: Annotated[Any, Depends(transaction, scope="function")],
        claim: Annotated[Claim | None, Claimed(principal=everyone)],
    ) -> Any:
        return await work(opened, body)


def inbox_by_hand(begin: Callable[[], Any], work: Callable[..., Any], app: FastAPI) -> None:
    """The same endpoint with the inbox's row and result, written in the handler: no gate, and no rules of HTTP."""
    inbox = Inbox("bench", keep=3600.0)

    async def transaction() -> AsyncIterator[Any]:
        async with begin() as opened:
            yield opened

    @app.post("/orders", status_code=201)
    async def order(
        body: Order,
        opened: Annotated[Any, Depends(transaction, scope="function")],
        idempotency_key: Annotated[str, Header()],
    ) -> Any:
        receipt = await inbox.receive(opened, idempotency_key)
        if not receipt.first:
            return receipt.replay()
        await receipt.complete(await work(opened, body))
        return receipt.result


def committing(begin: Callable[[], Any], work: Callable[..., Any], app: FastAPI) -> None:
    """The same endpoint, whose row, work and response commit together."""
    Idempotency(app, gate())
    commits = Commits(Inbox("bench", keep=3600.0), begin=begin, principal=everyone)

    @app.post("/orders", status_code=201)
    async def order(body: Order, request: Annotated[Committed[Any], commits]) -> Any:
        return await work(request.session, body)


def all_by_hand(begin: Callable[[], Any], work: Callable[..., Any], app: FastAPI) -> None:
    """Gate, transaction and row in the handler, without FastAPI's dependencies and without rules of HTTP."""
    dedup, inbox = gate(), Inbox("bench", keep=3600.0)
    Idempotency(app, dedup)

    @app.post("/orders", status_code=201)
    async def order(body: Order, request: Request) -> Any:
        key = request.headers["idempotency-key"]
        async with dedup.claim(key) as claim:
            if not claim.acquired:
                return claim.replay()
            async with begin() as opened:
                receipt = await inbox.receive(opened, key)
                result = await work(opened, body) if receipt.first else receipt.replay()
                if receipt.first:
                    await receipt.complete(result)
            await claim.complete(result)
        return result


ENDPOINTS = {
    "bare": bare,
    "claimed": claimed,
    "inbox": inbox_by_hand,
    "hand": all_by_hand,
    "committing": committing,
}


def create() -> FastAPI:
    """Return the application (uvicorn calls this), with the collector as every contestant has it."""
    kind, driver = os.environ["BENCH_GATE"].split()
    if driver == "asyncpg":
        pool = Pool()
        app = FastAPI(lifespan=pool.lifespan)
        ENDPOINTS[kind](pool.begin, insert, app)
    else:
        app = FastAPI()
        ENDPOINTS[kind](sessions().begin, add, app)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    return app
