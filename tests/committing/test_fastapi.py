"""What is particular to `Commits`, a FastAPI handler whose work, row and response commit together, on SQLite."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import HTTPException, Request
from fastapi.responses import JSONResponse, Response
from sqlalchemy import event, text
from sqlalchemy.exc import IntegrityError
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware

from fastdedup import ConfigError
from fastdedup.integrations.fastapi import Commits, Committed, everyone
from fastdedup.model import State
from fastdedup.sql import Inbox, RetryTransaction
from fastdedup.web.inspection import forget_request, get_request

from ..gated_inbox.times import WEEK
from ..integrations.desk import client, enveloping, problem
from .bank import PAID, Bank, answer_errors, answering
from .conftest import Open
from .test_starlette import starlette_of


async def forget(bank: Bank, key: str) -> None:
    """Let the gate forget a request, like a failover."""
    assert await forget_request(bank.gate, "POST", "/payments", key=key, principal="ann")


async def is_undone(bank: Bank, key: str | None) -> bool:
    """Return whether a request has left nothing behind, so that a retry is a first run."""
    is_free = key is None or await bank.state(key) is State.RELEASED
    return is_free and (await bank.effects(), await bank.rows()) == ([], 0)


# Once


async def test_the_response_is_sent_after_the_commit(bank: Bank) -> None:
    """Another connection finds the work as soon as the response begins."""
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def watched(message: Any) -> None:
            seen.append((message["type"], await bank.effects()))
            await send(message)

        await bank.app(scope, receive, watched)

    async with client(app, raises=True) as visitor:
        headers = {"x-account": "ann", "idempotency-key": "k"}
        await visitor.post("/payments", json={"note": "n"}, headers=headers)
    assert seen == [("http.response.start", ["n"]), ("http.response.body", ["n"])]


async def test_a_background_task_runs_after_the_commit(bank: Bank) -> None:
    seen: list[Any] = []
    bank.after = lambda: seen.append(bank.committed())  # type: ignore[method-assign]
    for _ in range(2):
        await bank.pay("k")
    assert seen == [["n"]]


async def test_duplicates_that_come_together_are_done_once(open_here: Open) -> None:
    async with open_here(wait=10.0) as bank:
        answers = await asyncio.gather(*(bank.pay("k") for _ in range(5)))
        assert {(one.status_code, one.content) for one in answers} == {(201, answers[0].content)}
        assert await bank.effects() == ["n"]


async def test_callers_have_keys_of_their_own(bank: Bank) -> None:
    await bank.pay("k", "anns")
    await bank.pay("k", "bobs", who="bob")
    assert sorted(await bank.effects()) == ["anns", "bobs"]


async def test_a_required_key_is_asked_for(open_here: Open) -> None:
    async with open_here(required=True) as bank:
        problem(await bank.pay(None), "key-missing", 400)
        assert bank.runs == 0


async def test_a_caller_without_a_name_is_refused(bank: Bank) -> None:
    problem(await bank.pay("k", who=""), "principal-required", 400)
    assert bank.runs == 0


async def test_the_handler_gets_session_key_and_claim(bank: Bank) -> None:
    got: list[Committed[Any]] = []

    async def act(request: Committed[Any]) -> None:
        got.append(request)

    bank.act = act
    await bank.pay("k")
    await bank.pay(None)
    assert (got[0].key, got[1].key, got[1].claim) == ("k", None, None)
    assert got[0].claim is not None
    assert got[0].claim.attempt == 1


# The gate forgets: the row decides


async def test_a_response_may_begin_without_headers(bank: Bank) -> None:
    """In ASGI a message may leave out `headers`."""

    class Bare(Response):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 202})
            await send({"type": "http.response.body", "body": b"bare"})

    bank.act = answering(Bare())
    first = await bank.pay("k")
    await forget(bank, "k")
    again = await bank.pay("k")
    assert (first.status_code, first.content) == (again.status_code, again.content) == (202, b"bare")
    assert (bank.runs, await bank.effects()) == (1, ["n"])


async def test_middleware_inside_changes_a_response_once(bank: Bank) -> None:
    """Neither the row's response is changed again, nor the one that the gate is mended with."""
    bank.app.user_middleware.append(Middleware(BaseHTTPMiddleware, dispatch=enveloping))
    first = await bank.pay("k")
    await forget(bank, "k")
    for _ in range(2):
        again = await bank.pay("k")
        assert again.headers.pop("idempotency-replayed") == "true"
        assert (again.status_code, again.content) == (201, first.content)
        assert sorted(again.headers.multi_items()) == sorted(first.headers.multi_items())
    assert await bank.state("k") is State.SUCCEEDED


async def test_what_the_row_keeps_of_a_response(bank: Bank) -> None:
    """Its headers as the gate's rule says, and nothing that this package says of it."""
    bank.act = answering(Response(b"<ok/>", 202, {"location": "/p/1", "set-cookie": "a=1"}, "text/xml"))
    await bank.pay("k")
    await forget(bank, "k")
    again = await bank.pay("k")
    assert "set-cookie" not in again.headers
    record = await get_request(bank.gate, "POST", "/payments", key="k", principal="ann")
    assert record is not None
    assert not [pair for pair in record.result["headers"] if "idempotency" in str(pair)]


# Rolled back


async def test_keep_decides_what_is_committed(open_here: Open) -> None:
    async with open_here(keep=[200]) as bank:
        assert (await bank.pay("k")).status_code == 201
        assert await is_undone(bank, "k")


@pytest.mark.parametrize("mild", [False, True])
async def test_a_keep_that_raises_rolls_back(open_here: Open, mild: bool) -> None:
    """Elsewhere such a response is kept, because its work is done; here it is undone, also if middleware answers."""
    paid: list[int] = []

    def keep(status: int) -> bool:
        if paid and status != 400:
            raise LookupError
        return True

    async with open_here(keep=keep) as bank:
        if mild:
            answer_errors(bank, LookupError)
        bank.act = answering(JSONResponse({}, 500))
        paid.append(1)
        if mild:
            assert (await bank.pay("k")).json() == {"mild": 1}
        else:
            assert (await bank.pay("k")).status_code == 500
        assert await is_undone(bank, "k")


async def test_an_error_that_middleware_answers_rolls_back(bank: Bank) -> None:
    """Middleware within makes a response of the error, whose status would be kept."""
    answer_errors(bank, RuntimeError)
    bank.act = answering(RuntimeError("boom"))
    assert (await bank.pay("k")).json() == {"mild": 1}
    assert await is_undone(bank, "k")


async def test_middleware_within_runs_the_handler_in_another_task(bank: Bank) -> None:
    """Starlette's BaseHTTPMiddleware passes a response on in pieces, from a task of its own."""

    async def sign(request: Request, call_next: Any) -> Response:
        response: Response = await call_next(request)
        response.headers["x-signed"] = "yes"
        return response

    bank.app.user_middleware.append(Middleware(BaseHTTPMiddleware, dispatch=sign))
    first = await bank.pay("k")
    await forget(bank, "k")
    again = await bank.pay("k")
    assert (again.status_code, again.content, again.headers["x-signed"]) == (201, first.content, "yes")
    assert (bank.runs, await bank.effects()) == (1, ["n"])
    bank.act = answering(RuntimeError("boom"))
    assert (await bank.pay("other")).status_code == 500
    assert (await bank.effects(), await bank.rows()) == (["n"], 1)


async def test_an_invalid_body_rolls_back(bank: Bank) -> None:
    headers = {"idempotency-key": "k"}
    assert (await bank.ann.post("/payments", json={}, headers=headers)).status_code == 422
    assert await is_undone(bank, "k")
    assert (await bank.pay("k")).status_code == 201


async def test_an_error_of_the_last_statements_is_the_handlers(bank: Bank) -> None:
    """What a session has not sent yet is sent before the response, so that the application can answer its errors."""

    async def conflict(request: Request, error: Exception) -> Response:
        return JSONResponse({"conflict": 1}, 409)

    async def act(request: Committed[Any]) -> None:
        request.session.add(bank.Work(note="refused"))

    bank.app.add_exception_handler(IntegrityError, conflict)
    bank.act = act
    answer = await bank.pay("k")
    assert (answer.status_code, answer.json()) == (409, {"conflict": 1})
    assert await is_undone(bank, "k")


@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize("key", ["k", None])
async def test_a_handler_that_rolls_back_by_itself_is_refused(
    bank: Bank, key: str | None, goes_on: bool
) -> None:
    """Its row is gone from the transaction, so the response would not commit with the work."""

    async def act(request: Committed[Any]) -> None:
        await request.session.rollback()
        if goes_on:
            await request.session.execute(PAID, {"note": "second"})

    bank.act = act
    assert (await bank.pay(key)).status_code == 500
    assert await is_undone(bank, key)


@pytest.mark.parametrize(("on_disconnect", "early"), [("finish", False), ("cancel", False), ("cancel", True)])
async def test_a_client_that_leaves_commits_all_or_nothing(
    open_here: Open, on_disconnect: str, early: bool
) -> None:
    """The handler finishes and commits, or is cancelled and rolled back: the rule decides.

    `early`: the client leaves before the handler starts. The sync dependency `account` runs in a thread, so it is not
    known yet that the handler can be cancelled.
    """
    async with open_here(on_disconnect=on_disconnect) as bank:
        is_there, has_left, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def act(request: Committed[Any]) -> None:
            is_there.set()
            await go_on.wait()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            async def leaving() -> Any:
                if has_left.is_set():
                    if not early:
                        await is_there.wait()
                    return {"type": "http.disconnect"}
                message = await receive()
                if not message.get("more_body", False):
                    has_left.set()
                return message

            await bank.app(scope, leaving, send)

        bank.act = act
        async with client(app, raises=True) as visitor:
            headers = {"x-account": "ann", "idempotency-key": "k"}
            asked = visitor.post("/payments", json={"note": "n", "amount": 1}, headers=headers)
            task = asyncio.create_task(asked)
            if on_disconnect == "finish":
                await is_there.wait()
                go_on.set()
            assert (await task).status_code == (201 if on_disconnect == "finish" else 499)
        if on_disconnect == "finish":
            assert (await bank.effects(), await bank.state("k")) == (["n"], State.SUCCEEDED)
        else:
            assert await is_undone(bank, "k")


@pytest.mark.parametrize(
    ("size", "headers", "reason"),
    [
        (1001, {}, "more than the 1000 bytes"),
        (0, {"x-large": "x" * 70_000}, "its headers have more than 65536"),
    ],
)
async def test_a_response_that_cannot_be_stored_is_named_in_the_log(
    open_here: Open, size: int, headers: dict[str, str], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The line names the endpoint and the limit. The background task does not run."""
    async with open_here(max_response=1000) as bank:
        bank.act = answering(Response(b"x" * size, 200, headers, background=BackgroundTask(bank.after)))
        with caplog.at_level(logging.ERROR, "fastdedup.web"):
            assert (await bank.pay("k")).status_code == 500
        (line,) = [record.getMessage() for record in caplog.records if record.name == "fastdedup.web"]
        assert line.startswith("/payments: ")
        assert reason in line
        assert await is_undone(bank, "k")
        assert bank.background == 0


# Use


async def test_begin_that_does_not_commit_is_told_at_its_first_use(bank: Bank) -> None:
    bank.use(bank.sessions)
    assert (await bank.pay("k", path="/other")).status_code == 500
    assert await bank.effects() == []


async def test_a_begin_that_only_logs_errors_rolls_back(bank: Bank) -> None:
    @asynccontextmanager
    async def quiet() -> AsyncIterator[Any]:
        try:
            async with bank.sessions.begin() as session:
                yield session
        except Exception:  # noqa: BLE001
            logging.getLogger("test").info("an error")

    bank.use(quiet)
    bank.act = answering(JSONResponse({}, 500))
    assert (await bank.pay("k", path="/other")).status_code == 500
    assert await bank.effects() == []
    bank.act = answering(RuntimeError("boom"))
    assert (await bank.pay("k", path="/other")).status_code == 500
    assert await bank.effects() == []


@pytest.mark.parametrize("framework", ["fastapi", "starlette"])
async def test_begin_may_tell_the_works_error_in_its_words(bank: Bank, framework: str) -> None:
    """The error that `begin` raises from the work's is the answer, like that of any other context manager."""
    sessions = bank.sessions

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        try:
            async with sessions.begin() as session:
                yield session
        except Exception as error:
            raise HTTPException(418, "in other words") from error

    bank.use(begin)
    bank.sessions = SimpleNamespace(begin=begin)
    app, path = (bank.app, "/other") if framework == "fastapi" else (starlette_of(bank), "/payments/1")
    async with client(app, x_account="ann") as http:
        answer = await http.post(path, json={"note": "refused"}, headers={"idempotency-key": "k"})
        assert (answer.status_code, "in other words" in answer.text) == (418, True)
        bank.act = answering(JSONResponse({}, 503))
        assert (
            await http.post(path, json={"note": "n"}, headers={"idempotency-key": "k"})
        ).status_code == 503


async def test_a_transaction_that_was_not_rolled_back_is_the_last(bank: Bank) -> None:
    """One around it may have ended with it, so another run could commit half of the work."""
    begun = []

    def deadlock(*_: Any) -> None:
        raise RetryTransaction("a deadlock")

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        begun.append(1)
        async with bank.sessions.begin() as session:
            event.listen(session.bind.sync_engine, "before_cursor_execute", deadlock)
            try:
                yield session
            except RetryTransaction:
                raise RuntimeError("the rollback has failed") from None

    bank.use(begin)
    problem(await bank.pay("k", path="/other"), "database-unavailable", 503)
    assert begun == [1]


def test_begin_is_asked_for() -> None:
    inbox = Inbox("bank", keep=WEEK)
    with pytest.raises(ConfigError, match="begin="):
        Commits(inbox, principal=everyone)


async def test_a_missing_table_is_an_error(bank: Bank) -> None:
    async with bank.sessions.begin() as session:
        await session.execute(text("DROP TABLE fastdedup_inbox"))
    assert (await bank.pay("k")).status_code == 500
    assert (bank.runs, await bank.state("k")) == (0, State.RELEASED)


async def test_the_openapi_document_has_the_header(bank: Bank) -> None:
    (header,) = bank.app.openapi()["paths"]["/payments"]["post"]["parameters"]
    assert header["name"] == "Idempotency-Key"


async def test_its_own_exit_is_no_late_one(bank: Bank, caplog: pytest.LogCaptureFixture) -> None:
    """Claimed() warns of sessions that commit after the response: this one does not."""
    sent = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive() -> Any:
        return next(sent)

    async def send(message: Any) -> None:
        return None

    with caplog.at_level(logging.WARNING):
        await bank.app({"type": "lifespan", "app": bank.app, "state": {}}, receive, send)
    assert not caplog.records
