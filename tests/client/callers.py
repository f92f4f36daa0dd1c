"""The three clients under test, each behind one call."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx
import requests

from fastdedup.client import RetryRules
from fastdedup.client.httpx import AsyncIdempotentTransport, IdempotentTransport
from fastdedup.client.requests import IdempotentAdapter

from ..programs import until as until  # for those who import it from here

TRUST = ssl.create_default_context()
"""Shared, as making one takes longer than most tests here."""
TIMEOUT = 5.0
"""Seconds of an attempt, where the test is about something else."""


@dataclass
class Answer:
    """A response, read whole."""

    status: int
    headers: dict[str, str]
    body: bytes
    key: str | None
    """The key of the request that it answers."""


@dataclass
class Waits:
    """Takes the place of sleeping: keeps each wait, and calls `then` with their number."""

    then: Callable[[int], object] = lambda number: None
    seconds: list[float] = field(default_factory=list)

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self.then(len(self.seconds))

    async def awaited(self, seconds: float) -> None:
        await asyncio.to_thread(self, seconds)


@dataclass
class Sending:
    """A request, and how it is sent."""

    url: str
    method: str = "POST"
    body: Any = b"{}"
    headers: dict[str, str] | None = None
    timeout: float = TIMEOUT
    rules: RetryRules | None = None
    sleep: Waits = field(default_factory=Waits)
    wrapped: Any = None


@dataclass
class Caller:
    """Sends one request by a client of its own."""

    send: Callable[[Sending], Answer]
    lost: tuple[type[Exception], ...]
    """The errors of a lost connection or a timeout."""

    def __call__(self, url: str, **given: Any) -> Answer:
        return self.send(Sending(url, **given))


def by_httpx(it: Sending) -> Answer:
    connections = it.wrapped or httpx.HTTPTransport(verify=TRUST)
    transport = IdempotentTransport(connections, rules=it.rules, sleep=it.sleep)
    with httpx.Client(transport=transport, timeout=it.timeout, follow_redirects=True) as client:
        return _answer(client.request(it.method, it.url, content=it.body, headers=it.headers))


def by_httpx_async(it: Sending) -> Answer:
    body = it.body
    content = _awaited(body) if isinstance(body, Iterable) and not isinstance(body, bytes) else body

    async def call() -> Answer:
        connections = it.wrapped or httpx.AsyncHTTPTransport(verify=TRUST)
        transport = AsyncIdempotentTransport(connections, rules=it.rules, sleep=it.sleep.awaited)
        async with httpx.AsyncClient(
            transport=transport, timeout=it.timeout, follow_redirects=True
        ) as client:
            return _answer(await client.request(it.method, it.url, content=content, headers=it.headers))

    return asyncio.run(call())


def by_requests(it: Sending) -> Answer:
    with requests.Session() as session:
        adapter = IdempotentAdapter(rules=it.rules, sleep=it.sleep, **(it.wrapped or {}))
        session.mount("http://", adapter)
        session.mount("https://", adapter)
        response = session.request(it.method, it.url, data=it.body, headers=it.headers, timeout=it.timeout)
        found = {name.lower(): value for name, value in response.headers.items()}
        key = response.request.headers.get("Idempotency-Key")
        return Answer(response.status_code, found, response.content, key)


CALLERS = {
    "httpx": Caller(by_httpx, (httpx.TransportError,)),
    "httpx async": Caller(by_httpx_async, (httpx.TransportError,)),
    "requests": Caller(by_requests, (requests.ConnectionError, requests.Timeout)),
}


def _answer(response: httpx.Response) -> Answer:
    key = response.request.headers.get("idempotency-key")
    return Answer(response.status_code, dict(response.headers), response.content, key)


async def _awaited(parts: Iterable[bytes]) -> Any:
    for part in parts:
        yield part
