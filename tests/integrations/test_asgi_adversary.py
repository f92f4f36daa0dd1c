"""Many clients, few keys, random outcomes and departures, against a ledger of what the handlers really did."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fastdedup import Dedup
from fastdedup.integrations.asgi import IdempotencyMiddleware, by_header
from fastdedup.integrations.lifespan import Message

from .live import Live, Wire, serving

WaitUntil = Callable[..., Awaitable[Any]]
CLIENTS = 24
REQUESTS = 14
KEYS = 40
OUTCOMES = (201, 201, 303, 404, 409, 500, "raise", "slow")


class Ledger:
    """What the handlers did: `kept` counts the outcomes that must be the only ones of their key."""

    def __init__(self, random_: random.Random) -> None:
        self.random = random_
        self.runs = 0
        self.running: Counter[str] = Counter()
        self.kept: defaultdict[str, list[int]] = defaultdict(list)

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise ValueError("no lifespan")
        body = b""
        while True:
            message: Message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        name = body.decode()
        self.runs += 1
        run = self.runs
        self.running[name] += 1
        assert self.running[name] == 1, f"{name} runs twice at once"
        try:
            await self.answer(name, run, send)
        finally:
            self.running[name] -= 1

    async def answer(self, name: str, run: int, send: Any) -> None:
        outcome = self.random.choice(OUTCOMES)
        for _ in range(self.random.randrange(40) if outcome == "slow" else self.random.randrange(4)):
            await asyncio.sleep(0)
        if outcome == "raise":
            raise RuntimeError("boom")
        status = 201 if outcome == "slow" else int(outcome)
        text = json.dumps({"name": name, "run": run}).encode()
        headers = [(b"content-length", b"%d" % len(text))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        half = self.random.randrange(len(text))
        await send({"type": "http.response.body", "body": text[:half], "more_body": True})
        await send({"type": "http.response.body", "body": text[half:]})
        if status in (201, 303, 404):  # from here on nobody cancels it
            self.kept[name].append(run)


class Visitor:
    """Sends requests, retries, and leaves at any moment."""

    def __init__(self, live: Live, random_: random.Random, seen: defaultdict[str, set[bytes]]) -> None:
        self.live = live
        self.random = random_
        self.seen = seen
        self.statuses: Counter[int] = Counter()

    async def visit(self) -> None:
        wire = await self.live.connect()
        for _ in range(REQUESTS):
            name = f"k{self.random.randrange(KEYS)}"
            wire.send("/", name, name.encode(), "X-Account: ann")
            if self.random.random() < 0.3:
                for _ in range(self.random.randrange(30)):
                    await asyncio.sleep(0)
                wire.leave()
                wire = await self.live.connect()
                continue
            wire = await self.read(wire, name)
        await wire.close()

    async def read(self, wire: Wire, name: str) -> Wire:
        status, headers, body = await wire.answer()
        self.statuses[status] += 1
        if status in (201, 303, 404):
            self.seen[name].add(body)
        else:
            assert status in (409, 500), (status, body)
            assert "idempotency-replayed" not in headers
        if headers.get("connection") != "close":
            return wire
        await wire.close()  # as uvicorn does after an exception
        return await self.live.connect()


@pytest.mark.parametrize("on_disconnect", ["finish", "cancel"])
@pytest.mark.parametrize("wait", [0.0, 20.0])
@pytest.mark.parametrize("seed", range(3))
async def test_a_kept_outcome_is_the_only_one_of_its_key_and_everybody_sees_that_one(
    redis_url: str,
    wait_until: WaitUntil,
    monkeypatch: pytest.MonkeyPatch,
    on_disconnect: str,
    wait: float,
    seed: int,
) -> None:
    ledger = Ledger(random.Random(seed))
    seen: defaultdict[str, set[bytes]] = defaultdict(set)
    dedup = Dedup(redis_url, namespace="t", timeout=5.0)
    app = IdempotencyMiddleware(
        ledger.app,
        dedup,
        principal=by_header("x-account"),
        wait=wait,
        on_disconnect=on_disconnect,  # type: ignore[arg-type]
    )
    monkeypatch.setattr(logging.getLogger("uvicorn.error"), "disabled", True)  # handlers raise, on purpose
    async with serving(app) as live:
        visitors = [Visitor(live, random.Random(f"{seed} {at}"), seen) for at in range(CLIENTS)]
        await asyncio.gather(*(visitor.visit() for visitor in visitors))
        await wait_until(lambda: live.connections == 0, description="all are gone")
        await wait_until(lambda: not +ledger.running, description="all handlers have ended")
        async with live.client as client:  # what became of those whose client left: the retry tells
            for name in list(ledger.kept):
                headers = {"idempotency-key": name, "x-account": "ann"}
                again = await client.post("/", content=name, headers=headers)
                assert again.headers["idempotency-replayed"] == "true"
                seen[name].add(again.content)
    repeated = {name: runs for name, runs in ledger.kept.items() if len(runs) > 1}
    assert not repeated
    assert all(len(bodies) == 1 for bodies in seen.values()), seen
    for name, bodies in seen.items():
        assert json.loads(next(iter(bodies)))["run"] == ledger.kept[name][-1]
    assert ledger.runs > KEYS
