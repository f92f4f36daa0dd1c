"""When Redis is gone: a visible answer within the deadline, and recovery without a restart."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fastdedup import Dedup, LocalLRU, Outcome, UnavailableError, UsageError
from fastdedup.events import Degraded, Event, Replayed

from ..idle import IdleTime
from ..servers import RedisServer

WaitUntil = Callable[..., Any]


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


async def test_a_killed_server_is_unavailable_and_comes_back(
    server: RedisServer, wait_until: WaitUntil
) -> None:
    async with Dedup(server.url, timeout=0.5) as dedup:
        held = await dedup.claim("held", lease=0.2)
        server.kill()
        with pytest.raises(UnavailableError) as caught:
            await dedup.claim("key")
        assert caught.value.retry_after > 0
        assert not caught.value.unrecorded
        with pytest.raises(UnavailableError) as caught:
            await held.complete("r")
        assert caught.value.unrecorded
        server.start()

        async def up() -> bool:
            try:
                return (await dedup.claim("key")).acquired
            except UnavailableError:
                return False

        await wait_until(up, description="the connection is made anew")


async def test_a_frozen_server_is_unavailable_at_the_deadline(
    server: RedisServer, wait_until: WaitUntil
) -> None:
    async with Dedup(server.url, timeout=0.4) as dedup:
        await dedup.claim("before")
        server.freeze()
        with IdleTime() as idle:
            answers = await asyncio.gather(
                *(dedup.claim(f"key-{n}") for n in range(5000)), return_exceptions=True
            )
        assert {type(answer) for answer in answers} == {UnavailableError}
        assert idle.seconds < 0.9, "the queue behind the frozen batches does not wait in turn"
        # Nothing is left, but for a look at what was given up.
        await wait_until(lambda: dedup.pending == 0, description="all is answered")
        server.thaw()

        async def up() -> bool:
            try:
                return (await dedup.claim("after")).acquired
            except UnavailableError:
                return False

        await wait_until(up, description="claims are answered again")


async def test_local_lru_answers_degraded_and_keeps_its_word(
    server: RedisServer, wait_until: WaitUntil
) -> None:
    async with Dedup(server.url, timeout=0.5, on_unavailable=LocalLRU(maxsize=3)) as dedup:
        acquired = await dedup.claim("in redis")
        server.kill()
        with pytest.raises(UnavailableError):
            await acquired.renew()
        first = await dedup.claim("key")
        assert first.acquired
        assert first.degraded
        second = await dedup.claim("key")
        assert second.outcome is Outcome.IN_PROGRESS
        await first.complete("local")
        server.start()

        async def replayed() -> bool:
            again = await dedup.claim("key")
            assert (again.outcome, again.result) == (Outcome.SUCCEEDED, "local")
            return not again.degraded

        await wait_until(replayed, description="Redis answers for the key")
        assert not (await dedup.claim("other")).degraded


async def test_a_waiter_survives_a_restart(server: RedisServer, wait_until: WaitUntil) -> None:
    """Its subscription is gone with the server; it asks again when connected anew."""
    async with Dedup(server.url, timeout=0.5) as dedup:
        await dedup.claim("key", lease=30)
        task = asyncio.create_task(dedup.claim("key", wait=30))
        await wait_until(lambda: dedup.gate.connection.wakeups.waiting, description="it waits")
        server.kill()
        server.start()  # without its data: the key is free
        try:
            claim = await task
        except UnavailableError:
            return  # it asked again while the server was down, and said so
        assert claim.acquired


async def test_too_much_pending_is_refused(server: RedisServer) -> None:
    async with Dedup(server.url, timeout=0.5, max_pending=10) as dedup:
        await dedup.claim("warm")
        answers = await asyncio.gather(*(dedup.claim(f"key-{n}") for n in range(15)), return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, UnavailableError)]
        assert len(refused) == 5
        assert "pending" in str(refused[0])
        assert (await dedup.claim("after")).acquired


async def test_closing_while_the_server_is_frozen_ends(server: RedisServer) -> None:
    dedup = await Dedup(server.url, timeout=0.1).open()
    server.freeze()
    tasks = [asyncio.create_task(dedup.claim(f"key-{n}")) for n in range(100)]
    await asyncio.sleep(0)
    await dedup.aclose()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(answer) for answer in answers} == {UnavailableError}
    with pytest.raises(UsageError):
        await dedup.claim("late")


async def test_a_killed_redis_is_answered_for_and_comes_back(
    server: RedisServer, wait_until: WaitUntil
) -> None:
    """Kill -9 in the middle: the next claim is the policy's, and after the restart it is Redis's again."""
    events: list[Event] = []
    async with Dedup(server.url, timeout=2.0, on_unavailable=LocalLRU(), on_event=events.append) as dedup:
        before = await dedup.claim("before")
        server.kill()
        during = await dedup.claim("during")
        assert (during.acquired, during.degraded) == (True, True)
        await before.complete("sold")
        os.unlink(server.socket)
        server.start()
        await wait_until(lambda: Replayed in map(type, events), description="the journal is replayed")
        after = await dedup.claim("after")
        assert (after.acquired, after.degraded) == (True, False)
        still = await dedup.claim("during")
        assert (still.outcome, still.degraded, still.fence) == (Outcome.IN_PROGRESS, False, during.fence)
        # This server keeps nothing over a crash; what was settled in the outage it has nevertheless.
        again = await dedup.claim("before")
        assert (again.result, again.degraded) == ("sold", False)
        await during.complete("by its first owner")
        assert (await dedup.claim("during")).result == "by its first owner"
    assert [event.answered for event in events if isinstance(event, Degraded)][:2] == [True, True]


async def test_a_killed_redis_is_refused_under_reject_within_the_deadline(server: RedisServer) -> None:
    """UnavailableError that names the server, for every caller at once."""
    async with Dedup(server.url, timeout=0.5) as dedup:
        await dedup.claim("before")
        server.kill()
        answers = await asyncio.gather(*(dedup.claim(str(n)) for n in range(50)), return_exceptions=True)
    assert {type(answer) for answer in answers} == {UnavailableError}
    assert str(server.socket) in str(answers[0])


async def test_a_frozen_redis_is_an_outage_at_opening_too(server: RedisServer) -> None:
    """It accepts the connection and answers nothing: open() gives up in time, without an error."""
    server.freeze()
    async with Dedup(server.url, timeout=0.05) as dedup:
        with pytest.raises(UnavailableError):
            await dedup.claim("k")


@pytest.mark.parametrize("folder", ["login", "password"])
async def test_a_server_that_is_down_is_no_wrong_password_whatever_its_name(folder: str) -> None:
    """The error's kind decides, not a word that happens to stand in its text."""
    async with Dedup(f"unix:///nonexistent/{folder}/redis.sock", timeout=0.5) as dedup:
        with pytest.raises(UnavailableError):
            await dedup.claim("k")
