"""Step 5: Redis is killed. What happens then is the policy's to say, and it is never a silent yes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fastdedup import Dedup, LocalLRU, Outcome, UnavailableError
from tests.servers import RedisServer

WaitUntil = Callable[..., Any]


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A redis-server that a test may kill."""
    server = RedisServer().start()
    yield server
    server.stop()


async def test_by_default_a_claim_is_refused_while_redis_is_away(server: RedisServer) -> None:
    """`Reject` is the default: an error that says when to try again, for HTTP 503 and Retry-After."""
    async with Dedup(server.url, timeout=0.5) as dedup:
        server.kill()
        with pytest.raises(UnavailableError) as refused:
            await dedup.claim("order:42")
        assert refused.value.retry_after > 0


async def test_local_lru_goes_on_in_this_process(server: RedisServer) -> None:
    """`LocalLRU` answers from memory: unique within this process, and marked as degraded."""
    async with Dedup(server.url, on_unavailable=LocalLRU()) as dedup:
        server.kill()
        claim = await dedup.claim("order:42")
        assert claim.acquired
        assert claim.degraded
        assert (await dedup.claim("order:42")).outcome is Outcome.IN_PROGRESS


async def test_what_was_answered_in_an_outage_gets_into_redis(
    server: RedisServer, wait_until: WaitUntil
) -> None:
    """When Redis is back it learns what was completed meanwhile; then other processes are told, too."""
    events: list[Any] = []
    async with Dedup(server.url, on_unavailable=LocalLRU(), on_event=events.append) as dedup:
        server.kill()
        claim = await dedup.claim("order:42")
        await claim.complete("done")
        server.start()
        replayed = lambda: [event for event in events if type(event).__name__ == "Replayed"]  # noqa: E731
        (event,) = await wait_until(replayed, description="the outage is reported as over")
        assert (event.adopted, event.conflicts) == (1, 0)
    async with Dedup(server.url) as another:
        assert (await another.claim("order:42")).result == "done"
