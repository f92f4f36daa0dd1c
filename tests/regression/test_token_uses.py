"""A token is used by the call that was told so, and by nobody whose subject is another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis

from fastdedup import Dedup, Outcome, State, UnavailableError
from fastdedup import sync as synchronous
from fastdedup.kernel.codes import Code
from fastdedup.kernel.granted import GRANTED
from fastdedup.kernel.operations import ClaimOp, ReleaseOp
from fastdedup.kernel.owners import draw_owner
from fastdedup.kernel.terms import Mode, terms
from fastdedup.kernel.verbs import Verb
from fastdedup.tokens import subject_mark

from ..servers import RedisServer
from ..sidecar.conftest import Serve, serve  # noqa: F401 -- a fixture
from ..stores import ALL_BUT_LOCAL, Backend, on_stores

# A token was used up by a call whose reply came too late: nobody was ever told that it had acquired it.


WaitUntil = Callable[..., Any]
TIMEOUT = 0.25
SOON = 1.0
SUBJECT = "user:7"


class Desk:
    """A token, a gate whose Redis hangs now and then, and a gate that nobody cuts off."""

    def __init__(self, dedup: Dedup, other: Dedup, token: str, wait_until: WaitUntil) -> None:
        self.tokens = dedup.tokens
        self.gate = other
        self.other = other.tokens
        self.token = token
        self.orphans = dedup.gate.connection.orphans
        self._wait_until = wait_until

    async def is_free_soon(self) -> None:
        async def acquired() -> bool:
            outcome = await self.other.consume(self.token, SUBJECT)
            assert outcome in (Outcome.ACQUIRED, Outcome.SUCCEEDED, Outcome.IN_PROGRESS)
            return outcome is Outcome.ACQUIRED

        await self._wait_until(acquired, description="the token is acquired", deadline=SOON)
        assert await self.other.consume(self.token, SUBJECT) is Outcome.SUCCEEDED

    async def is_used(self) -> None:
        async def used() -> bool:
            record = await self.gate.get(self.token, "token")
            return record is not None and record.state is not State.ISSUED

        await self._wait_until(used, description="Redis has used the token")

    async def settled_down(self) -> None:
        await self._wait_until(lambda: not len(self.orphans), description="nothing is left to be undone")


@asynccontextmanager
async def desk(server: RedisServer, wait_until: WaitUntil) -> AsyncIterator[Desk]:
    async with (
        Dedup(server.url, namespace="t", timeout=TIMEOUT) as dedup,
        Dedup(server.url, namespace="t", timeout=1.0) as other,
    ):
        await dedup.get("warm")
        yield Desk(dedup, other, await other.tokens.issue(SUBJECT), wait_until)


async def test_a_token_that_is_issued_again_is_bound_to_its_subject(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil
) -> None:
    async with desk(redis_server, wait_until) as at:
        with redis_server.frozen(), pytest.raises(UnavailableError):
            await at.tokens.consume(at.token, SUBJECT)
        await at.settled_down()
        for subject in (None, "user:8"):
            assert await at.other.consume(at.token, subject) is Outcome.MISMATCH
        await at.is_free_soon()


async def test_the_same_name_consumes_again(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil
) -> None:
    """And is not undone, before or afterwards."""
    async with desk(redis_server, wait_until) as at:
        with redis_server.frozen(), pytest.raises(UnavailableError) as info:
            await at.tokens.consume(at.token, SUBJECT, owner="request-1")
        assert info.value.owner == "request-1"
        await at.settled_down()
        await at.is_used()  # by what Redis had not read yet when it stopped
        assert await at.other.consume(at.token, SUBJECT) is Outcome.SUCCEEDED
        for _ in range(2):
            assert await at.tokens.consume(at.token, SUBJECT, owner="request-1") is Outcome.ACQUIRED
        assert await at.tokens.consume(at.token, SUBJECT, owner="request-2") is Outcome.SUCCEEDED


async def test_the_drawn_owner_of_the_error_consumes_again(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil
) -> None:
    """Told of it in time, the orphans leave it alone."""
    async with desk(redis_server, wait_until) as at:
        with redis_server.frozen(), pytest.raises(UnavailableError) as info:
            await at.tokens.consume(at.token, SUBJECT)
        assert await at.tokens.consume(at.token, SUBJECT, owner=info.value.owner) is Outcome.ACQUIRED
        await at.settled_down()
        assert await at.other.consume(at.token, SUBJECT) is Outcome.SUCCEEDED
        assert await at.tokens.consume(at.token, SUBJECT, owner=info.value.owner) is Outcome.ACQUIRED


def test_synchronous_code_names_its_use_as_well(redis_url: str, redis_server: RedisServer) -> None:
    with synchronous.Dedup(redis_url, namespace="t", timeout=TIMEOUT) as dedup:
        token = dedup.tokens.issue(SUBJECT)
        with redis_server.frozen(), pytest.raises(UnavailableError):
            dedup.tokens.consume(token, SUBJECT, owner="request-1")
        assert dedup.tokens.consume(token, SUBJECT, owner="request-1") is Outcome.ACQUIRED
        assert dedup.tokens.consume(token, SUBJECT) is Outcome.SUCCEEDED
        claim = dedup.tokens.redeem(dedup.tokens.issue(SUBJECT), SUBJECT, owner="request-2")
        assert claim.owner == "request-2"


# A token that was consumed, and nobody was told: a release of its consumer issues it again.


async def consumed(dedup: Dedup, token: str, owner: bytes) -> tuple[bytes, int]:
    """Consume a token as `owner`; return its store key and the fence."""
    wire = dedup.tokens.wire(token)
    mark = subject_mark("user:7")
    op = ClaimOp(wire, terms(Mode.CONSUME, 60_000, 60_000, False), owner, mark)
    [verdict] = await dedup.gate.connection.store.execute(Verb.CLAIM, [op])
    assert verdict.outcome is Outcome.ACQUIRED  # type: ignore[union-attr]
    GRANTED.add(wire)  # as a gate does that tells its caller
    return wire, verdict.fence  # type: ignore[union-attr]


async def released(dedup: Dedup, op: ReleaseOp) -> Code:
    [code] = await dedup.gate.connection.store.execute(Verb.RELEASE, [op])
    assert isinstance(code, Code)
    return code


@on_stores(*ALL_BUT_LOCAL)
async def test_a_release_by_its_consumer_issues_a_token_again(backend: Backend) -> None:
    """Once and once more, as its reply may be lost; still bound to its subject."""
    async with backend.make() as dedup:
        token = await dedup.tokens.issue(subject="user:7")
        owner = draw_owner()
        wire, fence = await consumed(dedup, token, owner)
        for _ in range(2):
            assert await released(dedup, ReleaseOp(wire, owner, fence, consumed=True)) is Code.OK
        assert await dedup.tokens.consume(token, subject="user:8") is Outcome.MISMATCH
        assert await dedup.tokens.consume(token, subject="user:7") is Outcome.ACQUIRED
        assert await dedup.tokens.consume(token, subject="user:7") is Outcome.SUCCEEDED


@on_stores(*ALL_BUT_LOCAL)
async def test_one_batch_holds_releases_of_both_kinds(backend: Backend) -> None:
    async with backend.make() as dedup:
        tokens = [await dedup.tokens.issue(subject="user:7") for _ in range(4)]
        owner = draw_owner()
        used = [await consumed(dedup, token, owner) for token in tokens]
        ops = [
            ReleaseOp(wire, owner, fence, consumed=place in (1, 2))
            for place, (wire, fence) in enumerate(used)
        ]
        codes = await dedup.gate.connection.store.execute(Verb.RELEASE, ops)
        assert codes == [Code.LOST, Code.OK, Code.OK, Code.LOST]


# A token that was issued for somebody was taken by a caller who named no subject.


@on_stores(*ALL_BUT_LOCAL)
async def test_a_caller_without_a_subject_gets_no_bound_token(backend: Backend) -> None:
    async with backend.make() as dedup:
        token = await dedup.tokens.issue(subject="user:7")
        assert await dedup.tokens.consume(token) is Outcome.MISMATCH
        assert (await dedup.tokens.redeem(token)).outcome is Outcome.MISMATCH
        assert (await dedup.tokens.redeem(token, wait=0.01)).outcome is Outcome.MISMATCH
        assert await dedup.tokens.consume(token, subject="user:7") is Outcome.ACQUIRED


async def test_a_token_without_a_subject_is_anybodys(redis_url: str) -> None:
    async with Dedup(redis_url, namespace="t") as dedup:
        for options in ({}, {"subject": "user:7"}):
            token = await dedup.tokens.issue()
            assert await dedup.tokens.consume(token, **options) is Outcome.ACQUIRED


def test_http_gives_no_bound_token_without_a_subject(serve: Serve, redis_url: str) -> None:  # noqa: F811
    with serve(redis_url).http() as http:
        token = http.post("/v1/tokens", json={"subject": "user:7"}).json()["token"]
        for ask in ({}, {"subject": "user:8"}, {"wait": 10}):
            answer = http.post("/v1/tokens/redeem", json={"token": token, **ask})
            assert (answer.status_code, answer.json()["outcome"]) == (422, "mismatch")
        batch = http.post("/v1/batch", json=[{"op": "consume", "token": token}]).json()
        assert "mismatch" in str(batch)
        assert http.post("/v1/tokens/consume", json={"token": token}).status_code == 422
        hers = {"token": token, "subject": "user:7"}
        assert http.post("/v1/tokens/consume", json=hers).json()["outcome"] == "acquired"


def test_resp_gives_no_bound_token_without_a_subject(serve: Serve, redis_url: str) -> None:  # noqa: F811
    with redis.Redis(unix_socket_path=serve(redis_url).path, decode_responses=True) as client:
        token = client.execute_command("FD.ISSUE", "SUBJECT", "user:7")
        assert client.execute_command("FD.CONSUME", token) == "mismatch"
        assert client.execute_command("FD.REDEEM", token)[0] == "mismatch"
        assert client.execute_command("FD.CONSUME", token, "SUBJECT", "user:7") == "acquired"
