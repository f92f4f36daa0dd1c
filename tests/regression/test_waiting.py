"""A claim that waits: through an outage, within its own list, and counted once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Event as ThreadEvent
from typing import Any

import pytest
import redis
from prometheus_client import CollectorRegistry

from fastdedup import Claim, Dedup, InProgressError, LocalLRU, Outcome, UnavailableError
from fastdedup.core.counters import GateCounters
from fastdedup.core.figures import WAIT_SECONDS
from fastdedup.events import Degraded, Event
from fastdedup.integrations.prometheus import watch
from fastdedup.sql import Inbox, once
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.sync.sql import Inbox as SyncInbox
from fastdedup.testing import FakeStore, fake_dedup

from ..fixtures import async_fixture, fixture_of
from ..gated_inbox.sync_shop import Call, waits_behind
from ..inbox_file import make_tables, transaction_now
from ..servers import RedisServer
from ..sidecar.conftest import Serve, serve  # noqa: F401 -- a fixture
from ..sidecar.running import Sidecar, figure
from ..stores import STORES, Backend, on_stores
from ..topologies import until
from ..waiting import wait_until

# A claim with `wait=5` got UnavailableError at once when one of its looks fell into a failover of half a
# second.


TIMEOUT = 0.3
LEASE = 600
"""Seconds: what is held by nobody stays held."""
LONG = 30.0
"""Seconds that a busy machine may add."""


server = fixture_of(RedisServer, "--appendonly", "yes", "--appendfsync", "always")
"""A server that keeps its records when it is killed."""


@asynccontextmanager
async def gate(server: RedisServer, **options: Any) -> AsyncIterator[tuple[Dedup, list[Event]]]:
    events: list[Event] = []
    settings = {"timeout": TIMEOUT, "on_event": events.append, "known_duplicates": 0, **options}
    async with Dedup(server.url, namespace="t", **settings) as dedup:
        await dedup.get("warm")
        yield dedup, events


def refused(events: list[Event]) -> bool:
    return any(isinstance(event, Degraded) and not event.answered for event in events)


async def test_a_list_outlasts_a_refused_first_look(server: RedisServer) -> None:
    """The model and tests/unit/test_wakeups.py have claims that wait alone; a list waits for each key by itself."""
    async with gate(server) as (dedup, events):
        server.kill()
        waiting = asyncio.ensure_future(dedup.claim_many(["k", "l", "k"], lease=LEASE, wait=LONG))
        await wait_until(lambda: refused(events), description="a look is refused")
        await asyncio.to_thread(server.start)
        assert outcomes(await waiting) == ["acquired", "acquired", "in_progress"]


async def test_an_outage_longer_than_the_wait_of_a_list_ends_in_unavailable(server: RedisServer) -> None:
    """At the end of the wait, not at the first refusal; and never as IN_PROGRESS, as nobody holds the key."""
    async with gate(server) as (dedup, _):
        server.kill()
        began = time.monotonic()
        with pytest.raises(UnavailableError):
            await dedup.claim_many(["k", "l", "k"], lease=LEASE, wait=0.6)
        assert time.monotonic() - began >= 0.6


async def test_local_lru_answers_a_waiter_at_once(server: RedisServer) -> None:
    async with gate(server, on_unavailable=LocalLRU()) as (dedup, _):
        server.kill()
        began = time.monotonic()
        held = await dedup.claim("k", wait=LONG)
        assert (held.acquired, held.degraded) == (True, True)
        assert (await dedup.claim("k", wait=0.01)).outcome is Outcome.IN_PROGRESS
        assert time.monotonic() - began < LONG / 2


async def test_closing_the_gate_ends_the_wait(server: RedisServer) -> None:
    async with gate(server) as (dedup, events):
        server.kill()
        waiting = asyncio.create_task(dedup.claim("k", wait=LONG))
        await wait_until(lambda: refused(events), description="a look is refused")
        closing = time.monotonic()
    with pytest.raises(Exception, match="closed"):
        await waiting
    assert time.monotonic() - closing < LONG / 2


@pytest.mark.parametrize("wire", ["http", "resp"])
async def test_a_client_of_the_sidecar_waits_through_an_outage(
    server: RedisServer,
    serve: Serve,  # noqa: F811
    wire: str,
) -> None:
    events: list[Event] = []
    sidecar = serve(server.url, timeout=TIMEOUT, on_event=events.append)

    def over_http() -> str:
        with sidecar.http() as client:
            answer = client.post("/v1/claims", json={"key": "k", "wait": 30_000}, timeout=LONG)
        return str(answer.json()["outcome"])

    def over_resp() -> str:
        with redis.Redis(unix_socket_path=sidecar.path, socket_timeout=LONG) as client:
            return str(client.execute_command("FD.CLAIM", "k", "WAIT", 30_000)[0])

    server.kill()
    waiting = asyncio.create_task(asyncio.to_thread(over_http if wire == "http" else over_resp))
    await wait_until(lambda: refused(events), description="a look is refused")
    await asyncio.to_thread(server.start)
    assert "acquired" in await waiting


# `claim_many(["q", "q"], wait=1)` waited for a claim of its own list.


WAIT = 30.0
every_store = on_stores(*STORES)


def outcomes(claims: Sequence[Claim]) -> list[str]:
    return [claim.outcome.value for claim in claims]


async def at_once(work: Any) -> Any:
    """Return what comes long before the wait is over."""
    async with asyncio.timeout(WAIT / 3):
        return await work


@every_store
async def test_a_list_does_not_wait_for_its_own_claims(backend: Backend) -> None:
    async with backend.make() as dedup:
        claims = await at_once(dedup.claim_many(["q", "r", "q", "q"], wait=WAIT))
        assert outcomes(claims) == ["acquired", "acquired", "in_progress", "in_progress"]


@every_store
async def test_a_named_owner_gets_its_claim_each_time(backend: Backend) -> None:
    async with backend.make() as dedup:
        claims = await at_once(dedup.claim_many(["q", "q"], owner="w1", wait=WAIT))
        assert outcomes(claims) == ["acquired", "acquired"]
        assert len({claim.fence for claim in claims}) == 1
        await claims[0].complete("done")


dedup = async_fixture(lambda redis_url: Dedup(redis_url, namespace="t", timeout=5.0))
other = async_fixture(lambda redis_url: Dedup(redis_url, namespace="t"))


async def waiting_list(dedup: Dedup, keys: str) -> tuple[asyncio.Future[list[Claim]], list[int]]:
    """Return a list that waits, and how many callers wait for each of its keys."""
    listed = asyncio.ensure_future(dedup.claim_many([*keys], wait=WAIT))
    wakeups = dedup.gate.connection.wakeups
    await wait_until(lambda: wakeups.waiting, description="the list waits")
    return listed, list(wakeups.waiting.values())


async def test_duplicates_held_elsewhere_wait_once(dedup: Dedup, other: Dedup) -> None:
    held = await other.claim("q", lease=60)
    listed, waiting = await waiting_list(dedup, "qrqq")
    assert waiting == [1]
    await held.complete("done")
    claims = await at_once(listed)
    assert outcomes(claims) == ["succeeded", "acquired", "succeeded", "succeeded"]
    assert {claim.result for claim in claims if claim.outcome is Outcome.SUCCEEDED} == {"done"}


async def test_the_first_of_several_duplicates_takes_a_freed_key(dedup: Dedup, other: Dedup) -> None:
    held = await other.claim("q", lease=60)
    listed, _ = await waiting_list(dedup, "qq")
    await held.release()
    assert outcomes(await at_once(listed)) == ["acquired", "in_progress"]


async def test_it_gives_up_once_for_all_duplicates(dedup: Dedup, other: Dedup) -> None:
    await other.claim("q", lease=60)
    began = asyncio.get_running_loop().time()
    claims = await dedup.claim_many(["q"] * 8, wait=0.2)
    assert asyncio.get_running_loop().time() - began < 8 * 0.2
    assert outcomes(claims) == ["in_progress"] * 8


# A list that waited for longer than its lease said "acquired" for a key that another owner had by then.


@every_store
async def test_a_list_that_outlasts_its_leases_asks_again(backend: Backend) -> None:
    async with backend.make() as dedup:
        held = await dedup.claim("held", lease=LEASE)
        listed = asyncio.ensure_future(dedup.claim_many(["taken", "free", "held"], lease=0.2, wait=WAIT))
        waiting = dedup.gate.connection.wakeups.waiting
        await wait_until(lambda: waiting, description="the list waits")
        taken = await dedup.claim("taken", lease=LEASE, wait=WAIT)
        assert (taken.outcome, taken.attempt) == ("acquired", 2)
        await held.release()
        claims = await at_once(listed)
        assert outcomes(claims) == ["in_progress", "acquired", "acquired"]
        assert claims[1].attempt == 2
        await taken.complete("done")


# `Inbox.once(gate=…, wait=8.0)` counted one wait as four: one for each look at the gate. A sidecar counted
# none.


WEEK = timedelta(days=7)


@pytest.fixture(autouse=True)
def _short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once, "LOOK", 0.05)


def begin() -> Any:
    """No transaction begins: the caller waits at the gate in vain."""
    raise AssertionError("it does not get as far")


def counted(counters: GateCounters) -> int:
    """How many waits were counted."""
    return sum(int(sum(cells[:-1])) for cells in counters.measured[WAIT_SECONDS].values())


async def test_a_wait_of_several_looks_is_counted_once() -> None:
    inbox = Inbox("shop", keep=WEEK)
    gate = Dedup("memory://", namespace="t")
    counters = gate.gate.connections.count()

    @inbox.once(key=lambda session, key: key, begin=begin, gate=gate, wait=0.5)
    async def work(session: Any, key: str) -> None: ...

    async with gate, gate.claim(inbox.rules.gate_key("k")):
        with pytest.raises(InProgressError):
            await work("k")
    assert counted(counters) == 1


def test_a_sidecar_counts_the_waits_of_its_clients() -> None:
    with Sidecar() as sidecar, sidecar.client() as ask, sidecar.http() as http:
        ask.execute_command("FD.CLAIM", "k")
        ask.execute_command("FD.CLAIM", "k", "WAIT", "20")
        http.post("/v1/claims", json={"key": "k", "wait": 20})
        assert figure(sidecar.figures(), "fastdedup_wait_seconds_count", namespace="fastdedup") == 2


# What waited behind a call of its own process was never counted, and a claim of a list that the store refused was.


async def test_a_wait_behind_a_call_of_this_process_is_counted() -> None:
    inbox = Inbox("shop", keep=WEEK)
    gate = Dedup("memory://", namespace="t")
    counters = gate.gate.connections.count()
    began, go_on = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        began.set()
        await go_on.wait()
        raise LookupError
        yield

    @inbox.once(key=lambda session, key: key, begin=begin, gate=gate, wait=0.05)
    async def work(session: Any, key: str) -> None: ...

    async with gate:
        first = asyncio.create_task(work("k"))
        await began.wait()
        with pytest.raises(InProgressError):
            await work("k")
        go_on.set()
        with pytest.raises(LookupError):
            await first
    assert counted(counters) == 1


def test_a_wait_that_ends_with_the_result_of_a_thread_is_counted(tmp_path: Path) -> None:
    inbox = SyncInbox("shop", keep=WEEK)
    gate = SyncDedup("memory://", namespace="t")
    registry = CollectorRegistry()
    watch(gate, registry=registry)
    began, go_on = ThreadEvent(), ThreadEvent()
    make_tables(tmp_path / "inbox")

    @inbox.once(
        key=lambda session, key: key, begin=partial(transaction_now, tmp_path / "inbox"), gate=gate, wait=LONG
    )
    def work(session: Any, key: str) -> str:
        began.set()
        assert go_on.wait(LONG)
        return key

    with gate:
        first = Call(work, "k")
        assert began.wait(LONG)
        second = Call(work, "k")
        until(lambda: waits_behind(second), "the second is behind the first")
        go_on.set()
        assert [first.result, second.result] == ["k", "k"]
        gate.get("told in the gate's thread, after what was told there before")
        assert registry.get_sample_value("fastdedup_wait_seconds_count", {"namespace": "t"}) == 1


async def test_a_list_that_waits_for_the_store_counts_no_wait_for_an_owner(store: FakeStore) -> None:
    dedup = fake_dedup(store)
    counters = dedup.gate.connections.count()
    async with dedup:
        await dedup.get("warm")
        store.outage.start("refused")
        listed = asyncio.ensure_future(dedup.claim_many(["a", "b"], wait=LONG))
        await wait_until(
            lambda: dedup.gate.connection.outage_waiters.waiting, description="it waits for the store"
        )
        store.outage.stop()
        assert outcomes(await at_once(listed)) == ["acquired", "acquired"]
    assert counted(counters) == 0
