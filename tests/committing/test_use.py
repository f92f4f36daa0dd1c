"""`Commits` used in a wrong way, or beside another dependency: an error, and never work that is lost in silence."""

# No `from __future__ import annotations` here: FastAPI reads the annotations of handlers made in a function.

import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI, HTTPException
from fastapi.exceptions import DependencyScopeError
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession
from starlette.requests import Request

from fastdedup import ConfigError, UsageError
from fastdedup.integrations.fastapi import Claimed, Commits, Committed, everyone
from fastdedup.integrations.starlette import by_header, commits
from fastdedup.sql import Inbox
from fastdedup.sql.open_transaction import CommitUnknown, OpenTransaction
from fastdedup.sync.sql import Inbox as BlockingInbox

from ..gated_inbox.times import WEEK
from ..integrations.desk import client, problem
from ..integrations.test_fastapi import Tenants
from .bank import PAID, Bank, answering
from .test_fastapi import is_undone

LOST = OperationalError("SELECT", {}, OSError("gone"), connection_invalidated=True)


async def send(app: FastAPI, path: str, key: str | None = "k", note: str = "n") -> httpx.Response:
    """Send a request; an error without a handler is raised."""
    async with client(app, raises=True, x_account="ann") as ann:
        headers = {} if key is None else {"idempotency-key": key}
        return await ann.post(path, headers=headers, json={"note": note})


@pytest.mark.parametrize("key", ["k", None])
@pytest.mark.parametrize("also", ["Commits", "Claimed"])
async def test_an_operation_has_one_transaction(bank: Bank, also: str, key: str | None) -> None:
    """Also without a key: one of the two would be left open, and its work lost."""
    another: Any = Claimed(principal=everyone)
    if also == "Commits":
        another = Commits(Inbox("other", keep=WEEK), begin=bank.sessions.begin, principal=everyone)

    @bank.app.post("/two")
    async def two(request: Annotated[Committed[Any], bank.depends], other: Annotated[Any, another]) -> None:
        await request.session.execute(PAID, {"note": "n"})

    with pytest.raises(ConfigError, match="only one Claimed"):
        await send(bank.app, "/two", key)
    assert (await bank.effects(), bank.sessions.kw["bind"].pool.checkedout()) == ([], 0)


async def test_a_plain_function_needs_the_synchronous_inbox(bank: Bank) -> None:
    """It cannot await an async session: its statement would never be sent, and the response would be a success."""

    @bank.app.post("/plain")
    def plain(request: Annotated[Committed[Any], bank.depends]) -> None: ...

    with pytest.raises(ConfigError, match=r"plain\(\) is a plain function, and its inbox is async"):
        await send(bank.app, "/plain")


async def test_each_method_of_a_path_is_checked(bank: Bank) -> None:
    """The methods of a path may share a dependency, such as a router's: one handler is async, the other is not."""

    @bank.app.post("/shared")
    async def first(request: Annotated[Committed[Any], bank.depends]) -> None: ...

    @bank.app.put("/shared")
    def second(request: Annotated[Committed[Any], bank.depends]) -> None:
        request.session.execute(PAID, {"note": "n"})

    await send(bank.app, "/shared")
    async with client(bank.app, raises=True, x_account="ann") as ann:
        with pytest.raises(ConfigError, match=r"second\(\) is a plain function, and its inbox is async"):
            await ann.put("/shared", headers={"idempotency-key": "k"})


async def test_gates_that_are_chosen_for_one_request_are_not_all_kept(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the memory of a program with tenants grows with each request."""
    monkeypatch.setattr("fastdedup.integrations.fastapi.MOST_ROUTES", 1)
    tenants = Tenants(bank.gate)
    depends = Commits(bank.inbox, begin=bank.sessions.begin, principal=everyone, dedup=tenants)

    @bank.app.post("/tenant")
    async def handler(request: Annotated[Committed[Any], depends]) -> None:
        await request.session.execute(PAID, {"note": "n"})

    async with client(bank.app, raises=True, x_tenant="a") as http:
        for number in range(4):
            answer = await http.post("/tenant", headers={"idempotency-key": f"k{number // 2}"})
            assert ("idempotency-replayed" in answer.headers) is (number % 2 == 1)
    gc.collect()
    assert (await bank.effects(), len(tenants.living)) == (["n", "n"], 1)


async def test_an_async_handler_needs_the_async_inbox(bank: Bank) -> None:
    blocking = Commits(BlockingInbox("bank", keep=WEEK), begin=bank.sessions.begin, principal=everyone)

    @bank.app.post("/async")
    async def handler(request: Annotated[Committed[Any], blocking]) -> None: ...

    with pytest.raises(ConfigError, match=r"handler\(\) is async, and its inbox is of fastdedup\.sync"):
        await send(bank.app, "/async")


async def test_starlette_checks_the_kind_of_an_endpoint_at_once(bank: Bank) -> None:
    def plain(request: Request, committed: Committed[Any]) -> None: ...

    decorate = commits(bank.gate, bank.inbox, begin=bank.sessions.begin, principal=by_header("x"))
    with pytest.raises(ConfigError, match=r"plain\(\) is a plain function"):
        decorate(plain)


def no_context_manager(bank: Bank) -> Callable[[], Any]:
    """Give a `begin` that is not a context manager."""
    return lambda: bank.sessions


def synchronous(bank: Bank) -> Callable[[], Any]:
    """Give a synchronous `begin`."""

    @contextmanager
    def begin() -> Any:
        yield bank.sessions

    return begin


@pytest.mark.parametrize("make", [no_context_manager, synchronous])
async def test_a_begin_of_another_kind_is_named(bank: Bank, make: Callable[[Bank], Any]) -> None:
    bank.use(make(bank))
    with pytest.raises(ConfigError, match="must return an async context manager, such as"):
        await send(bank.app, "/other")


@pytest.mark.parametrize("how", ["complete", "fail"])
async def test_a_handler_cannot_settle_its_claim(bank: Bank, how: str) -> None:
    """The gate would know of work that is rolled back, and answer the retry without doing it."""

    async def settle(request: Committed[Any]) -> None:
        await getattr(request.claim, how)()

    bank.act = settle
    assert (await bank.pay("k")).status_code == 500
    assert await is_undone(bank, "k")
    bank.act = answering(None)
    assert (await bank.pay("k")).json() == {"paid": 1, "run": 2}


async def test_an_error_in_the_exit_of_another_dependency_rolls_back(bank: Bank) -> None:
    """It comes after the handler, and an exception handler makes a response of it that would be kept."""

    async def late() -> AsyncIterator[None]:
        yield
        raise HTTPException(400, "late")

    @bank.app.post("/late")
    async def handler(
        first: Annotated[None, Depends(late, scope="function")],
        request: Annotated[Committed[Any], bank.depends],
    ) -> None:
        await request.session.execute(PAID, {"note": "n"})

    for key in ("k", None):
        assert (await send(bank.app, "/late", key)).status_code == 400
        assert (await bank.effects(), await bank.rows()) == ([], 0)


async def test_a_dependency_that_ends_after_the_response_cannot_have_the_transaction(bank: Bank) -> None:
    """Its exit would find a session whose transaction has ended."""

    async def late(request: Annotated[Committed[Any], bank.depends]) -> AsyncIterator[None]:
        yield

    with pytest.raises(DependencyScopeError):
        bank.app.post("/late", dependencies=[Depends(late)])(everyone)


@pytest.mark.parametrize("key", ["k", None])
async def test_a_savepoint_that_is_left_open_rolls_back(bank: Bank, key: str | None) -> None:
    """Without a key SQLite had committed all of the work before the session's error came."""

    async def act(request: Committed[Any]) -> None:
        await request.session.begin_nested()
        await request.session.execute(PAID, {"note": "nested"})

    bank.act = act
    with pytest.raises(UsageError, match="has left a savepoint open, so nothing was committed"):
        await send(bank.app, "/payments", key)
    assert (await bank.effects(), await bank.rows()) == ([], 0)


async def test_a_begin_within_another_transaction_serves_only_requests_without_a_key(bank: Bank) -> None:
    """A row could be rolled back by the outer one after the response; such work alone is committed with it."""

    @asynccontextmanager
    async def begin() -> AsyncIterator[AsyncSession]:
        async with bank.sessions.begin() as session, session.begin_nested():
            yield session

    bank.use(begin)
    assert (await send(bank.app, "/other", None)).status_code == 200
    assert await bank.effects() == ["n"]
    with pytest.raises(UsageError, match="within another transaction"):
        await send(bank.app, "/other", "k", "m")
    assert (await bank.effects(), await bank.rows()) == (["n"], 0)


async def test_an_exception_that_the_handler_chose_is_answered_as_it_says(bank: Bank) -> None:
    """Its cause is an error of a database, perhaps of another one."""
    declined = HTTPException(400, "no")
    declined.__cause__ = LOST
    bank.act = answering(declined)
    assert (await bank.pay("k")).status_code == 400
    assert await is_undone(bank, "k")
    bank.act = answering(LOST)
    problem(await bank.pay("k"), "database-unavailable", 503)


async def test_without_a_key_an_unknown_commit_invites_no_repetition(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(transaction: OpenTransaction, result: Any) -> None:
        await transaction.roll_back()
        raise CommitUnknown(LOST)

    monkeypatch.setattr(OpenTransaction, "commit", fail)
    answer = await bank.pay(None)
    assert "may take effect twice" in problem(answer, "commit-unknown", 503)["detail"]
    assert "retry-after" not in answer.headers
