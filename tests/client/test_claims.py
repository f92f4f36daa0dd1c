"""Requests inside a claim: each attempt at the work sends the same keys."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Any

import httpx
import requests
from fastapi import FastAPI

from fastdedup import Dedup, Resolution, Takeover, sync
from fastdedup.client import RetryRules
from fastdedup.client.httpx import AsyncIdempotentTransport, IdempotentTransport
from fastdedup.client.requests import IdempotentAdapter
from fastdedup.downstream import present_work
from fastdedup.integrations import wsgi
from fastdedup.integrations.asgi import IdempotencyMiddleware
from fastdedup.integrations.fastapi import Claimed, Idempotency
from fastdedup.messages import MessageRules
from fastdedup.messages.deliveries import Deliveries

from ..fixtures import fixture_of
from .stripe import Server

HEADER = "Idempotency-Key"
OK = httpx.MockTransport(lambda request: httpx.Response(200))


class Broken(Exception):
    """The work fails, and its claim is released."""


async def sent_by(dedup: Dedup, rules: RetryRules | None = None, key: str = "order:1") -> list[str]:
    """Return the keys of three requests of one attempt at the work."""
    keys: list[str] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers[HEADER])
        return httpx.Response(200)

    transport = AsyncIdempotentTransport(httpx.MockTransport(answer), rules=rules)
    async with httpx.AsyncClient(transport=transport) as client:
        with contextlib.suppress(Broken):
            async with dedup.claim(key):
                await client.post("http://bank/charges?at=1")
                await client.post("http://bank/charges?at=2")
                await client.post("http://bank/mails")
                raise Broken
    return keys


async def test_each_attempt_sends_the_same_keys() -> None:
    async with Dedup("memory://") as dedup:
        first, again = await sent_by(dedup), await sent_by(dedup)
        assert first == again
        assert len(set(first)) == 3
        assert not set(first) & set(await sent_by(dedup, key="order:2"))


async def test_a_key_of_ones_own_and_make_key_go_first() -> None:
    drawn = iter("abcdef")
    async with Dedup("memory://") as dedup:
        assert await sent_by(dedup, RetryRules(make_key=lambda: next(drawn))) == ["a", "b", "c"]
        async with dedup.claim("k"), httpx.AsyncClient(transport=AsyncIdempotentTransport(OK)) as client:
            answer = await client.post("http://bank/", headers={HEADER: "mine"})
        assert answer.request.headers[HEADER] == "mine"


async def test_outside_of_a_claim_each_request_has_a_new_key() -> None:
    async with Dedup("memory://") as dedup:
        async with dedup.claim("k") as outer:
            await outer.complete()
        client = httpx.AsyncClient(transport=AsyncIdempotentTransport(OK))
        async with dedup.claim("k"), client:  # a duplicate has no work
            keys = {(await client.post("http://bank/")).request.headers[HEADER] for _ in range(3)}
    assert len(keys) == 3


def test_a_gated_endpoint_sends_the_same_keys_too() -> None:
    """Under ASGI, in FastAPI's dependency and under WSGI; the caller's own context stays as it was."""
    keys: list[str] = []
    bank = AsyncIdempotentTransport(OK)

    async def charge() -> str:
        async with httpx.AsyncClient(transport=bank) as client:
            return str((await client.post("http://bank/charges")).request.headers[HEADER])

    async def failing(scope: Any, receive: Any, send: Any) -> None:
        keys.append(await charge())
        raise Broken

    def failing_wsgi(environ: Any, start_response: Any) -> Any:
        with httpx.Client(transport=IdempotentTransport(OK)) as client:
            keys.append(client.post("http://bank/charges").request.headers[HEADER])
        raise Broken

    async def main() -> None:
        dedup = Dedup("memory://")
        api = FastAPI()

        @api.post("/charges")
        async def endpoint(claim: Annotated[Any, Claimed(principal=lambda: "ann")]) -> None:
            keys.append(await charge())
            raise Broken

        Idempotency(api, dedup)
        apps: list[Any] = [IdempotencyMiddleware(failing, dedup, principal=lambda request: "ann"), api]
        async with dedup:
            for app in apps:
                async with httpx.AsyncClient(
                    transport=httpx.ASGITransport(app), base_url="http://shop"
                ) as client:
                    for _ in range(2):
                        with contextlib.suppress(Broken):
                            await client.post("/charges", headers={HEADER: "k"})
                assert present_work() is None
                assert keys[-1] == keys[-2]

    asyncio.run(main())
    with sync.Dedup("memory://") as dedup:
        app = wsgi.IdempotencyMiddleware(failing_wsgi, dedup, principal=lambda request: "ann")
        with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://shop") as client:
            for _ in range(2):
                with contextlib.suppress(Broken):
                    client.post("/charges", headers={HEADER: "k"})
    assert len(keys) == 6
    assert keys[4] == keys[5]
    assert present_work() is None


class Bank:
    """A provider with one address for charges and lookups, as GraphQL and JSON-RPC have it."""

    def __init__(self) -> None:
        self.charges: list[str] = []
        self.lookups: list[str] = []
        self._transport = httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        (self.lookups if b"find" in request.content else self.charges).append(request.headers[HEADER])
        return httpx.Response(200)

    async def asked(self, query: str) -> None:
        async with httpx.AsyncClient(transport=AsyncIdempotentTransport(self._transport)) as client:
            await client.post("http://bank/graphql", content=query)

    def asked_by_a_thread(self, query: str) -> None:
        with httpx.Client(transport=IdempotentTransport(self._transport)) as client:
            client.post("http://bank/graphql", content=query)

    def check(self) -> None:
        """See that each attempt charged under one key, and that no lookup had it."""
        assert len(set(self.charges)) == 1
        assert len(self.charges) == 3
        assert len({*self.lookups, *self.charges}) == 3


async def test_a_check_of_a_consumer_leaves_the_keys_of_its_work() -> None:
    bank = Bank()

    async def look_up(takeover: Takeover) -> Resolution:
        await bank.asked("find charge")
        return Resolution.not_done()

    async def work(message: str) -> None:
        await bank.asked("charge")
        raise Broken

    async def lay(decision: Any) -> None:
        pass

    async with Dedup("memory://") as dedup:
        deliveries = Deliveries(MessageRules("billing", str), dedup, resolve=look_up)
        for _ in range(3):
            await deliveries.handle("order:1", work, lay)
    bank.check()


async def test_a_check_within_other_work_leaves_the_keys_of_that() -> None:
    bank = Bank()

    async def look_up(takeover: Takeover) -> Resolution:
        await bank.asked("find charge")
        return Resolution.not_done()

    async with Dedup("memory://") as dedup:
        for _ in range(3):
            with contextlib.suppress(Broken):
                async with dedup.claim("outer"):
                    await (await dedup.claim("inner", resolve=look_up)).release()
                    await bank.asked("charge")
                    raise Broken
    bank.check()


def test_a_check_in_a_thread_leaves_the_keys_too(dedup: sync.Dedup) -> None:
    bank = Bank()

    def look_up(takeover: Takeover) -> Resolution:
        bank.asked_by_a_thread("find charge")
        return Resolution.not_done()

    for _ in range(3):
        with contextlib.suppress(Broken), dedup.claim("outer"):
            dedup.claim("inner", resolve=look_up).release()
            bank.asked_by_a_thread("charge")
            raise Broken
    bank.check()


dedup = fixture_of(sync.Dedup, "memory://")


def test_requests_in_synchronous_code_too(dedup: sync.Dedup, stripe: Server) -> None:
    """A 409 at the first attempt may be an earlier owner's request, so it is asked again."""
    stripe.state.faults.extend(["409", ""])
    with requests.Session() as session:
        session.mount(stripe.url, IdempotentAdapter(sleep=lambda seconds: None))
        for _ in range(2):
            with contextlib.suppress(Broken), dedup.claim("order:1"):
                session.post(f"{stripe.url}/charges", data=b"{}", timeout=5)
                raise Broken
    assert len(set(stripe.state.keys)) == 1
    assert len(stripe.state.keys) == 3
    assert len(stripe.state.effects) == 1
