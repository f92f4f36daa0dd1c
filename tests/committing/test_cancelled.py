"""A request of a committing endpoint that is cancelled: its COMMIT goes on once it has begun, and nothing leaks."""

# No `from __future__ import annotations` here: FastAPI reads the annotations of handlers made in a function.

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import anyio
import pytest
from fastapi import FastAPI, Response
from sqlalchemy import create_engine, text
from starlette.applications import Starlette
from starlette.routing import Route

from fastdedup import Dedup
from fastdedup.integrations import asgi, starlette
from fastdedup.integrations.fastapi import Commits, Committed, Idempotency, everyone
from fastdedup.integrations.http.committing import CommittedWork
from fastdedup.sql.receipt import AnyReceipt
from fastdedup.sync.sql import Inbox
from fastdedup.web.response import Response as Stored

from ..gated_inbox.times import WEEK
from ..integrations.desk import client
from ..waiting import cancel, wait_until
from .bank import PAID, Bank, answer_errors, tables
from .conftest import Waiter


def hold_at_row(monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Stop each request as its response is written into the row; give the events of that, and of going on."""
    finish = AnyReceipt.finish
    at_row, go_on = asyncio.Event(), asyncio.Event()

    async def held(receipt: AnyReceipt, result: Any, look: bool) -> None:
        at_row.set()
        await go_on.wait()
        await finish(receipt, result, look)

    monkeypatch.setattr(AnyReceipt, "finish", held)
    return at_row, go_on


async def test_a_cancellation_does_not_disturb_the_commit(
    bank: Bank, monkeypatch: pytest.MonkeyPatch, wait_until: Waiter
) -> None:
    """The request is cancelled while its response is written into the row: it commits, and its connection returns."""
    pool = bank.sessions.kw["bind"].pool
    at_row, go_on = hold_at_row(monkeypatch)
    task = asyncio.create_task(bank.pay("k"))
    await at_row.wait()
    await cancel(task)
    assert pool.checkedout() == 1
    go_on.set()
    await wait_until(lambda: not pool.checkedout(), description="the transaction has ended")
    assert await bank.effects() == ["n"]
    again = await bank.pay("k")
    assert (again.status_code, again.headers["idempotency-replayed"], bank.runs) == (201, "true", 1)


async def test_an_answer_to_a_cancellation_is_not_the_commits(
    bank: Bank, monkeypatch: pytest.MonkeyPatch, wait_until: Waiter
) -> None:
    """Middleware within answers the cancellation by a status that would be kept: the gate does not record it."""
    answer_errors(bank, asyncio.CancelledError)
    at_row, go_on = hold_at_row(monkeypatch)
    task = asyncio.create_task(bank.pay("k"))
    await at_row.wait()
    task.cancel()
    answer = await task
    assert (answer.status_code, answer.json()) == (400, {"mild": 1})
    go_on.set()
    await wait_until(lambda: not bank.sessions.kw["bind"].pool.checkedout(), description="it has committed")
    assert (await bank.pay("k")).json() == {"paid": 1, "run": 1}


async def test_a_cancelled_scope_frees_the_key(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scope of anyio, like that of Starlette's BaseHTTPMiddleware, cancels each wait in it: the rollback's, too."""
    with anyio.CancelScope() as scope:

        async def hang(work: CommittedWork, response: Stored) -> Stored:
            scope.cancel()
            await anyio.sleep_forever()
            raise AssertionError

        monkeypatch.setattr(CommittedWork, "end", hang)
        await bank.pay("k")
    monkeypatch.undo()
    assert scope.cancelled_caught
    assert (await bank.pay("k")).json() == {"paid": 1, "run": 2}
    assert await bank.effects() == ["n"]


@pytest.mark.parametrize("framework", ["fastapi", "starlette"])
async def test_a_transaction_ends_after_its_handler_in_a_thread(framework: str, tmp_path: Path) -> None:
    """A server that stops cancels the request, and the thread goes on: its connection was another request's then."""
    begun, exited, held = threading.Event(), threading.Event(), []
    engine = create_engine(f"sqlite:///{tmp_path}/bank.db")
    with engine.begin() as connection:
        for statement in tables("sqlite"):
            connection.execute(text(statement))

    @contextmanager
    def begin() -> Iterator[Any]:
        with engine.begin() as connection:
            try:
                yield connection
            finally:
                exited.set()

    def work(committed: Committed[Any]) -> Response:
        committed.session.execute(PAID, {"note": "n"})
        begun.set()
        held.append(not exited.wait(0.0 if held else 0.3))
        return Response("done")

    async with Dedup("memory://", namespace="t") as dedup:
        app = made(framework, dedup, begin, work)
        visitor = client(app, raises=True)
        request = asyncio.create_task(visitor.post("/pay", headers={"idempotency-key": "k"}))
        await wait_until(begun.is_set, description="the handler is at work")
        await cancel(request)
        exited.clear()
        again = await visitor.post("/pay", headers={"idempotency-key": "k"})
    engine.dispose()
    assert (held, again.text) == ([True, True], "done")


def made(framework: str, dedup: Dedup, begin: Any, work: Any) -> Any:
    """Return an application with one endpoint that commits and runs in a thread."""
    inbox = Inbox("bank", keep=WEEK)
    if framework == "starlette":
        decorate = starlette.commits(dedup, inbox, begin=begin, principal=asgi.everyone)
        endpoint = decorate(lambda request, committed: work(committed))
        return Starlette(routes=[Route("/pay", endpoint, methods=["POST"])])
    app = FastAPI()
    Idempotency(app, dedup)

    @app.post("/pay")
    def pay(committed: Annotated[Committed[Any], Commits(inbox, begin=begin, principal=everyone)]) -> Any:
        return work(committed)

    return app
