"""A database that took no writes for a moment, as in a planned failover, ended all its consumers for good."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiomysql
import asyncpg
import pytest

from fastdedup.messages import MessageRules
from fastdedup.messages.decisions import Action, Decision
from fastdedup.messages.deliveries import Deliveries
from fastdedup.sql import Inbox

from ..sql.fresh import create_by_ddl, engine_at


class Standby:
    """A database of which a test says when it takes writes; `begin` connects to it for each transaction."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.database = server.fresh()

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        raise NotImplementedError
        yield

    def takes_writes(self, does: bool) -> None:
        """Let it take writes, or none."""
        raise NotImplementedError


class Postgres(Standby):
    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        connection = await asyncpg.connect(**self.database.asyncpg)
        try:
            async with connection.transaction():
                yield connection
        finally:
            await connection.close()

    def takes_writes(self, does: bool) -> None:
        with self.server.admin() as connection:
            connection.execute(
                f"ALTER DATABASE {self.database.name} SET default_transaction_read_only = {'off' if does else 'on'}"
            )


class MariaDB(Standby):
    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        connection = await aiomysql.connect(**self.database.aiomysql)
        try:
            yield connection
            await connection.commit()
        finally:
            connection.close()

    def takes_writes(self, does: bool) -> None:
        with self.server.admin() as connection, connection.cursor() as cursor:
            cursor.execute(f"SET GLOBAL read_only = {'OFF' if does else 'ON'}")


@pytest.fixture(params=["postgres", "mariadb"])
def standby(request: pytest.FixtureRequest) -> Standby:
    kind = Postgres if request.param == "postgres" else MariaDB
    return kind(request.getfixturevalue(request.param))


async def test_messages_are_held_until_it_takes_writes_again(
    standby: Any, wait_until: Callable[..., Any]
) -> None:
    runs = []

    async def work(connection: Any, message: str) -> None:
        runs.append(message)

    async def lay(decision: Decision) -> None:
        raise AssertionError(decision)

    engine = engine_at(dict(sorted(standby.database.urls.items())))
    create_by_ddl(engine)
    inbox = Inbox("orders", keep=3_600.0, begin=standby.begin)
    deliveries = Deliveries(MessageRules("orders", str), None, inbox)
    standby.takes_writes(False)
    try:
        delivery = asyncio.create_task(deliveries.handle("m-1", work, lay))
        await wait_until(lambda: deliveries.counts.held, description="the message is held")
    finally:
        standby.takes_writes(True)
    assert (await delivery).action is Action.ACK
    assert runs == ["m-1"]
