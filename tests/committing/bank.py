"""An application with an endpoint that commits with its work, and what its work left behind."""

# No `from __future__ import annotations` here: FastAPI reads the annotations of handlers made in a function.

import itertools
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Annotated, Any

import httpx
from fastapi import BackgroundTasks, FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from starlette.middleware import Middleware

from fastdedup import Dedup
from fastdedup.events import Event, GateBypassed
from fastdedup.integrations.fastapi import Commits, Committed, Idempotency
from fastdedup.model import State
from fastdedup.sql import Inbox
from fastdedup.sql.dialects import TableName, dialect_of
from fastdedup.sql.rules import TABLE
from fastdedup.web.inspection import get_request

from ..gated_inbox.shop import WAYS, Place
from ..gated_inbox.times import WEEK
from ..integrations.desk import client
from ..servers import RedisServer

_numbers = itertools.count(1)
PAID = text("INSERT INTO work VALUES (:note)")
IMMEDIATE = {"isolation_level": "IMMEDIATE", "timeout": 5.0}
Act = Callable[[Committed[AsyncSession]], Awaitable[Any]]
Begin = Callable[[], Any]


class Base(DeclarativeBase):
    """The mapped tables."""


class Work(Base):
    """An effect."""

    __tablename__ = "work"
    note: Mapped[str] = mapped_column(primary_key=True)


class Payment(BaseModel):
    """A request."""

    note: str
    amount: int = 1


class Paid(BaseModel):
    """A response; the response model leaves out other fields."""

    paid: int
    run: int


async def go_on(request: Committed[AsyncSession]) -> None:
    """Do nothing further: the handler answers as usual."""


def account(request: Request) -> str:
    """Name the caller."""
    return request.headers.get("x-account", "")


class Bank:
    """An application over a gate and a `begin`. `act` is what a handler does after its work."""

    Work = Work

    def __init__(self, gate: Dedup, begin: Begin, **settings: Any) -> None:
        self.gate = gate
        self.events: list[Event] = []
        self.sessions: Any = None
        self.runs = 0
        self.background = 0
        self.act: Act = go_on
        self.app = FastAPI()
        Idempotency(self.app, gate)
        self.inbox = Inbox("bank", keep=WEEK)
        self.depends = Commits(self.inbox, begin=begin, principal=account, **settings)
        self.routes()
        self.ann = client(self.app, x_account="ann")
        self.bob = client(self.app, x_account="bob")

    def routes(self) -> None:
        """Declare the endpoints."""
        payer = self.depends

        @self.app.post("/payments", status_code=201, response_model=Paid)
        async def pay(
            payment: Payment, request: Annotated[Committed[AsyncSession], payer], tasks: BackgroundTasks
        ) -> Any:
            self.runs += 1
            await request.session.execute(PAID, {"note": payment.note})
            tasks.add_task(self.after)
            answer = await self.act(request)
            return {"paid": payment.amount, "run": self.runs, "secret": 1} if answer is None else answer

    def after(self) -> None:
        """Run after the response."""
        self.background += 1

    def use(self, begin: Begin) -> None:
        """Declare another endpoint, over another `begin`."""
        payer = Commits(self.inbox, begin=begin, principal=account)

        @self.app.post("/other")
        async def other(payment: Payment, request: Annotated[Committed[AsyncSession], payer]) -> Any:
            await request.session.execute(PAID, {"note": payment.note})
            return await self.act(request)

    async def pay(
        self, key: str | None, note: str = "n", who: str = "ann", amount: int = 1, path: str = "/payments"
    ) -> httpx.Response:
        """Send a request."""
        headers = {"x-account": who} | ({} if key is None else {"idempotency-key": key})
        return await self.ann.post(path, json={"note": note, "amount": amount}, headers=headers)

    def committed(self) -> list[str]:
        """Return the notes of all work that was committed, in synchronous code."""
        with closing(sqlite3.connect(self.sessions.kw["bind"].url.database)) as connection:
            return [note for (note,) in connection.execute("SELECT note FROM work")]

    async def effects(self) -> list[str]:
        """Return the notes of all work that was committed."""
        async with self.sessions() as session:
            return list((await session.execute(text("SELECT note FROM work"))).scalars())

    async def rows(self) -> int:
        """Return the number of rows of the inbox."""
        async with self.sessions() as session:
            return int((await session.execute(text("SELECT count(*) FROM fastdedup_inbox"))).scalar_one())

    async def state(self, key: str) -> State | None:
        """Return what the gate knows of a request of Ann's."""
        record = await get_request(self.gate, "POST", "/payments", key=key, principal="ann")
        return None if record is None else record.state

    @property
    def bypasses(self) -> list[GateBypassed]:
        """The events by which the gate was bypassed."""
        return [event for event in self.events if isinstance(event, GateBypassed)]


def answering(response: Any) -> Act:
    """Return what a handler does to answer in another way, or to raise an error."""

    async def act(request: Committed[AsyncSession]) -> Any:
        if isinstance(response, BaseException):
            raise response
        return response

    return act


def stream() -> StreamingResponse:
    """Return a response that has no end that is known."""

    async def lines() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


def tables(dialect: str) -> list[str]:
    """Return the statements that make the inbox's table and a table of effects."""
    made = dialect_of(dialect, TableName(TABLE)).ddl().split(";")
    return [*filter(str.strip, made), "CREATE TABLE work (note VARCHAR(200) CHECK (note <> 'refused'))"]


@asynccontextmanager
async def open_bank(url: str, begin: Begin, **settings: Any) -> AsyncIterator[Bank]:
    """Open an application. `gate`: arguments of its Dedup; the other settings go to `Commits`."""
    events: list[Event] = []
    settings_of_gate = settings.pop("gate", {})
    options = {"namespace": f"bank{next(_numbers)}", "on_event": events.append, **settings_of_gate}
    async with AsyncExitStack() as stack:
        gate = await stack.enter_async_context(Dedup(url, **options))
        bank = Bank(gate, begin, **settings)
        bank.events = events
        stack.push_async_callback(bank.ann.aclose)
        stack.push_async_callback(bank.bob.aclose)
        yield bank


@asynccontextmanager
async def open_sqlite(url: str, folder: Path, **settings: Any) -> AsyncIterator[Bank]:
    """Open an application over a fresh database of SQLite."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{folder / 'bank.db'}", connect_args=IMMEDIATE)
    try:
        async with engine.begin() as connection:
            for statement in tables("sqlite"):
                await connection.execute(text(statement))
        sessions = async_sessionmaker(engine)
        async with open_bank(url, settings.pop("begin", sessions.begin), **settings) as bank:
            bank.sessions = sessions
            yield bank
    finally:
        await engine.dispose()


@asynccontextmanager
async def open_postgres(
    place: Place, redis: RedisServer, way: str = "sqlalchemy", **settings: Any
) -> AsyncIterator[Bank]:
    """Open an application over a database behind a proxy; `way` names its driver."""
    async with (
        WAYS[way](place) as begin,
        open_bank(redis.url, settings.pop("begin", begin), **settings) as bank,
    ):
        yield bank


async def retried(bank: Bank, key: str) -> list[httpx.Response]:
    """Send a request again: its response in a list, or nothing while another owner holds its key."""
    answer = await bank.pay(key, key)
    return [] if answer.status_code == 409 else [answer]


async def pay_until_done(bank: Bank, key: str, wait_until: Callable[..., Awaitable[Any]]) -> httpx.Response:
    """Send a request until the key is not held by another owner; give the response."""
    (answer,) = await wait_until(lambda: retried(bank, key), description="the lease ends")
    assert isinstance(answer, httpx.Response)
    return answer


class AnswersErrors:
    """Middleware within the exchange that makes a response, which would be kept, of each error of a type.

    Args:
        app: the application.
        kind: the type.
        errors: gets the name of each error that was answered.
    """

    def __init__(self, app: Any, kind: type[BaseException], errors: list[str]) -> None:
        self.app = app
        self.kind = kind
        self.errors = errors

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self.app(scope, receive, send)
        except self.kind as error:
            self.errors.append(type(error).__name__)
            await JSONResponse({"mild": 1}, 400)(scope, receive, send)


def answer_errors(bank: Bank, kind: type[BaseException]) -> list[str]:
    """Put `AnswersErrors` into a bank's application; return its list of errors."""
    errors: list[str] = []
    middleware: Any = AnswersErrors
    bank.app.user_middleware.append(Middleware(middleware, kind=kind, errors=errors))
    return errors
