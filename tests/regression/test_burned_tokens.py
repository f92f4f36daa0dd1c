"""A token was used up by a call whose reply came too late: nobody was ever told that it had acquired it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fastdedup import Dedup, Outcome, State, UnavailableError
from fastdedup import sync as synchronous

from ..servers import RedisServer

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
        self.undo = dedup._namespace.connection.undo
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
        await self._wait_until(lambda: not len(self.undo), description="nothing is left to be undone")


@asynccontextmanager
async def desk(server: RedisServer, wait_until: WaitUntil) -> AsyncIterator[Desk]:
    async with (
        Dedup(server.url, namespace="t", timeout=TIMEOUT) as dedup,
        Dedup(server.url, namespace="t", timeout=1.0) as other,
    ):
        await dedup.get("warm")
        yield Desk(dedup, other, await other.tokens.issue(SUBJECT), wait_until)


async def test_it_is_still_bound_to_its_subject(
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
    """Told of it in time, the undo list leaves it alone."""
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
