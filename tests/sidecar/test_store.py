"""`sidecar://` beyond the contract, which every store has: its own life and death, policies, namespaces."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from fastdedup import (
    BreakerState,
    Claim,
    ConfigError,
    Dedup,
    Ledger,
    LocalLRU,
    Outcome,
    ResultTooLargeError,
    TransitionOutcome,
    UnavailableError,
)
from fastdedup.events import Degraded
from fastdedup.kernel.verbs import Verb
from fastdedup.sidecar.resp.frames import encode
from fastdedup.sidecar.resp.store_commands import Ear
from fastdedup.stores.redis.listener import CHANNEL
from fastdedup.stores.redis.scripts import pack
from fastdedup.stores.sidecar.wire import RUNS

from ..servers import RedisServer
from ..sidecars import Sidecar
from ..waiting import wait_until


@pytest.fixture
def sidecar(server: RedisServer) -> Iterator[Sidecar]:
    sidecar = Sidecar(server.url).start()
    yield sidecar
    sidecar.stop()
    with server.client() as raw:
        raw.flushdb()


@pytest.fixture
def outage() -> Iterator[tuple[RedisServer, Sidecar]]:
    """A server to take down, behind a sidecar: `local` degrades, elsewhere it refuses."""
    policies = {"local": "local", "strict": "7"}
    with RedisServer() as server, Sidecar(server.url, timeout=0.5, policies=policies) as sidecar:
        yield server, sidecar


@pytest.mark.parametrize(
    "url",
    [
        "sidecar://",
        "sidecar:///",
        "sidecar://host/run/x",
        "sidecar:///x?a=b",
        "sidecar:///x#y",
        "sidecar:///" + "x" * 200,
    ],
)
def test_a_url_that_names_no_socket_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"sidecar:///run|at most"):
        Dedup(url)


def test_replicas_are_the_sidecars_matter() -> None:
    with pytest.raises(ConfigError, match="sidecar's own"):
        Dedup("sidecar:///run/fastdedup.sock", replicas=1)


async def test_no_sidecar_there_is_an_outage(tmp_path: Path) -> None:
    async with Dedup(f"sidecar://{tmp_path}/none.sock", timeout=1) as dedup:
        with pytest.raises(UnavailableError, match="is not running"):
            await dedup.claim("key")
    async with Dedup(f"sidecar://{tmp_path}/none.sock", timeout=1, on_unavailable=LocalLRU()) as dedup:
        assert (await dedup.claim("key")).degraded


async def test_something_else_there_is_a_mistake(server: RedisServer) -> None:
    with pytest.raises(ConfigError, match="no fastdedup sidecar"):
        await Dedup(f"sidecar://{server.socket}", timeout=5).open()


async def test_a_verb_that_an_older_sidecar_lacks_names_its_age(
    sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RUNS, Verb.TOUCH, RUNS[Verb.TOUCH]._replace(name="of_tomorrow"))
    async with Dedup(sidecar.url, timeout=5) as dedup:
        claim = await dedup.claim("key")
        with pytest.raises(ConfigError, match="an older one than its client: update it"):
            await claim.touch()
        await claim.complete()


async def test_records_are_those_of_the_store_behind(server: RedisServer, sidecar: Sidecar) -> None:
    """A program moves between library and sidecar by its URL, also in the middle of its work."""
    direct = Dedup(server.url, namespace="t", timeout=5)
    async with direct, Dedup(sidecar.url, namespace="t", timeout=5) as behind:
        claim = await behind.claim("key", owner="worker", fingerprint="body")
        again = await direct.claim("key", owner="worker", fingerprint="body")
        assert (again.fence, again.attempt) == (claim.fence, 1)
        await again.complete({"by": "direct"})
        assert (await behind.claim("key")).result == {"by": "direct"}


async def test_a_waiter_here_hears_of_a_settling_there(server: RedisServer, sidecar: Sidecar) -> None:
    direct = Dedup(server.url, namespace="t", timeout=5)
    async with direct, Dedup(sidecar.url, namespace="t", timeout=5) as behind:
        for holder, waiter in ((direct, behind), (behind, direct)):
            claim = await holder.claim("key", lease=60)
            waiting = asyncio.create_task(waiter.claim("key", wait=60))
            with server.client() as raw:
                await wait_until(lambda: raw.getrange("t:=key", 1, 1) == b"W", description="it waits")
            await claim.complete("told")
            assert (await waiting).result == "told"
            await direct.forget("key")


async def test_a_memory_store_behind_tells_its_waiters() -> None:
    sidecar = Sidecar("memory://").start()
    try:
        async with Dedup(sidecar.url, timeout=5) as one, Dedup(sidecar.url, timeout=5) as other:
            claim = await one.claim("key", lease=60)
            waiting = asyncio.create_task(other.claim("key", wait=60))
            await wait_until(lambda: other.gate.connection.wakeups.waiting, description="it waits")
            await claim.complete(7)
            assert (await waiting).result == 7
    finally:
        sidecar.stop()


async def test_large_results_are_cut_into_commands_that_the_sidecar_takes(sidecar: Sidecar) -> None:
    async with Dedup(sidecar.url, timeout=10, max_result=4 * 1024 * 1024) as dedup:
        claims = await dedup.claim_many([f"key-{n}" for n in range(40)])
        await asyncio.gather(*(claim.complete("x" * 200_000) for claim in claims))
        again = await dedup.claim_many([f"key-{n}" for n in range(40)])
        assert {len(claim.result) for claim in again} == {200_000}


@pytest.mark.parametrize("size", [300_000, 2_000_000])
async def test_a_result_beyond_the_sidecars_limits_is_refused_alone(sidecar: Sidecar, size: int) -> None:
    """More than its `max_result`, more than a frame: either way the claim stays live."""
    async with Dedup(sidecar.url, timeout=10, max_result=4 * 1024 * 1024) as dedup:
        claim, other = await dedup.claim_many(["key", "other"])
        answers = await asyncio.gather(
            claim.complete("x" * size), other.complete("y"), return_exceptions=True
        )
        assert isinstance(answers[0], ResultTooLargeError)
        assert answers[1] is None
        await claim.complete("less")
        assert (await dedup.claim("key")).result == "less"


async def test_namespaces_degrade_each_by_its_own_policy(outage: tuple[RedisServer, Sidecar]) -> None:
    server, sidecar = outage
    events: list[Any] = []
    async with (
        Dedup(sidecar.url, namespace="local", timeout=5, on_event=events.append) as local,
        Dedup(sidecar.url, namespace="local", timeout=5) as other,
        Dedup(sidecar.url, namespace="strict", timeout=1) as strict,
    ):
        held = await local.claim("held")
        server.kill()
        with pytest.raises(UnavailableError):
            await strict.claim("key")
        claim = await local.claim("key")
        assert claim.acquired
        assert claim.degraded
        assert (await other.claim("key")).outcome is Outcome.IN_PROGRESS, "one memory for the whole host"
        assert (await other.claim("held")).outcome is Outcome.IN_PROGRESS
        await held.complete("kept")
        await claim.complete("done")
        assert (await other.claim("key")).result == "done"
        machine = local.machine("order", initial="new", transitions={"new": ("paid",), "paid": ()})
        move = await machine.transition("7", to="paid")
        assert (move.outcome, move.degraded) == (TransitionOutcome.CHANGED, True)
        assert local.breaker is BreakerState.CLOSED, "the sidecar itself is there"
        assert not [event for event in events if isinstance(event, Degraded)]


async def test_a_refusal_by_the_sidecars_policy_is_not_asked_of_the_clients(
    outage: tuple[RedisServer, Sidecar],
) -> None:
    """The client's LocalLRU granted what the sidecar had refused, so each process of the host had the key."""
    server, sidecar = outage
    async with Dedup(sidecar.url, namespace="strict", timeout=5, on_unavailable=LocalLRU()) as dedup:
        held, ledger = await dedup.claim("held"), dedup.ledger("done", window=timedelta(days=1), capacity=100)
        later = await dedup.claim("later")
        await ledger.first("id")
        server.kill()
        for ask in (
            lambda: dedup.claim("key"),
            lambda: asyncio.gather(dedup.claim("two"), dedup.claim("two")),
            lambda: dedup.tokens.issue(),
            lambda: ledger.first("other"),
            held.complete,
        ):
            with pytest.raises(UnavailableError) as refused:
                await ask()
            assert refused.value.retry_after == 7.0
        await later.settlement.free(after=1.0)
        with pytest.raises(UnavailableError):
            await dedup.claim("later")
        assert dedup.breaker is BreakerState.CLOSED


async def test_ids_that_the_sidecar_remembered_in_an_outage_get_into_the_store(
    outage: tuple[RedisServer, Sidecar],
) -> None:
    """By `first`, and by a claim with `remember=`: the sidecar's policy is told the ids, not their digests alone.

    One ledger was opened before the outage, and the sidecar founds the other one itself.
    """
    server, sidecar = outage
    settings: dict[str, Any] = {"window": 3600.0, "capacity": 1000}
    async with (
        Dedup(sidecar.url, namespace="local", timeout=5) as dedup,
        Dedup(server.url, namespace="local", timeout=1) as direct,
    ):
        known, unknown = [dedup.ledger(name, **settings) for name in ("known", "unknown")]
        await known.open()
        server.kill()
        held = []
        for ledger in (known, unknown):
            assert [await ledger.first("id"), await ledger.first("id")] == [True, False]
            claim = await dedup.claim(f"{ledger.name}:done", remember=ledger)
            assert (claim.acquired, claim.degraded) == (True, True)
            await claim.complete("done")
            assert (await dedup.claim(claim.key, remember=ledger)).result == "done"
            held.append(await dedup.claim(f"{ledger.name}:held", remember=ledger))
        server.start()
        for ledger, claim in zip((known, unknown), held, strict=True):
            there = direct.ledger(ledger.name, **settings)
            ids = ["id", f"{ledger.name}:done"]

            async def adopted(there: Ledger = there, ids: list[str] = ids) -> bool:
                try:
                    return all([await there.seen(each) for each in ids])
                except UnavailableError:
                    return False

            await wait_until(adopted, description="the sidecar has put them there")
            await claim.complete()

            async def told(there: Ledger = there, claim: Claim = claim) -> bool:
                return (await direct.claim(claim.key, remember=there)).outcome is Outcome.SUCCEEDED

            # Where its record was on its way at that moment, the success follows it.
            await wait_until(told, description="the sidecar has told of the success")
            assert await there.first_many([*ids, claim.key]) == [False] * 3


async def test_records_without_a_deadline_get_into_the_store_after_an_outage(
    server: RedisServer, sidecar: Sidecar
) -> None:
    """A released key and a machine have no deadline, and what is left of it was refused, with the whole batch."""
    policy = LocalLRU()
    direct = Dedup(server.url, namespace="t", timeout=5)
    async with direct, Dedup(sidecar.url, namespace="t", timeout=5, on_unavailable=policy) as behind:
        orders = behind.machine("order", initial="new", transitions={"new": ("paid",), "paid": ()})
        sidecar.end()
        await (await behind.claim("completed")).complete("done")
        await (await behind.claim("released")).release()
        await behind.claim("idle", lease=0.001)
        assert (await orders.transition("42", to="paid")).degraded
        sidecar.start()
        await wait_until(lambda: policy.lines == 0, description="the store has every record")
        assert (await direct.claim("completed")).result == "done"
        assert [(await direct.claim(key)).attempt for key in ("released", "idle")] == [2, 2]
        assert await orders.get("42") == ("paid", 1)


async def test_a_waiter_of_a_degraded_claim_is_answered(outage: tuple[RedisServer, Sidecar]) -> None:
    server, sidecar = outage
    async with Dedup(sidecar.url, namespace="local", timeout=5) as dedup:
        server.kill()
        claim = await dedup.claim("key", lease=60)
        waiting = asyncio.create_task(dedup.claim("key", wait=60))
        await asyncio.sleep(0)
        await claim.complete("told")
        assert (await waiting).result == "told"


async def test_a_killed_sidecar_is_a_clear_error_and_what_it_said_stays_true(
    server: RedisServer, sidecar: Sidecar
) -> None:
    """Under load, kill -9, again and again: each key has one owner, and every completion stands."""
    errors: Counter[str] = Counter()
    completed: dict[str, int] = {}
    owners: dict[str, list[str]] = {}
    stopping = False

    async with Dedup(sidecar.url, namespace="t", timeout=1.0, lease=120) as dedup:

        async def worker(n: int) -> None:
            step = 0
            while not stopping:
                key = f"{step}-{n % 8}"  # four workers want each key
                try:
                    claim = await dedup.claim(key, owner=f"{n}")
                    if claim.acquired:
                        owners.setdefault(key, []).append(claim.owner)
                        await claim.complete({"by": n})
                        completed[key] = n
                    elif claim.outcome is Outcome.IN_PROGRESS:
                        await asyncio.sleep(0)
                        continue
                except UnavailableError as error:
                    errors[str(error).partition(" (")[0]] += 1
                    await asyncio.sleep(0)
                    continue
                step += 1

        workers = [asyncio.create_task(worker(n)) for n in range(32)]
        for _ in range(2):
            reached = len(completed) + 100
            await wait_until(lambda reached=reached: len(completed) >= reached, description="work goes on")
            sidecar.kill()
            met = errors.total()
            await wait_until(lambda met=met: errors.total() > met, description="callers are told")
            sidecar.start()
        reached = len(completed) + 100
        await wait_until(lambda: len(completed) >= reached, description="they recover by themselves")
        stopping = True
        await asyncio.gather(*workers)
        assert all("the sidecar at" in text or "the store" in text for text in errors), errors
        assert all(len(set(names)) == 1 for names in owners.values())
    async with Dedup(server.url, namespace="t", timeout=5) as direct:
        for key, n in completed.items():
            assert (await direct.claim(key)).result == {"by": n}


async def test_a_sidecar_that_is_told_to_stop_answers_what_it_took(
    server: RedisServer, sidecar: Sidecar
) -> None:
    """SIGTERM and a new one: callers may see an outage between the two, never another answer."""
    async with Dedup(sidecar.url, namespace="t", timeout=2.0, on_unavailable=LocalLRU()) as dedup:
        tasks = [asyncio.create_task(dedup.claim(f"key-{n}")) for n in range(2000)]
        await asyncio.sleep(0)
        await asyncio.to_thread(sidecar.end)
        claims = await asyncio.gather(*tasks)
        assert all(claim.acquired for claim in claims)
        sidecar.start()

        async def back() -> bool:
            try:
                await dedup.forget("fresh")
            except UnavailableError:  # not heard of yet: what only the sidecar can know, nobody answers
                return False
            return not (await dedup.claim("fresh")).degraded

        await wait_until(lambda: dedup.breaker is BreakerState.CLOSED, description="it is seen to be back")
        await wait_until(back, description="it answers")


async def test_a_frozen_sidecar_ends_at_the_deadline_and_opens_the_breaker(sidecar: Sidecar) -> None:
    async with Dedup(sidecar.url, timeout=0.3) as dedup:
        assert (await dedup.claim("key")).acquired
        sidecar.freeze()
        for _ in range(3):
            with pytest.raises(UnavailableError):
                await dedup.claim("other")
        assert dedup.breaker is BreakerState.OPEN
        sidecar.thaw()
        await wait_until(lambda: dedup.breaker is BreakerState.CLOSED, description="probes see it back")
        assert (await dedup.claim("yet another")).acquired


async def test_a_listener_goes_on_after_a_restart(sidecar: Sidecar) -> None:
    """The news are missed, not the settling: the subscription comes again, and everybody looks."""
    async with Dedup(sidecar.url, timeout=2) as one, Dedup(sidecar.url, timeout=2) as other:
        claim = await one.claim("key", lease=120)
        waiting = asyncio.create_task(other.claim("key", wait=60))
        await wait_until(lambda: other.gate.connection.wakeups.waiting, description="it waits")
        sidecar.kill()
        sidecar.start()
        with contextlib.suppress(UnavailableError):
            await one.claim("reconnects")
        await claim.complete("late")
        assert (await waiting).result == "late"


async def test_who_listens_twice_is_told_once(server: RedisServer, sidecar: Sidecar) -> None:
    """Each FD.LISTEN added a listener, without bound, and each of them sent the news."""
    reader, writer = await asyncio.open_unix_connection(sidecar.path)
    writer.write(pack("FD.LISTEN") * 3)
    assert [await reader.readline() for _ in range(3)] == [b"+OK\r\n"] * 3
    with server.client() as raw:
        for key in (b"t:=first", b"t:=last"):
            raw.publish(CHANNEL, key)
    told = b""
    async with asyncio.timeout(30):
        while b"last" not in told:
            told += await reader.readline()
    assert told.count(b"first") == 1
    writer.close()
    await writer.wait_closed()


async def test_what_no_store_sends_is_refused(sidecar: Sidecar) -> None:
    reader, writer = await asyncio.open_unix_connection(sidecar.path)
    for words in (
        ["FD.RUN"],
        ["FD.RUN", "claim", "2", "t:=a"],
        ["FD.RUN", "claim", "0", "t:=a"],
        ["FD.RUN", "steal", "1", "t:=a"],
        ["FD.RUN", "read", "1", "no key of ours"],
        ["FD.RUN", "read", "1", f"{'x' * 65}:=a"],
        ["FD.RUN", "release", "1", "t:=a", "x"],
        ["FD.STORE", "1"],
    ):
        writer.write(pack(*words))
        assert (await reader.readline()).startswith(b"-ERR "), words
    writer.write(pack("PING"))
    assert await reader.readline() == b"+PONG\r\n"
    writer.close()
    await writer.wait_closed()


async def test_one_clients_batches_do_not_starve_another(sidecar: Sidecar) -> None:
    """A flood of full batches: each counts as its operations, so it is read piece by piece."""
    reader, writer = await asyncio.open_unix_connection(sidecar.path)
    flood = b"".join(
        pack("FD.RUN", "read", 256, *[f"t:={n}-{key}" for key in range(256)]) for n in range(200)
    )
    writer.write(flood)
    async with Dedup(sidecar.url, timeout=5) as dedup:
        loop = asyncio.get_running_loop()
        longest = 0.0
        for n in range(20):
            started = loop.time()
            assert (await dedup.claim(f"key-{n}")).acquired
            longest = max(longest, loop.time() - started)
    assert longest < 1.0
    writer.write(pack("PING"))
    while not (await reader.readuntil(b"\n")).startswith(b"+PONG"):
        pass
    writer.close()
    await writer.wait_closed()


async def test_a_client_that_does_not_read_its_news_is_told_that_it_missed_some() -> None:
    got: list[bytes] = []
    reads = False

    def push(message: bytes) -> bool:
        if reads:
            got.append(message)
        return reads

    ear = Ear(push)
    for _ in range(1000):
        ear.hear(b"t:=key")
    reads = True
    await wait_until(lambda: got, description="it is told")
    ear.hear(b"t:=key")
    assert got == [encode([b"freed", None]), encode([b"freed", b"t:=key"])]
