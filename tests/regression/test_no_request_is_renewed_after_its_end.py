"""The renewal of a web request's claim holds the claim itself, so each end of a request must stop it.

Otherwise a key whose request is over would be renewed until its process ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from fastdedup import Dedup
from fastdedup.integrations import settling
from fastdedup.integrations.asgi import IdempotencyMiddleware, everyone
from fastdedup.integrations.lifespan import Message, Receive, Scope, Send

from ..servers import RedisServer

START: Message = {"type": "http.response.start", "status": 201, "headers": []}
SCOPE: Scope = {
    "type": "http",
    "method": "POST",
    "path": "/orders",
    "query_string": b"",
    "headers": [(b"idempotency-key", b"k")],
}


def cancel_soon() -> None:
    """Cancel the request in the loop's next turn: the handler has returned by then, and its end is being settled."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_soon(task.cancel)


async def answers(send: Send) -> None:
    await send(START)
    await send({"type": "http.response.body", "body": b"done"})


async def is_cancelled_while_its_response_is_stored(send: Send) -> None:
    cancel_soon()
    await answers(send)


async def is_cancelled_while_a_part_of_its_response_is_settled(send: Send) -> None:
    await send(START)
    await send({"type": "http.response.body", "body": b"too large to be kept", "more_body": True})
    cancel_soon()


async def raises(send: Send) -> None:
    raise LookupError


async def is_silent(send: Send) -> None:
    pass


async def still_renewed(url: str, ending: Callable[[Send], Any]) -> bool:
    """Run a request that ends in this way, and return whether its claim would be renewed after its end."""
    waited: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        waited.append(renewals.waits)
        await ending(send)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        pass

    async with Dedup(url, namespace=f"renewed-{ending.__name__[:40]}", lease=9.0, timeout=0.2) as dedup:
        renewals = dedup._namespace.connection.renewals(9.0)
        guarded = IdempotencyMiddleware(app, dedup, principal=everyone, max_response=8, unstored="release")
        with suppress(LookupError, asyncio.CancelledError):
            await asyncio.create_task(guarded({**SCOPE}, receive, send))
        assert waited == [True]
        return renewals.waits


@pytest.mark.parametrize(
    "ending",
    [
        answers,
        is_cancelled_while_its_response_is_stored,
        is_cancelled_while_a_part_of_its_response_is_settled,
        raises,
        is_silent,
    ],
)
async def test_no_request_is_renewed_after_its_end(redis_url: str, ending: Callable[[Send], Any]) -> None:
    assert not await still_renewed(redis_url, ending)


async def test_nor_after_a_response_that_could_not_be_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "HOLD", 0.05)
    redis = RedisServer().start()

    async def loses_redis(send: Send) -> None:
        redis.kill()
        await answers(send)

    try:
        assert not await still_renewed(redis.url, loses_redis)
    finally:
        redis.stop()
