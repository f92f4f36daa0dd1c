"""What is particular to a Starlette endpoint whose work, row and response commit together."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from fastdedup import ConfigError, Dedup
from fastdedup.integrations.asgi import IdempotencyMiddleware
from fastdedup.integrations.starlette import Committed, by_header, commits

from ..integrations.desk import client, problem
from .bank import PAID, Bank, open_sqlite

HEADERS = {"idempotency-key": "k"}
NOTE = {"note": "n"}


def starlette_of(bank: Bank, **settings: Any) -> Starlette:
    """Return an application of Starlette over the gate and the database of a bank."""
    decorate = commits(
        bank.gate, bank.inbox, begin=bank.sessions.begin, principal=by_header("x-account"), **settings
    )

    @decorate
    async def pay(request: Request, committed: Committed[Any]) -> Any:
        bank.runs += 1
        await committed.session.execute(PAID, {"note": (await request.json())["note"]})
        answer = await bank.act(committed)
        after = BackgroundTask(bank.after)
        return JSONResponse({"run": bank.runs}, 201, background=after) if answer is None else answer

    class Payments(HTTPEndpoint):
        @decorate
        async def put(self, request: Request, committed: Committed[Any]) -> JSONResponse:
            bank.runs += 1
            await committed.session.execute(PAID, {"note": "put"})
            return JSONResponse({"run": bank.runs})

    pays = Route("/payments/{number}", pay, methods=["POST", "PUT"])
    return Starlette(routes=[pays, Route("/class", Payments)])


async def test_another_method_and_a_background_task(tmp_path: Path) -> None:
    """The methods share a route, and have keys of their own; the task runs once for each."""
    async with open_sqlite("memory://", tmp_path) as bank, client(starlette_of(bank), x_account="ann") as ann:
        for method, run in (("POST", 1), ("PUT", 2)):
            sent = {"json": {"note": method}, "headers": HEADERS}
            answers = [await ann.request(method, "/payments/1", **sent) for _ in range(2)]  # type: ignore[arg-type]
            assert [one.json() for one in answers] == [{"run": run}] * 2
        assert (await bank.effects(), await bank.rows(), bank.background) == (["POST", "PUT"], 2, 2)


async def test_a_request_that_middleware_has_claimed_is_an_error(tmp_path: Path) -> None:
    async with open_sqlite("memory://", tmp_path) as bank:
        app = IdempotencyMiddleware(starlette_of(bank), bank.gate, principal=by_header("x-account"))
        async with client(app, x_account="ann") as ann:
            assert (await ann.post("/payments/1", json=NOTE, headers=HEADERS)).status_code == 500
        assert await bank.effects() == []


async def test_a_decorator_above_may_read_the_body(tmp_path: Path) -> None:
    """The request waited for ever."""
    async with open_sqlite("memory://", tmp_path) as bank:
        pays = starlette_of(bank).routes[0]
        assert isinstance(pays, Route)

        async def reading(request: Request) -> Any:
            await request.body()
            return await pays.endpoint(request)

        app = Starlette(routes=[Route("/payments/1", reading, methods=["POST"])])
        async with client(app, x_account="ann") as ann, asyncio.timeout(20):
            answers = [await ann.post("/payments/1", json=NOTE, headers=HEADERS) for _ in range(2)]
        assert [one.json() for one in answers] == [{"run": 1}] * 2


async def test_a_missing_key_is_refused(tmp_path: Path) -> None:
    async with open_sqlite("memory://", tmp_path) as bank:
        ann = client(starlette_of(bank, required=True), x_account="ann")
        problem(await ann.post("/payments/1", json=NOTE), "key-missing", 400)


def test_wrong_uses_are_told(tmp_path: Path) -> None:
    bank = Bank(Dedup("memory://", namespace="t"), lambda: None)
    decorate = commits(bank.gate, bank.inbox, begin=lambda: None, principal=by_header("x-account"))
    with pytest.raises(ConfigError, match="decorate the method"):
        decorate(HTTPEndpoint)
    with pytest.raises(ConfigError, match="begin="):
        commits(bank.gate, bank.inbox, principal=by_header("x-account"))
