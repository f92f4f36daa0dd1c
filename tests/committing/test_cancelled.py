"""A request of a committing endpoint that is cancelled: its COMMIT goes on once it has begun, and nothing leaks."""

# No `from __future__ import annotations` here: FastAPI reads the annotations of handlers made in a function.

import asyncio
import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any
from unittest.mock import AsyncMock

import anyio
import pytest
from fastapi import Depends, FastAPI, HTTPException, Response
from fastapi.dependencies.utils import get_dependant
from sqlalchemy import Engine, create_engine, text
from starlette.applications import Starlette
from starlette.routing import Route

from fastdedup import Dedup
from fastdedup.integrations import asgi, starlette
from fastdedup.integrations.fastapi import Commits, Committed, Idempotency, everyone
from fastdedup.integrations.http import response_stage
from fastdedup.integrations.http.committing import CommittedWork
from fastdedup.integrations.http.threads import IN_THREADS, calls_of
from fastdedup.sql.receipt import AnyReceipt
from fastdedup.sync.sql import Inbox
from fastdedup.tasks import until_done
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


@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancellation_does_not_disturb_the_commit(
    fails: bool, bank: Bank, monkeypatch: pytest.MonkeyPatch, wait_until: Waiter
) -> None:
    """The request is cancelled while its response is written into the row: it commits, and its connection returns.

    If that fails, asyncio logged the error as never retrieved.
    """
    pool, logged = bank.sessions.kw["bind"].pool, list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    if fails:
        monkeypatch.setattr(AnyReceipt, "finish", AsyncMock(side_effect=OSError))
    at_row, go_on = hold_at_row(monkeypatch)
    task = asyncio.create_task(bank.pay("k"))
    await at_row.wait()
    await cancel(task)
    assert pool.checkedout() == 1
    go_on.set()
    await wait_until(lambda: not pool.checkedout(), description="the transaction has ended")
    assert await bank.effects() == ([] if fails else ["n"])
    monkeypatch.undo()
    again = await bank.pay("k")
    replayed = again.headers.get("idempotency-replayed", "")
    assert (again.status_code, replayed, bank.runs) == (201, *(("", 2) if fails else ("true", 1)))
    gc.collect()
    assert not logged


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


class Till:
    """Begins transactions, and has a handler for a thread that goes on when it may."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.begun, self.may_end, self.exited = threading.Event(), threading.Event(), threading.Event()
        self.held: list[bool] = []

    @contextmanager
    def begin(self) -> Iterator[Any]:
        with self._engine.begin() as connection:
            try:
                yield connection
            finally:
                self.exited.set()

    def work(self, committed: Committed[Any]) -> Response:
        committed.session.execute(PAID, {"note": "n"})
        self.begun.set()
        self.may_end.wait(20)
        self.held.append(not self.exited.is_set())
        return Response("done")


@pytest.fixture
def till(tmp_path: Path) -> Iterator[Till]:
    engine = create_engine(f"sqlite:///{tmp_path}/bank.db")
    with engine.begin() as connection:
        for statement in tables("sqlite"):
            connection.execute(text(statement))
    yield Till(engine)
    engine.dispose()


each_framework = pytest.mark.parametrize(
    "framework", ["fastapi", "dependency", "generator", "exit", "object", "starlette"]
)


@each_framework
@pytest.mark.parametrize("how", ["", "scoped", "late"])
async def test_a_transaction_ends_after_its_handler_in_a_thread(
    framework: str, how: str, till: Till, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that stops cancels the request, and the thread goes on: its connection was another request's then.

    If a scope of anyio around it is cancelled too, the request waits all the same, and its loop has rest meanwhile.
    So it does if its route was added after another request.
    """
    waits = asyncio.Event()

    async def waiting(future: asyncio.Future[Any]) -> None:
        if not isinstance(future, asyncio.Task):  # which would be a step of the transaction
            waits.set()
        await until_done(future)

    scope = anyio.CancelScope()

    async def visit() -> None:
        with scope:
            await visitor.post("/pay", headers={"idempotency-key": "k"})

    async with Dedup("memory://", namespace="t") as dedup:
        app = made(framework, dedup, till.begin, till.work)
        visitor = client(app, raises=True)
        if how == "late":
            route = app.router.routes.pop()
            await visitor.post("/pay")
            app.router.routes.append(route)
        request = asyncio.create_task(visit())
        await wait_until(till.begun.is_set, description="the handler is at work")
        monkeypatch.setattr(response_stage, "until_done", waiting)
        if how == "scoped":
            scope.cancel()
        request.cancel()
        try:
            await wait_until(waits.is_set, description="the request waits for its handler")
            before = request.cancelling()
            for _ in range(20):
                await asyncio.sleep(0)
            assert (request.cancelling(), request.done()) == (before, False)
        finally:
            till.may_end.set()
            await asyncio.wait([request])
        till.exited.clear()
        again = await visitor.post("/pay", headers={"idempotency-key": "k"})
    assert (till.held, again.text) == ([True, True], "done")


@each_framework
async def test_a_handler_that_waits_for_a_thread_does_not_start_later(framework: str, till: Till) -> None:
    """Its request was cancelled: it waited for a thread, and ran the handler to undo its work."""
    threads = anyio.to_thread.current_default_thread_limiter()
    before, threads.total_tokens = threads.total_tokens, 1
    busy = asyncio.create_task(anyio.to_thread.run_sync(till.may_end.wait, 20))
    try:
        async with Dedup("memory://", namespace="t") as dedup:
            visitor = client(made(framework, dedup, till.begin, till.work), raises=True)
            request = asyncio.create_task(visitor.post("/pay", headers={"idempotency-key": "k"}))
            await wait_until(lambda: threads.statistics().tasks_waiting, description="the handler waits")
            request.cancel()
            try:
                await wait_until(request.done, description="the request has ended", deadline=5.0)
            finally:
                till.may_end.set()
                await asyncio.wait([request, busy])
    finally:
        threads.total_tokens = before
    assert (till.begun.is_set(), till.exited.is_set()) == (False, True)


@pytest.mark.parametrize("framework", ["dependency", "generator", "object"])
async def test_a_dependency_that_is_waited_for_can_be_overridden(framework: str, till: Till) -> None:
    till.may_end.set()
    async with Dedup("memory://", namespace="t") as dedup:
        app = made(framework, dedup, till.begin, till.work)
        visitor = client(app, raises=True)
        answers = [await visitor.post("/pay")]
        app.dependency_overrides[app.state.paid] = lambda: "other"
        answers.append(await visitor.post("/pay"))
    assert [answer.text for answer in answers] == ["done", '"other"']


async def test_a_failed_request_does_not_refuse_the_calls_of_the_next_one(till: Till) -> None:
    """Both are in one task. The caller's function does not use the transaction, and runs before that begins."""

    def fail(committed: Committed[Any]) -> Response:
        raise HTTPException(503)

    works = iter((fail, till.work))
    till.may_end.set()
    async with Dedup("memory://", namespace="t") as dedup:
        app = made("fastapi", dedup, till.begin, lambda one: next(works)(one), principal=lambda: "caller")
        visitor = client(app)
        answers = [await visitor.post("/pay", headers={"idempotency-key": "k"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [503, 200]


def made(framework: str, dedup: Dedup, begin: Any, work: Any, principal: Any = everyone) -> Any:
    """Return an application with one endpoint that commits and runs in a thread."""
    inbox = Inbox("bank", keep=WEEK)
    if framework == "starlette":
        decorate = starlette.commits(dedup, inbox, begin=begin, principal=asgi.everyone)
        endpoint = decorate(lambda request, committed: work(committed))
        return Starlette(routes=[Route("/pay", endpoint, methods=["POST"])])
    app = FastAPI()
    Idempotency(app, dedup)
    Work = Annotated[Committed[Any], Commits(inbox, begin=begin, principal=principal)]  # noqa: N806

    def pay(committed: Work) -> Any:
        return work(committed)

    def paying(committed: Work) -> Iterator[Any]:
        yield work(committed)

    def paid_at_exit(committed: Work) -> Iterator[Any]:
        yield Response("done")
        work(committed)

    class Paying:
        def __call__(self, committed: Work) -> Iterator[Any]:
            yield work(committed)

    app.state.paid = {"generator": paying, "exit": paid_at_exit, "object": Paying()}.get(framework, pay)

    def answer(paid: Annotated[Any, Depends(app.state.paid, scope="function")]) -> Any:
        return paid

    app.post("/pay")(pay if framework == "fastapi" else answer)
    return app


def test_a_dependency_that_fastapi_drops_ends_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python printed "Exception ignored in" with a CancelledError, once its request was cancelled."""
    ended: list[str] = []
    ignored: list[Any] = []

    def transaction() -> None: ...

    setattr(transaction, IN_THREADS, True)

    def session(_: Annotated[None, Depends(transaction)]) -> Iterator[str]:
        try:
            yield "session"
        finally:
            ended.append("session")

    def pay(session: Annotated[str, Depends(session)]) -> None: ...

    def drop() -> None:
        dependant = get_dependant(path="/pay", call=pay)
        calls = calls_of({"route": SimpleNamespace(dependant=dependant)})
        begun = dependant.dependencies[0].call(None)
        assert next(begun) == "session"
        calls.close()

    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    copy_context().run(drop)
    gc.collect()
    assert (ended, ignored) == (["session"], [])
