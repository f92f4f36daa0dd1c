"""`replicas=n`: what too few replicas confirmed is marked; and what may be lost without it, measured."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fastdedup import Outcome
from fastdedup.kernel.codes import Code
from fastdedup.kernel.operations import (
    AdoptOp,
    ClaimOp,
    ForgetOp,
    IssueOp,
    Op,
    ReadOp,
    ReleaseOp,
    RenewOp,
    Reply,
    SettleOp,
    TouchOp,
    Verdict,
)
from fastdedup.kernel.replies import TransitionReply
from fastdedup.kernel.terms import Mode, terms
from fastdedup.kernel.verbs import Verb
from fastdedup.stores import make_store
from fastdedup.stores.base import DirectStore, Store

from ..idle import IdleTime
from ..ops import move, stored
from ..topologies import HOST, ClusterGroup, Pair, SentinelGroup, until
from ..waiting import wait_until

TERMS = terms(Mode.CLAIM, 30_000, 60_000, False)
TIMEOUT = 0.75
CLAIMS = 300


@asynccontextmanager
async def store_at(url: str, replicas: int, timeout: float = TIMEOUT) -> AsyncIterator[Store]:
    store = make_store(url, timeout, replicas=replicas)
    await store.open()
    try:
        yield store
    finally:
        await store.aclose()


OWNER = b"\0" + b"o" * 10
KEY, TOKEN = b"t:=key", b"t:!token"
WRITES: dict[str, Callable[[], Op]] = {
    "claim": lambda: ClaimOp(KEY, TERMS, OWNER, None),
    "renew": lambda: RenewOp(KEY, OWNER, 0, 30_000, 60_000),
    "touch": lambda: TouchOp(KEY, OWNER, 0, 60_000),
    "touch for less": lambda: TouchOp(KEY, OWNER, 0, 1),
    "complete": lambda: SettleOp(KEY, OWNER, 0, succeeded=True, keep_ms=60_000, payload=b"1"),
    "fail": lambda: SettleOp(KEY, OWNER, 0, succeeded=False, keep_ms=60_000, payload=b"1"),
    "release": lambda: ReleaseOp(KEY, OWNER, 0),
    "forget": lambda: ForgetOp(KEY),
    "issue": lambda: IssueOp(TOKEN, OWNER, None, 60_000),
    "consume": lambda: ClaimOp(TOKEN, terms(Mode.CONSUME, 30_000, 60_000, False), OWNER, None),
    "release of a consumed token": lambda: ReleaseOp(TOKEN, OWNER, 0, consumed=True),
    "transition": lambda: move(b"t:~machine", "b", "a"),
    "adopt": lambda: AdoptOp(KEY, stored("S", OWNER), None),
}
"""Each operation that writes, as one owner sends it."""
EACH_WRITE = (
    *("claim", "renew", "touch", "touch for less", "release", "claim", "complete", "forget", "claim", "fail"),
    *("issue", "consume", "release of a consumed token", "transition"),
)
"""All but an adoption, which is never marked, in an order in which all take effect."""


async def claim(store: Store, *keys: str, owner: bytes = b"o") -> list[Verdict]:
    ops = [ClaimOp(b"t:=" + key.encode(), TERMS, b"\1" + owner, None) for key in keys]
    replies = await store.execute(Verb.CLAIM, ops)
    assert all(isinstance(reply, Verdict) for reply in replies)
    return list(replies)  # type: ignore[arg-type]


def waits(pair: Pair) -> int:
    """Return how often the primary was told to wait for its replicas."""
    told = pair.primary.ask("INFO", "commandstats")
    return int(told.get("cmdstat_wait", {"calls": 0})["calls"])


def is_done(reply: Any) -> bool:
    code = getattr(reply, "code", reply)
    return code in (Code.OK, Code.UNCONFIRMED) or getattr(reply, "outcome", None) is Outcome.ACQUIRED


def is_short(reply: Reply) -> bool:
    """True if a reply is marked: too few replicas have confirmed what was done."""
    return (
        reply.underreplicated if isinstance(reply, Verdict | TransitionReply) else reply is Code.UNCONFIRMED
    )


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("direct", [False, True])
async def test_every_write_says_whether_replicas_confirmed_it(pair: Pair, cut: bool, direct: bool) -> None:
    """All verbs, in step and with the link cut; the long way and the direct one."""
    if cut:
        pair.cut()
    async with store_at(pair.url, 1, timeout=0.15 if cut else 2.0) as store:
        for name in EACH_WRITE:
            op = WRITES[name]()
            reply = await (begun(store, op) if direct and op.verb is not Verb.FORGET else executed(store, op))
            assert (is_done(reply), is_short(reply)) == (True, cut), name


async def executed(store: Store, op: Op) -> Reply:
    [reply] = await store.execute(op.verb, [op])
    return reply


async def begun(store: Store, op: Op) -> Reply:
    assert isinstance(store, DirectStore)
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    assert store.begin(op.verb, [op], done.set_result)
    [reply] = await done
    return reply


async def test_what_took_no_effect_is_not_marked(pair: Pair) -> None:
    """Nothing of it could be lost; and reading waits for nobody."""
    async with store_at(pair.url, 1) as store:
        await claim(store, "key")
        pair.cut()
        [other] = await claim(store, "key", owner=b"x")
        assert (other.outcome, other.underreplicated) == (Outcome.IN_PROGRESS, False)
        assert await store.execute(Verb.FORGET, [ForgetOp(b"t:=nothing")]) == [Code.ABSENT]
        before = waits(pair)
        await store.execute(Verb.READ, [ReadOp(b"t:=key")])
        assert waits(pair) == before


async def test_a_frozen_replica_is_a_shortfall_within_the_deadline(pair: Pair) -> None:
    """Redis waits 40 % of it; the claim stands."""
    async with store_at(pair.url, 1) as store:
        pair.replica.freeze()
        with IdleTime() as idle:
            [verdict] = await claim(store, "key")
        assert idle.seconds < TIMEOUT
        assert (verdict.outcome, verdict.underreplicated) == (Outcome.ACQUIRED, True)
        pair.replica.thaw()

        async def confirmed() -> bool:
            [again] = await claim(store, "key")
            assert (again.fence, again.fresh) == (verdict.fence, False)
            return not again.underreplicated

        await wait_until(confirmed, description="the replica has caught up")


async def test_more_replicas_than_there_are_is_always_a_shortfall(pair: Pair) -> None:
    async with store_at(pair.url, 2, timeout=0.3) as store:
        assert [verdict.underreplicated for verdict in await claim(store, "a", "b")] == [True, True]


async def test_a_login_that_may_not_wait_is_marked_not_refused(pair: Pair) -> None:
    """The write has been made; that nobody vouches for it is what the mark says."""
    pair.primary.ask("ACL", "SETUSER", "nowait", "on", ">pw", "~*", "&*", "+@all", "-wait")
    async with store_at(pair.url.replace("//", "//nowait:pw@"), 1) as store:
        [verdict] = await claim(store, "key")
        assert (verdict.outcome, verdict.underreplicated) == (Outcome.ACQUIRED, True)


@pytest.mark.parametrize("replicas", [0, 1])
async def test_a_failover_may_lose_what_was_acknowledged_and_replicas_tell(
    pair: Pair, replicas: int, record_property: Any
) -> None:
    """With the link cut, all of it is lost; with `replicas=1` each claim said so beforehand."""
    keys = [f"key-{number}" for number in range(CLAIMS)]
    async with store_at(pair.url, replicas) as store:
        await claim(store, "before")
        until(lambda: pair.in_step(pair.primary, 1), "the replica is in step")
        pair.cut()
        verdicts = await claim(store, *keys)
        assert {verdict.outcome for verdict in verdicts} == {Outcome.ACQUIRED}
    marked = sum(verdict.underreplicated for verdict in verdicts)
    pair.primary.kill()
    pair.replica.ask("REPLICAOF", "NO", "ONE")
    async with store_at(f"redis://{HOST}:{pair.replica.port}", 0) as store:
        lost = [verdict.outcome for verdict in await claim(store, *keys, owner=b"x")].count(Outcome.ACQUIRED)
        [kept] = await claim(store, "before", owner=b"x")
    record_property("lost", lost)
    assert kept.outcome is Outcome.IN_PROGRESS, "what was replicated is still known"
    assert (lost, marked) == (CLAIMS, CLAIMS if replicas else 0)


@pytest.mark.parametrize("make", [SentinelGroup, ClusterGroup])
async def test_groups_confirm_and_mark_too(make: type[SentinelGroup | ClusterGroup]) -> None:
    """Behind Sentinel and on a Cluster, where each primary waits for its own replicas."""
    group = make()
    try:
        group.start()
        keys = [f"key-{number}" for number in range(60)]
        async with store_at(group.url, 1, timeout=1.0) as store:
            await claim(store, *keys)
            until(lambda: all(group.in_step(each, 1) for each in group.primaries()), "replicas are in step")
            assert {verdict.underreplicated for verdict in await claim(store, *keys)} == {False}
        async with store_at(group.url, 3, timeout=0.5) as store:
            assert {verdict.underreplicated for verdict in await claim(store, *keys)} == {True}
    finally:
        group.stop()


async def test_while_replicas_are_missing_batches_do_not_wait_in_turn(pair: Pair) -> None:
    """WAIT holds up its connection: one of many batches tries it now and then, the others just count."""
    async with store_at(pair.url, 1) as store:
        pair.cut()
        [first] = await claim(store, "first")
        assert first.underreplicated
        with IdleTime() as idle:
            batches = await asyncio.gather(*(claim(store, f"key-{number}") for number in range(50)))
        assert idle.seconds < TIMEOUT, "all of them within one deadline"
        assert all(verdict.underreplicated for batch in batches for verdict in batch)
