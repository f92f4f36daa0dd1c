"""Background tasks of a committing endpoint run after its COMMIT, and only then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fastapi.responses import JSONResponse
from sqlalchemy.exc import OperationalError
from starlette.background import BackgroundTask

from fastdedup.integrations.fastapi import Committed
from fastdedup.sql.once import CommitUnknown
from fastdedup.sql.open_transaction import OpenTransaction

from ..integrations.desk import problem
from .bank import Bank, answer_errors, answering

LOST = OperationalError("COMMIT", {}, OSError("gone"), connection_invalidated=True)
FAILURES = {"database-unavailable": LOST, "commit-unknown": CommitUnknown(LOST)}


def answering_with_task(bank: Bank) -> Callable[[Committed[Any]], Awaitable[Any]]:
    """Return what a handler does to answer by a response that has a task of its own."""
    return answering(JSONResponse({}, 201, background=BackgroundTask(bank.after)))


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("name", FAILURES)
async def test_a_failed_commit_runs_no_background_task(
    bank: Bank, name: str, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The response is replaced by a problem. `own`: the handler has returned a response with the task."""

    async def fail(transaction: OpenTransaction, result: Any) -> None:
        await transaction.roll_back()
        raise FAILURES[name]

    monkeypatch.setattr(OpenTransaction, "commit", fail)
    if own:
        bank.act = answering_with_task(bank)
    problem(await bank.pay("k"), name, 503)
    assert (bank.background, await bank.effects()) == (0, [])


async def test_a_lost_claim_runs_no_background_task(bank: Bank) -> None:
    """Its client gets 409, even if the gate does not repeat that the claim is lost: the work was rolled back."""

    async def lose(request: Committed[Any]) -> None:
        request.claim.settlement.lose(outage=False)

    bank.act = lose
    problem(await bank.pay("k"), "claim-lost", 409)
    assert (bank.background, await bank.effects()) == (0, [])


async def test_middleware_does_not_answer_twice(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """Middleware within that answers every error learns that the response was replaced, and its answer is dropped."""

    async def fail(transaction: OpenTransaction, result: Any) -> None:
        await transaction.roll_back()
        raise LOST

    monkeypatch.setattr(OpenTransaction, "commit", fail)
    errors = answer_errors(bank, Exception)
    problem(await bank.pay("k"), "database-unavailable", 503)
    assert errors == ["NotSent"]


async def test_a_task_of_a_returned_response_runs_after_the_commit(bank: Bank) -> None:
    seen: list[Any] = []
    bank.act = answering(JSONResponse({}, background=BackgroundTask(lambda: seen.append(bank.committed()))))
    for _ in range(2):
        await bank.pay("k")
    assert seen == [["n"]]
