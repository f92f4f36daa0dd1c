"""A ledger gets another capacity while clients of both capacities use it: no id is new again, none is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import orjson
import pytest

from fastdedup import ConfigError, Dedup, Ledger, LocalLRU, UnavailableError
from fastdedup.kernel.codes import Code
from fastdedup.kernel.owners import owner_field
from fastdedup.kernel.replies import StoredForm
from fastdedup.ledger.ids import nonce_of
from fastdedup.ledger.operations import FirstOp, ForgetIdOp, LedgerOp
from fastdedup.ledger.orphan_ids import OrphanIds
from fastdedup.ledger.views import PACE, LedgerView

from ..servers import RedisServer
from ..stores import Backend, on_stores
from ..waiting import wait_until

OLD, NEW = 500, 3000
# One of each kind: memory, one server, many nodes, and another process in between.
stores = on_stores("memory", "redis", "cluster", "sidecar")


@pytest.fixture(autouse=True)
def pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """All is a hundred times as fast."""
    for name, value in {"look_again": 0.1, "rely_ms": 200, "skew_ms": 50, "announce_ms": 300}.items():
        monkeypatch.setattr(PACE, name, value)


def ledger_of(dedup: Dedup, capacity: int = OLD, name: str = "orders", **settings: Any) -> Ledger:
    return dedup.ledger(name, **{"window": 3600.0, "capacity": capacity, **settings})


@asynccontextmanager
async def two_gates(backend: Backend) -> AsyncIterator[tuple[Dedup, Dedup]]:
    """Of two processes; of one where the store is in it."""
    async with backend.make() as one:
        if backend.raw is None:
            yield one, one
            return
        async with backend.make() as other:
            yield one, other


async def switched(ledger: Ledger, capacity: int = NEW) -> None:
    async def is_done() -> bool:
        return (await ledger.resize(capacity=capacity)).switch_in == 0

    await wait_until(is_done, description="the switch")


@pytest.mark.parametrize("dense", [False, True], ids=["usual", "dense"])
@stores
async def test_ids_are_first_once_while_it_is_resized(backend: Backend, dense: bool) -> None:
    """Four callers of the old capacity and the new one, before, in and after the switch."""
    told: Counter[int] = Counter()
    asked: set[int] = set()
    dice = Random(5)
    async with two_gates(backend) as (one, other):
        ledgers = [ledger_of(gate, dense=dense) for gate in (one, other)]
        for ledger in ledgers:
            await ledger.open()
        ends = False

        async def ask(ledger: Ledger, first: int) -> None:
            latest = first
            while not ends:
                latest += 7
                ids = list({latest, *(dice.randrange(max(latest - 300, 0), latest + 1) for _ in range(10))})
                asked.update(ids)
                if dice.random() < 0.5:
                    told.update([each for each in ids[:2] if await ledger.first(each)])
                    ids = ids[2:]
                answers = await ledger.first_many(ids)
                told.update(each for each, new in zip(ids, answers, strict=True) if new)

        callers = [asyncio.create_task(ask(ledger, n)) for n, ledger in enumerate(ledgers * 2)]
        await ledgers[0].resize(capacity=NEW)
        callers.append(asyncio.create_task(ask(ledger_of(other, NEW, dense=dense), 0)))
        await switched(ledgers[0])
        before = len(asked)
        # A caller waits up to four timeouts for an id that another caller's process has just remembered.
        await wait_until(
            lambda: len(asked) > before + 200, description="more ids by both forms", deadline=60.0
        )
        ends = True
        await asyncio.gather(*callers)
        assert set(told.values()) == {1}
        assert asked == told.keys()
        ids = sorted(asked)
        for at in range(0, len(ids), 50):  # each well within `rely_ms`, also on a machine that is busy
            assert not any(await ledgers[0].first_many(ids[at : at + 50]))
        assert (await ledgers[0].stats()).ids == pytest.approx(len(asked), rel=0.02)


@stores
async def test_retries_and_removals_go_over_the_switch(backend: Backend) -> None:
    async with two_gates(backend) as (one, other):
        ledger, theirs = ledger_of(one), ledger_of(other, NEW)
        assert all(await ledger.first_many(range(40), owner="me"))
        await switched(ledger)
        for _ in range(2):
            assert all(await theirs.first_many(range(60), owner="me"))
        assert not any(await ledger.first_many(range(60), owner="you"))
        assert await ledger.first(7, owner="me")
        assert [await theirs.seen(each) for each in (7, 50, 70)] == [True, True, False]
        assert [await ledger.forget(each) for each in (7, 50, 70)] == [True, True, False]
        assert await theirs.first_many([7, 50]) == [True, True]


@stores
async def test_what_was_given_up_before_the_switch_is_new(dedup: Dedup) -> None:
    """Nobody was told; the next call must not wait until it is taken back."""
    ledger = ledger_of(dedup)
    assert await ledger.first("id", owner="lost")
    assert ledger.view is not None
    wire, entry = ledger.view.addresses.entry(b"id", nonce("lost"))
    op = FirstOp(wire, entry, ledger.view.terms, b"id")
    await switched(ledger)
    OrphanIds(dedup.gate.connection.orphans).add(op)
    assert await ledger.first("id")
    assert not await ledger.first("id")


@stores
async def test_an_id_that_may_be_undone_is_no_duplicate_after_the_switch(backend: Backend) -> None:
    """Another process has got no reply, and takes the id back: only then is it known who is the first."""
    async with backend.make(timeout=2.0) as dedup:
        ledger = await ledger_of(dedup).open()
        assert ledger.view is not None
        theirs = FirstOp(*ledger.view.addresses.entry(b"id", nonce("theirs")), ledger.view.terms, b"id")
        assert await dedup.gate.run(theirs) is Code.OK
        await switched(ledger)
        asked = asyncio.create_task(ledger.first("id"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(asked), 0.2)
        assert await dedup.gate.run(ForgetIdOp(theirs.wire, theirs.entry, theirs.terms)) is Code.OK
        assert await asked


@stores
async def test_a_node_whose_clock_is_ahead_is_believed(dedup: Dedup) -> None:
    """The ledger's own node says that the switch is to come, the bucket's node that it was."""
    ledger = ledger_of(dedup)
    assert await ledger.first("id")
    await switched(ledger)
    view = ledger.view
    assert view is not None
    whole = view.whole
    for switch in (False, True):
        found = StoredForm(view.text, whole.switch_ms - 20)
        now = asyncio.get_running_loop().time()
        ledger.form.view = LedgerView(ledger.store_key, whole, found, "set", now, switch)
        ledger.view.terms.until_ms = min(ledger.view.terms.until_ms, whole.switch_ms - 1 + 10**6 * switch)
        assert not await ledger.first("id")
    assert await ledger.first("new")


@stores
async def test_the_former_form_is_dropped_after_a_window(backend: Backend) -> None:
    async with two_gates(backend) as (one, other):
        ledger, theirs = ledger_of(one, window=0.8), ledger_of(other, NEW, window=0.8)
        assert await ledger.first("early")
        await switched(ledger)

        async def is_over() -> bool:
            return (await ledger.resize(capacity=NEW)).over_in == 0

        assert await ledger.first("late")
        with pytest.raises(ConfigError, match="is being resized to 3000"):
            await theirs.resize(capacity=9000)
        await wait_until(is_over, description="a window has passed")
        assert await theirs.first("early")
        assert ledger.view is not None
        assert ledger.view.former is None
        assert orjson.loads(ledger.view.text)["present"]["capacities"] == [OLD]
        assert (await ledger.resize(capacity=9000)).former_capacity == NEW


@stores
async def test_a_version_that_knows_no_resizing_is_refused(dedup: Dedup) -> None:
    """It looks for the capacity at the top of the text, and says that a newer version founded the ledger."""
    ledger = ledger_of(dedup)
    progress = await ledger.resize(capacity=NEW)
    assert (progress.capacity, progress.former_capacity) == (NEW, OLD)
    assert 0 < progress.switch_in <= 0.3 < 3600 < progress.over_in
    assert ledger.view is not None
    assert "capacity" not in orjson.loads(ledger.view.text)
    assert (await ledger.resize(capacity=NEW)).capacity == NEW
    for capacity in (OLD, NEW):
        await ledger_of(dedup, capacity).open()
    with pytest.raises(ConfigError, match=r"capacity=3000.*resize\(\)"):
        await ledger_of(dedup, 700).open()


@stores
async def test_a_late_announcement_is_not_made(dedup: Dedup) -> None:
    """Its switch would come before all clients know of it."""
    ledger = ledger_of(dedup)
    await ledger.open()
    view = ledger.view
    assert view is not None
    text = view.whole.resized(NEW, view.now_ms + 500).text()
    late = LedgerOp(ledger.store_key, text, 60_000, view.text, view.now_ms - 5000)
    assert await dedup.gate.run(late) is Code.STALE
    assert (await ledger.resize(capacity=OLD)).former_capacity == 0


@stores
async def test_claims_wait_until_it_is_over(dedup: Dedup, backend: Backend) -> None:
    if backend.name == "sidecar":
        return  # such claims do not go through it
    ledger = ledger_of(dedup)
    await ledger.resize(capacity=NEW)
    with pytest.raises(ConfigError, match="takes no claims"):
        await dedup.claim("key", remember=ledger)


async def test_only_the_store_resizes() -> None:
    async with Dedup("unix:///nowhere/redis.sock", on_unavailable=LocalLRU(), timeout=0.1) as dedup:
        ledger = ledger_of(dedup)
        assert await ledger.first("id")
        with pytest.raises(UnavailableError, match="the store alone"):
            await ledger.resize(capacity=NEW)


async def test_an_outage_after_the_switch_is_bridged(own_redis: RedisServer) -> None:
    """What LocalLRU remembered comes into the present form."""
    policy = LocalLRU()
    ours = Dedup(own_redis.url, namespace="t", timeout=0.3, on_unavailable=policy)
    async with ours as dedup, Dedup(own_redis.url, namespace="t", timeout=5) as theirs:
        ledger = ledger_of(dedup)
        assert await ledger.first("early")
        await switched(ledger)
        assert await ledger.first("late")
        with own_redis.frozen():
            assert not await ledger.first("late")
            assert await ledger.first("in the outage")
            assert not await ledger.first("in the outage")
        await wait_until(lambda: policy.lines == 0, description="the journal is in the store")
        answers = await ledger_of(theirs, NEW).first_many(["early", "late", "in the outage", "new"])
        assert answers == [False, False, False, True]


def nonce(owner: str) -> bytes:
    return nonce_of(owner_field(owner))
