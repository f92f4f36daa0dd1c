"""A request of a committing endpoint that is cancelled: its COMMIT goes on once it has begun, and nothing leaks."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from fastdedup.integrations.http.committing import CommittedWork
from fastdedup.sql.receipt import AnyReceipt
from fastdedup.web.response import Response

from ..waiting import cancel
from .bank import Bank, answer_errors
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

        async def hang(work: CommittedWork, response: Response) -> Response:
            scope.cancel()
            await anyio.sleep_forever()
            raise AssertionError

        monkeypatch.setattr(CommittedWork, "end", hang)
        await bank.pay("k")
    monkeypatch.undo()
    assert scope.cancelled_caught
    assert (await bank.pay("k")).json() == {"paid": 1, "run": 2}
    assert await bank.effects() == ["n"]
