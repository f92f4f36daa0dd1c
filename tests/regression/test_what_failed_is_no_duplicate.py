"""Fault: `first` and `consume` raised UnavailableError, and what they had taken was taken back a moment later.

A message that was returned for that error, and delivered again at once, was told that it was a duplicate: of the very
call that had failed. So its caller gets the error only once the store has answered what the call has left. Until then
another process that redeems or consumes the token waits.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import chain

import httpx
import pytest

from fastdedup import Dedup, Outcome, UnavailableError
from fastdedup.core.orphans import MAX_ORPHANS
from fastdedup.events import Event, UndoOverflow
from fastdedup.kernel import granted
from fastdedup.kernel.granted import GRANTED

from ..faces import awaited_gate, each_face, gate_of, told
from ..idle import IdleTime
from ..proxy import Proxy, proxied
from ..servers import RedisServer
from ..sidecar.running import Sidecar
from ..waiting import answered, wait_until

TIMEOUT = 0.6
LONGER = 2.4
"""Seconds, the timeout of gates of which another waits for what they give back: a busy machine is late."""


class Asking:
    """A gate and its ledger."""

    def __init__(self, dedup: Dedup) -> None:
        self.tokens = dedup.tokens
        self.ledger = dedup.ledger("orders", window=60, capacity=1_000)


Call = Callable[[Asking, str], Awaitable[bool]]


async def first(at: Asking, name: str) -> bool:
    return await at.ledger.first(name)


async def consume(at: Asking, token: str) -> bool:
    return await at.tokens.consume(token) is Outcome.ACQUIRED


async def make_id(at: Asking, call: Call, number: int) -> str:
    return await at.tokens.issue() if call is consume else f"order-{number}"


def hold_for(proxy: Proxy, seconds: float) -> None:
    """Keep all replies back for a while: what is asked takes effect, and its caller does not hear of it."""
    proxy.hold()
    asyncio.get_running_loop().call_later(seconds, proxy.forward)


Use = Callable[[str, str], Awaitable[str]]
"""Consumes or redeems a token, as the first word says, and returns the outcome."""


@asynccontextmanager
async def a_gate(url: str, face: str = "asyncio") -> AsyncIterator[Use]:
    async with awaited_gate(face, url, namespace="t", timeout=LONGER) as dedup:

        async def use(how: str, token: str) -> str:
            if how == "consume":
                return str(await dedup.tokens.consume(token))
            wait = 5.0 if how == "redeem patiently" else 0.0
            return str((await dedup.tokens.redeem(token, wait=wait)).outcome)

        yield use


synchronous_code = functools.partial(a_gate, face="synchronous")


@asynccontextmanager
async def a_sidecar(url: str) -> AsyncIterator[Use]:
    with Sidecar("--url", url, "--namespace", "t", "--timeout", str(LONGER)) as sidecar:
        transport = httpx.AsyncHTTPTransport(uds=str(sidecar.path))
        async with httpx.AsyncClient(transport=transport, base_url="http://sidecar", timeout=10.0) as client:

            async def use(how: str, token: str) -> str:
                verb, _, patiently = how.partition(" ")
                ask = {"token": token, **({"wait": 5000} if patiently else {})}
                return str((await client.post(f"/v1/tokens/{verb}", json=ask)).json()["outcome"])

            yield use


@asynccontextmanager
async def a_sidecar_by_resp(url: str) -> AsyncIterator[Use]:
    with Sidecar("--url", url, "--namespace", "t", "--timeout", str(LONGER)) as sidecar:

        def use(how: str, token: str) -> str:
            verb, _, patiently = how.partition(" ")
            with sidecar.client() as client:
                options = ("WAIT", "5000") if patiently else ()
                answer = client.execute_command(f"FD.{verb.upper()}", token, *options)
            return (answer if verb == "consume" else answer[0]).decode()

        yield functools.partial(asyncio.to_thread, use)


@asynccontextmanager
async def a_gate_on_a_sidecar(url: str) -> AsyncIterator[Use]:
    with Sidecar("--url", url, "--allow-stores") as sidecar:
        async with a_gate(f"sidecar://{sidecar.path}") as use:
            yield use


HOW = ("consume", "redeem", "redeem patiently")


WAYS = (a_gate, synchronous_code, a_sidecar, a_sidecar_by_resp, a_gate_on_a_sidecar)


async def test_a_use_that_is_taken_back_is_never_told_as_used(
    redis_url: str, redis_server: RedisServer
) -> None:
    """To another process that asks while the first still waits for its reply, in each way in which it may ask."""
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(proxied(redis_server))
        dedup = await stack.enter_async_context(Dedup(proxy.url, namespace="t", timeout=LONGER))
        uses = [await stack.enter_async_context(way(redis_url)) for way in WAYS]
        await dedup.tokens.consume(await dedup.tokens.issue())
        tokens = [[await dedup.tokens.issue() for _ in HOW] for _ in WAYS]
        hold_for(proxy, 1.1 * LONGER)
        ours = [asyncio.ensure_future(dedup.tokens.consume(token)) for token in chain(*tokens)]
        await wait_until(
            lambda: all(record[1:2] == b"S" for record in records(redis_server).values()),
            description="they are used",
        )
        asked = [asyncio.gather(*map(use, HOW, own)) for use, own in zip(uses, tokens, strict=True)]
        for way, theirs in zip(WAYS, await asyncio.gather(*asked), strict=True):
            assert theirs == [Outcome.ACQUIRED] * len(HOW), way
        answers = await asyncio.gather(*ours, return_exceptions=True)
        assert {type(answer) for answer in answers} == {UnavailableError}
        for use, own in zip(uses, tokens, strict=True):
            assert await use("consume", own[0]) == Outcome.SUCCEEDED


async def test_a_use_that_stays_is_told_at_once_in_its_own_process(redis_url: str) -> None:
    """Another process is told of it once it is older than two timeouts; this one forgets here that it is its own."""
    async with Dedup(redis_url, namespace="t", timeout=TIMEOUT) as dedup:
        used, done = await dedup.tokens.issue(), await dedup.tokens.issue()
        since = time.monotonic()
        with IdleTime() as at_once:
            await dedup.tokens.consume(used)
            async with dedup.tokens.redeem(done):
                pass
            for token in (used, done):
                assert (await dedup.tokens.redeem(token)).outcome is Outcome.SUCCEEDED
        assert at_once.seconds < TIMEOUT
        GRANTED.clear()
        with IdleTime() as later:
            assert (await dedup.tokens.redeem(used)).outcome is Outcome.SUCCEEDED
        assert time.monotonic() - since > 1.9 * TIMEOUT
        assert at_once.seconds + later.seconds < 5 * TIMEOUT


Remember = Callable[[int], Awaitable[bool]]
LEDGER = {"window": 60, "capacity": 1_000}
_fresh = itertools.count()


@asynccontextmanager
async def ledger_of_a_gate(url: str, dense: bool, face: str = "asyncio") -> AsyncIterator[Remember]:
    async with awaited_gate(face, url, namespace="t", timeout=LONGER) as dedup:
        yield dedup.ledger("orders", **LEDGER, dense=dense).first


ledger_of_synchronous_code = functools.partial(ledger_of_a_gate, face="synchronous")


@asynccontextmanager
async def list_of_a_gate(url: str, dense: bool) -> AsyncIterator[Remember]:
    async with Dedup(url, namespace="t", timeout=LONGER) as dedup:
        ledger = dedup.ledger("orders", **LEDGER, dense=dense)

        async def first(id: int) -> bool:
            return (await ledger.first_many([id + 1_000_000, id]))[1]

        yield first


@asynccontextmanager
async def ledger_of_a_sidecar(url: str, dense: bool) -> AsyncIterator[Remember]:
    config = f"[ledgers.orders]\nwindow = 60\ncapacity = 1_000\ndense = {str(dense).lower()}\n"
    options = ("--namespace", "t", "--timeout", str(LONGER))
    with Sidecar("--url", url, *options, config=config) as sidecar, sidecar.client() as client:

        async def first(id: int) -> bool:
            (new,) = await asyncio.to_thread(client.execute_command, "FD.FIRST", "orders", str(id))
            return bool(new)

        yield first


@asynccontextmanager
async def ledger_behind_a_sidecar(url: str, dense: bool) -> AsyncIterator[Remember]:
    with Sidecar("--url", url, "--allow-stores") as sidecar:
        async with ledger_of_a_gate(f"sidecar://{sidecar.path}", dense) as first:
            yield first


LEDGER_WAYS = (
    ledger_of_a_gate,
    list_of_a_gate,
    ledger_of_synchronous_code,
    ledger_of_a_sidecar,
    ledger_behind_a_sidecar,
)


@pytest.mark.parametrize("dense", [False, True], ids=["digests", "dense"])
async def test_an_id_that_is_given_back_is_never_told_as_a_duplicate(
    redis_url: str, redis_server: RedisServer, dense: bool
) -> None:
    """To another process that asks while the first still waits for its reply. One that was answered costs no wait."""
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(proxied(redis_server))
        dedup = await stack.enter_async_context(Dedup(proxy.url, namespace="t", timeout=LONGER))
        witness = await stack.enter_async_context(Dedup(redis_url, namespace="t", timeout=5.0))
        firsts = [await stack.enter_async_context(way(redis_url, dense)) for way in LEDGER_WAYS]
        ours, theirs = (gate.ledger("orders", **LEDGER, dense=dense) for gate in (dedup, witness))
        warm, *new = [next(_fresh) for _ in (None, *LEDGER_WAYS)]  # a process knows which ids it was told of
        assert await ours.first(warm)
        await theirs.seen(warm)
        hold_for(proxy, 1.1 * LONGER)
        calls = [asyncio.ensure_future(ours.first(each)) for each in new]

        async def all_seen() -> bool:
            return all([await theirs.seen(each) for each in new])

        await wait_until(all_seen, description="they are remembered")
        told = await asyncio.gather(*(first(each) for first, each in zip(firsts, new, strict=True)))
        assert dict(zip(LEDGER_WAYS, told, strict=True)) == dict.fromkeys(LEDGER_WAYS, True)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(answer) for answer in answers} == {UnavailableError}
        assert not any([await first(each) for first, each in zip(firsts, new, strict=True)])


async def test_an_id_that_was_this_processes_own_may_be_anothers_by_now(
    redis_url: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It expired, or was forgotten by another process, and a call that is given back has remembered it since."""
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(proxied(redis_server))
        dedup = await stack.enter_async_context(Dedup(proxy.url, namespace="t", timeout=LONGER))
        witness = await stack.enter_async_context(Dedup(redis_url, namespace="t", timeout=5.0))
        ours, theirs = [await gate.ledger("orders", **LEDGER).open() for gate in (dedup, witness)]
        assert theirs.view is not None
        with monkeypatch.context() as long_ago:
            long_ago.setattr(granted, "monotonic", lambda: time.monotonic() - 4 * 5.0 - 1.0)
            GRANTED.add(b"".join(theirs.view.addresses.find(b"order-2")))
        hold_for(proxy, 1.1 * LONGER)
        call = asyncio.ensure_future(ours.first("order-2"))
        await wait_until(functools.partial(theirs.seen, "order-2"), description="it is remembered")
        assert await theirs.first("order-2")
        with pytest.raises(UnavailableError):
            await call


async def test_no_more_is_an_id_of_a_list_that_waits_for_another_id(
    redis_url: str, redis_server: RedisServer
) -> None:
    """Also in its own process: if the other id gets an error, the whole list is given back."""
    async with AsyncExitStack() as stack:
        ways = [await stack.enter_async_context(proxied(redis_server, f"way{n}.sock")) for n in range(2)]
        gates = [
            await stack.enter_async_context(Dedup(url, namespace="t", timeout=LONGER))
            for url in (ways[0].url, ways[1].url, redis_url)
        ]
        holder, ours, witness = (gate.ledger("orders", **LEDGER) for gate in gates)
        for ledger in (holder, ours, witness):
            await ledger.first("warm")

        async def is_seen(id: str) -> bool:
            return await witness.seen(id)

        ways[0].hold()
        held = asyncio.ensure_future(holder.first("held"))
        await wait_until(functools.partial(is_seen, "held"), description="it is remembered, and not told")
        listed = asyncio.ensure_future(ours.first_many(["order-1", "held"]))
        await wait_until(functools.partial(is_seen, "order-1"), description="the list waits for the held id")
        hold_for(ways[1], 1.6 * LONGER)
        assert await witness.first("order-1")
        with pytest.raises(UnavailableError):
            await listed
        ways[0].forward()
        with pytest.raises(UnavailableError):
            await held


@each_face
async def test_refused_ids_do_not_drive_out_those_that_were_sent(
    redis_url: str, redis_server: RedisServer, face: str
) -> None:
    """The breaker refuses lists at once, so callers who retry meanwhile pass the limit of what is taken back."""
    events: list[Event] = []
    async with gate_of(face, redis_url, namespace="t", timeout=TIMEOUT, on_event=events.append) as dedup:
        ledger = dedup.ledger("orders", window=60, capacity=100_000)
        await told(ledger.first("warm"))
        with redis_server.frozen():
            with pytest.raises(UnavailableError):
                await told(ledger.first("sent"))
            for number in range(2 * MAX_ORPHANS // 1_000):
                with pytest.raises(UnavailableError):
                    await told(ledger.first_many([f"{number}-{each}" for each in range(1_000)]))
        assert await answered(lambda: told(ledger.first("sent")))
        assert not [event for event in events if isinstance(event, UndoOverflow)]


def records(server: RedisServer) -> dict[bytes, bytes]:
    with server.client() as raw:
        return {wire: raw.get(wire) for wire in raw.scan_iter("t:*")}


@pytest.mark.parametrize("call", [first, consume])
async def test_a_refused_call_waits_for_nothing(
    redis_url: str, redis_server: RedisServer, call: Call
) -> None:
    """A call that was never sent has left nothing; so an open breaker goes on to answer at once."""
    async with Dedup(redis_url, namespace="t", timeout=5.0, max_pending=1) as dedup:
        at = Asking(dedup)
        name = await make_id(at, call, 0)
        await call(at, await make_id(at, call, 1))
        with redis_server.frozen():
            under_way = asyncio.ensure_future(call(at, name))
            await asyncio.sleep(0)
            async with asyncio.timeout(2.0):
                with pytest.raises(UnavailableError):
                    await call(at, name)
        assert await under_way
