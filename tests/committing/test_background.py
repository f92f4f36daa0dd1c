"""Background tasks of a committing endpoint run after its COMMIT, and only then."""

# No `from __future__ import annotations` here: FastAPI reads the annotations of handlers made in a function.

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi.responses import JSONResponse, StreamingResponse
from sqlalchemy.exc import OperationalError
from starlette.background import BackgroundTask

from fastdedup.integrations.fastapi import Commits, Committed
from fastdedup.sql.open_transaction import CommitUnknown, OpenTransaction

from ..gated_inbox.shop import broken
from ..integrations.desk import problem
from ..servers import RedisServer
from .bank import PAID, Bank, answer_errors, answering, open_sqlite

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


class Leaving:
    """A client of an application.

    Attributes:
        left: set it, and the client leaves.
        sent: the statuses that the application has sent.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self.left = asyncio.Event()
        self.sent: list[int] = []

    async def post(self, path: str, key: str | None) -> None:
        """Send a request; return once the application has ended."""
        headers = [] if key is None else [(b"idempotency-key", key.encode())]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},  # as uvicorn says: then Starlette listens
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": headers,
        }
        body = iter([{"type": "http.request", "body": b""}])

        async def receive() -> Any:
            for message in body:
                return message
            await self.left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.sent.append(message["status"])

        await self._app(scope, receive, send)


Parts = Callable[[Leaving, Committed[Any]], AsyncIterator[bytes]]


def in_parts(bank: Bank, parts: Parts, **settings: Any) -> Leaving:
    """Declare an endpoint that answers in parts; return a client that leaves when the parts say so."""

    async def caller() -> str:  # not in a thread, so the handler can be cancelled
        return "ann"

    depends = Commits(bank.inbox, begin=bank.sessions.begin, principal=caller, **settings)

    @bank.app.post("/parts")
    async def handler(request: Annotated[Committed[Any], depends]) -> StreamingResponse:
        await request.session.execute(PAID, {"note": "n"})
        task = BackgroundTask(bank.after)
        return StreamingResponse(parts(client, request), 201, media_type="text/csv", background=task)

    client = Leaving(bank.app)
    return client


@pytest.mark.parametrize(
    ("on_disconnect", "expected"),
    [("finish", (["n"], 1, [201])), ("cancel", ([], 0, [499]))],
    ids=["finish", "cancel"],
)
@pytest.mark.parametrize(
    ("is_away", "key"), [(False, "k"), (True, "k"), (False, None)], ids=["claimed", "away", "without a key"]
)
async def test_a_client_that_leaves_a_response_in_parts_leaves_no_half(
    own_redis: RedisServer, tmp_path: Path, is_away: bool, key: str | None, on_disconnect: str, expected: Any
) -> None:
    """The parts are collected to their end, and commit; only then the task runs. If it is cancelled, neither."""

    async def parts(client: Leaving, request: Committed[Any]) -> AsyncIterator[bytes]:
        yield b"a,"
        client.left.set()
        if on_disconnect == "cancel":
            await asyncio.Event().wait()
        for _ in range(10):  # the turns in which a listener would end the response
            await asyncio.sleep(0)
        yield b"b"

    async with open_sqlite(own_redis.url, tmp_path, gate={"timeout": 5.0}) as bank:
        client = in_parts(bank, parts, on_disconnect=on_disconnect)
        with broken(own_redis, "killed") if is_away else nullcontext():
            await client.post("/parts", key)
        assert (await bank.effects(), bank.background, client.sent) == expected


async def test_a_claim_lost_under_a_response_in_parts_runs_no_background_task(bank: Bank) -> None:
    """Or the response hears of the end of its connection, and ends as if its client had left."""

    async def parts(client: Leaving, request: Committed[Any]) -> AsyncIterator[bytes]:
        yield b"a,"
        asyncio.get_running_loop().call_soon(lambda: request.claim.settlement.lose(outage=False))
        await asyncio.Event().wait()

    client = in_parts(bank, parts)
    await client.post("/parts", "k")
    assert (await bank.effects(), bank.background, client.sent) == ([], 0, [409])
