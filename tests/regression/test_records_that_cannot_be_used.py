"""A record that is malformed, huge or large is a matter of its own key alone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import pytest
import redis

from fastdedup import Dedup, ForeignRecordError, Outcome, UnavailableError
from fastdedup.kernel.codes import Code
from fastdedup.kernel.keyspace import Keyspace, Kind
from fastdedup.kernel.operations import (
    AdoptOp,
    ClaimOp,
    ForgetOp,
    IssueOp,
    Op,
    ReadOp,
    ReleaseOp,
    RenewOp,
    SettleOp,
    Verdict,
)
from fastdedup.kernel.owners import draw_owner
from fastdedup.kernel.records import MOST_RESULT, Stored, decode, encode, is_record, read_record
from fastdedup.kernel.replies import Adopted, TransitionReply
from fastdedup.kernel.terms import Mode, terms
from fastdedup.kernel.verbs import Verb
from fastdedup.sidecar.namespaces import RawCodec
from fastdedup.stores.memory import MemoryStore
from fastdedup.stores.redis import connection
from fastdedup.stores.redis.scripts import MAX_RECORD, script_text
from fastdedup.stores.redis.verbs import load_scripts

from ..fixtures import async_fixture
from ..ops import move, stored
from ..servers import RedisServer
from ..waiting import wait_until

# A malformed record is a fault of its own key: it stopped the whole batch, and with it everybody's claims.


NOW_MS = 1_700_000_000_000
MINUTE = 60_000
OWNER = b"\0" + b"0123456789"
PRINT = bytes(range(16))
GROUP = 50
"""Poisoned keys of one batch; as many healthy ones stand between them."""


def build(state: bytes, tail: bytes = OWNER, fence: int = NOW_MS * 1000, ends: int = 2 * NOW_MS) -> bytes:
    return b"\1" + state + fence.to_bytes(7, "big") + ends.to_bytes(6, "big") + b"\0\1" + tail


REAL = [
    build(b"P"),
    build(b"W", b"\x85alice" + PRINT),
    build(b"S", OWNER + b'{"a":1}'),
    build(b"I", b"\xc0" + b"0123456789" + PRINT, ends=0),
    b"\1M" + (7).to_bytes(7, "big") + b"0123456789" + "bezahlt-ü".encode(),
]
FIELDS = [(2, 9), (9, 15), (15, 17), (17, 18), (0, 1), (1, 2)]
EDGES = (b"\x00", b"\x01", b"\x07", b"\x08", b"\x1e", b"\x1f", b"\x20", b"\x7f", b"\x80", b"\xff")


def malformed() -> list[bytes]:
    """Bit flips of real records, fields at their edges, records cut short, and random bytes."""
    draw = random.Random(12)
    flips = [
        record[:at] + bytes((record[at] ^ (1 << bit),)) + record[at + 1 :]
        for record in REAL
        for at in range(len(record))
        for bit in range(8)
    ]
    edges = [
        record[:first] + edge + rest * (last - first - 1) + record[last:]
        for record in REAL
        for first, last in FIELDS
        for edge in EDGES
        for rest in (b"\x00", b"\xff")
    ]
    cut = [record[:size] for record in REAL for size in range(len(record))]
    noise = [draw.randbytes(draw.randrange(60)) for _ in range(100)]
    texts = [REAL[4][:19] + name for name in (b"\xff", b"\xc3", b"\xed\xa0\x80", b"x" * 64, b"x" * 65)]
    headed = [REAL[0][:2] + draw.randbytes(40) for _ in range(100)] + [
        REAL[4][:2] + draw.randbytes(30) for _ in range(50)
    ]
    return [
        *flips,
        *edges,
        *cut,
        *noise,
        *texts,
        *headed,
        b"5",
        b"\1M" + b"\xff" * 7 + b"c" * 10 + b"\xff\xfe",
    ]


OTHERS: list[Callable[[Any, bytes], Any]] = [
    lambda raw, key: raw.lpush(key, "a"),
    lambda raw, key: raw.sadd(key, "a"),
    lambda raw, key: raw.hset(key, "a", "b"),
    lambda raw, key: raw.zadd(key, {"a": 1}),
    lambda raw, key: raw.xadd(key, {"a": 1}),
    lambda raw, key: raw.pfadd(key, "a"),
]


def plant(raw: redis.Redis, values: Sequence[bytes], keys: Sequence[bytes]) -> None:
    """Write the values, and one of each other type of Redis."""
    pipe = raw.pipeline(transaction=False)
    for key, value in zip(keys, values, strict=False):
        pipe.set(key, value)
    for key, write in zip(keys[len(values) :], OTHERS, strict=True):
        write(pipe, key)
    for key in keys:
        pipe.pexpire(key, MINUTE)
    pipe.execute()


# An operation of each verb, and whether a healthy key's reply is as it should be.


def settle(wire: bytes) -> Op:
    return SettleOp(wire, OWNER, 0, succeeded=True, keep_ms=MINUTE, payload=b"1")


def claim(mode: Mode) -> Callable[[bytes], Op]:
    return lambda wire: ClaimOp(wire, terms(mode, MINUTE, MINUTE, False), draw_owner(), PRINT)


MAKE: dict[str, Callable[[bytes], Op]] = {
    "claim": claim(Mode.CLAIM),
    "redeem": claim(Mode.REDEEM),
    "consume": claim(Mode.CONSUME),
    "settle": settle,
    "release": lambda wire: ReleaseOp(wire, OWNER, 0, consumed=True),
    "renew": lambda wire: RenewOp(wire, OWNER, 0, MINUTE, MINUTE),
    "issue": lambda wire: IssueOp(wire, OWNER, None, MINUTE),
    "transition": lambda wire: move(wire, "b", "a", change=draw_owner()[1:]),
    "read": ReadOp,
    "forget": ForgetOp,
    "adopt": lambda wire: AdoptOp(wire, stored("S", OWNER), None),
}
HELD = ("settle", "release", "renew", "read", "forget")
"""What is done to keys that OWNER holds; to all others' keys nothing was done before."""


def fine(name: str, reply: object) -> bool:
    if name == "claim":
        return isinstance(reply, Verdict) and reply.outcome.value == "acquired"
    if name in ("redeem", "consume"):
        return isinstance(reply, Verdict) and reply.outcome.value == "unknown"
    if isinstance(reply, TransitionReply | Adopted):
        return reply.code is Code.OK
    return isinstance(reply, Stored) if name == "read" else reply is Code.OK


def groups(values: Sequence[bytes]) -> Iterable[Sequence[bytes]]:
    return (values[at : at + GROUP] for at in range(0, len(values), GROUP))


dedup = async_fixture(lambda redis_url: Dedup(redis_url, namespace="t"))


@pytest.mark.no_cover
@pytest.mark.parametrize("name", MAKE)
async def test_no_neighbour_of_a_malformed_record_fails(
    name: str, redis_url: str, redis_server: RedisServer
) -> None:
    """Of any verb: healthy keys are done, before and behind it; its own reply is never an error of the batch."""
    make = MAKE[name]
    async with Dedup(redis_url, namespace="t", timeout=30.0) as dedup:
        store = dedup.gate.connection.store
        for number, values in enumerate(groups(malformed())):
            with redis_server.client() as raw:
                poisoned = [b"t:=bad-%d-%d" % (number, place) for place in range(len(values) + len(OTHERS))]
                plant(raw, values, poisoned)
            healthy = [b"t:=good-%d-%d" % (number, place) for place in range(len(poisoned))]
            if name in HELD:
                held = terms(Mode.CLAIM, MINUTE, MINUTE, False)
                await store.execute(Verb.CLAIM, [ClaimOp(wire, held, OWNER, None) for wire in healthy])
            ops = [make(wire) for pair in zip(poisoned, healthy, strict=True) for wire in pair]
            replies = await store.execute(ops[0].verb, ops)
            assert all(fine(name, reply) for reply in replies[1::2])
            assert not any(isinstance(reply, UnavailableError) for reply in replies)


@pytest.mark.no_cover
async def test_a_malformed_records_own_caller_is_told_foreign(
    redis_url: str, redis_server: RedisServer
) -> None:
    """Whatever a call does: it answers, or it raises ForeignRecordError."""
    values = malformed()[::3]
    names = [f"k{number}" for number in range(len(values) + len(OTHERS))]
    async with Dedup(redis_url, namespace="t", timeout=30.0) as dedup:
        machine = dedup.machine("m", initial="a", transitions={"a": ("b",), "b": ()})
        wires = Keyspace("t", Kind.CLAIM).wire
        machines = [Keyspace("t", Kind.MACHINE).wire(f"m/{name}") for name in names]
        with redis_server.client() as raw:
            plant(raw, values, [wires(name) for name in names])
            plant(raw, values, machines)
        answers = await asyncio.gather(
            *(dedup.claim(name, lease=60) for name in names),
            *(machine.transition(name, to="b") for name in names),
            *(machine.get(name) for name in names),
            return_exceptions=True,
        )
        answers += await asyncio.gather(*(dedup.forget(name) for name in names), return_exceptions=True)
    faults = [answer for answer in answers if isinstance(answer, BaseException)]
    assert len(faults) > len(names)
    assert {type(fault) for fault in faults} == {ForeignRecordError}


@pytest.mark.parametrize("fence", [31 << 48, 2**53 - 1, 2**56 - 1])
async def test_a_fence_that_cannot_rise_is_foreign(
    fence: int, dedup: Dedup, redis_server: RedisServer
) -> None:
    """Raising it made the script fail, for all keys of its batch."""
    with redis_server.client() as raw:
        raw.set("t:=bad", build(b"P", fence=fence, ends=1), px=MINUTE)
    bad, good = await asyncio.gather(
        dedup.claim("bad"), dedup.claim("good", lease=60), return_exceptions=True
    )
    assert isinstance(bad, ForeignRecordError)
    assert not isinstance(good, BaseException)
    assert good.acquired


@pytest.mark.parametrize("ahead", [2 * 86_400, 365 * 86_400])
async def test_adopting_refuses_a_fence_ahead_of_the_clock(ahead: int, dedup: Dedup) -> None:
    """It would stand above all that the server gives for as long."""
    first = await dedup.claim("other", lease=60)
    for store in (dedup.gate.connection.store, MemoryStore()):
        record = stored("S", OWNER, fence=first.fence + ahead * 1_000_000)
        [reply] = await store.execute(Verb.ADOPT, [AdoptOp(b"t:=k", record, None)])
        assert isinstance(reply, Adopted)
        assert reply.code is Code.FOREIGN
        assert await store.execute(Verb.READ, [ReadOp(b"t:=k")]) == [Code.ABSENT]


def test_python_and_lua_agree_on_what_is_a_record() -> None:
    """What passes can be taken apart and put together again; nothing that is malformed raises."""
    for value in malformed():
        found = read_record(value, NOW_MS)
        assert (found is Code.FOREIGN) is not is_record(value)
        if isinstance(found, Stored):
            assert len(encode(found)) == len(value)
    assert decode(REAL[1], NOW_MS).owner == b"\5alice"


@pytest.mark.no_cover
async def test_lua_takes_for_a_record_what_python_does(redis_url: str, redis_server: RedisServer) -> None:
    """Two lists of the same rules, one answer."""
    values = malformed()
    keys = [b"t:=%d" % number for number in range(len(values) + len(OTHERS))]
    async with Dedup(redis_url, namespace="t", timeout=30.0) as dedup:
        with redis_server.client() as raw:
            plant(raw, values, keys)
            script = raw.register_script(lua_that_checks())
            codes = script(keys=keys[: len(values)], args=[bytes(7), 100_000])
    assert [bool(code) for code in codes] == [is_record(value) for value in values]
    assert dedup is not None


def lua_that_checks() -> str:
    ask = "local out = {} for i, key in ipairs(KEYS) do out[i] = read(key, CLAIMS .. 'M') and 1 or 0 end return out"
    return script_text(ask)


# A huge value in one key is a fault of that key: scripts copied it, and all other claims were late.


SIZE = 300 * 1024 * 1024
HUGE = "huge"


def plant_huge(server: RedisServer, kind: Kind = Kind.CLAIM, name: str = HUGE, size: int = SIZE) -> None:
    """Make the value inside the server: over the wire it would take as long as what is tested."""
    wire = Keyspace("t", kind).wire(name)
    with server.client() as raw:
        raw.setrange(wire, 0, b"\1S" + bytes(7) + bytes(6) + b"\0\1\0" + b"0123456789")
        raw.setrange(wire, size - 1, b"x")
        raw.pexpire(wire, 600_000)


async def test_no_claim_beside_a_huge_value_fails(own_redis: RedisServer) -> None:
    """600 claims of other keys at the default deadline, and 40 of the huge one among them."""
    async with Dedup(own_redis.url, namespace="t", timeout=0.25) as dedup:
        plant_huge(own_redis)
        for turn in range(40):
            claims = [dedup.claim(f"{turn}-{number}") for number in range(15)]
            hit, *others = await asyncio.gather(dedup.claim(HUGE), *claims, return_exceptions=True)
            assert isinstance(hit, ForeignRecordError)
            faults = [other for other in others if isinstance(other, BaseException)]
            assert not faults, f"turn {turn}: {faults[0]!r}"


CALLS: dict[str, Callable[[Dedup], Awaitable[object]]] = {
    "claim": lambda dedup: dedup.claim(HUGE),
    "claim many": lambda dedup: dedup.claim_many([HUGE]),
    "get": lambda dedup: dedup.get(HUGE),
    "forget": lambda dedup: dedup.forget(HUGE),
    "lock": lambda dedup: dedup.lock(HUGE, wait=0.0).__aenter__(),
    "transition": lambda dedup: dedup.machine(
        "m", initial="a", transitions={"a": ("b",), "b": ()}
    ).transition(HUGE, to="b"),
}


@pytest.mark.parametrize("name", CALLS)
async def test_the_caller_of_a_huge_value_is_told_which_key(
    name: str, dedup: Dedup, redis_server: RedisServer
) -> None:
    for kind in Kind:
        plant_huge(redis_server, kind, f"m/{HUGE}" if kind is Kind.MACHINE else HUGE, size=1_000_000)
    with pytest.raises(ForeignRecordError, match=r"'(m/)?huge' that is larger than max_result allows"):
        await CALLS[name](dedup)


async def test_an_owner_is_told_that_its_record_has_become_huge(
    dedup: Dedup, redis_server: RedisServer
) -> None:
    claim = await dedup.claim(HUGE)
    with redis_server.client() as raw:
        raw.setrange(Keyspace("t", Kind.CLAIM).wire(HUGE), 1_000_000, b"x")
    for act in (claim.renew, claim.complete, claim.release):
        with pytest.raises(ForeignRecordError, match="'huge' that is larger"):
            await act()


@pytest.mark.parametrize(("more", "outcome"), [(0, Outcome.SUCCEEDED), (1, None)])
async def test_a_record_of_exactly_the_limit_is_read(
    more: int, outcome: Outcome | None, dedup: Dedup, redis_server: RedisServer
) -> None:
    plant_huge(redis_server, size=MAX_RECORD + more)
    if outcome is None:
        with pytest.raises(ForeignRecordError):
            await dedup.claim(HUGE)
    else:
        assert (await dedup.claim(HUGE)).outcome is outcome


async def test_a_gate_that_stores_larger_results_reads_them(dedup: Dedup, redis_server: RedisServer) -> None:
    """Its own limit, and that of the gates that share its connection."""
    plant_huge(redis_server, size=1_000_000)
    with pytest.raises(ForeignRecordError):
        await dedup.claim(HUGE)
    large = dedup.scoped("large", max_result=1_000_000)
    assert (await dedup.claim(HUGE)).outcome is Outcome.SUCCEEDED
    async with large.claim("k") as claim:
        await claim.complete("x" * 900_000)
    assert len((await large.claim("k")).result) == 900_000


async def test_the_longest_reply_has_space_for_the_largest_result(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for 255 MiB, with 4 MiB. Each try to read a larger one ended the connection, and the store seemed away."""
    size = 4 * 1024 * 1024
    monkeypatch.setattr(connection, "MAX_REPLY_BYTES", connection.MAX_REPLY_BYTES - MOST_RESULT + size)
    async with Dedup(redis_url, codec=RawCodec(), max_result=size, timeout=10.0) as dedup:
        async with dedup.claim(HUGE, owner="o" * 63, fingerprint="form") as claim:
            await claim.complete(b"x" * size)
        assert len((await dedup.claim(HUGE)).result) == size


# A batch of 256 claims brought 67 MB of results in one reply: the store seemed silent, and the breaker
# opened.


RESULT = b"r" * 250_000
KEYS = [f"large {number}" for number in range(50)]


def gate(url: str) -> Dedup:
    return Dedup(url, namespace="parts", ttl=30.0, codec=RawCodec(), timeout=10.0)


async def complete(dedup: Dedup) -> None:
    for claim in await dedup.claim_many(KEYS):
        await claim.complete(RESULT)


async def test_each_claim_gets_its_result(redis_url: str) -> None:
    """Also those beside them that are fresh, in progress, or named."""
    async with gate(redis_url) as dedup:
        await complete(dedup)
        named = [dedup.claim(key, owner="me") for key in KEYS]
        calls = [*named, *(dedup.claim(key) for key in KEYS), dedup.claim("fresh"), dedup.claim("fresh")]
        claims = await asyncio.gather(*calls)
        assert {claim.outcome for claim in claims[:100]} == {"succeeded"}
        assert all(claim.result == RESULT for claim in claims[:100])
        assert [claim.outcome for claim in claims[100:]] == ["acquired", "in_progress"]


async def test_one_call_brings_some_megabytes(redis_url: str, redis_server: RedisServer) -> None:
    async with gate(redis_url) as dedup:
        await complete(dedup)
        claims = dedup.gate.claims
        ops = [
            ClaimOp(claims.wire_of(key.encode()), dedup.gate.claim_terms, draw_owner(), None) for key in KEYS
        ]
        script = load_scripts()[Verb.CLAIM]
        with redis_server.client() as raw:
            args = script.call(ops)[1]
            reply = raw.eval(script.text, len(ops), *[op.wire for op in ops], b"\0" * 7, 1 << 20, *args)
        codes = list(reply[2::3])
        assert sum(len(record) for record in reply[3::3]) < 5_000_000
        assert codes[0] == Code.SUCCEEDED
        assert codes[-1] == Code.AGAIN


async def test_a_claim_that_was_cancelled_meanwhile_is_dropped(redis_url: str) -> None:
    async with gate(redis_url) as dedup:
        await complete(dedup)
        calls = [dedup.claim(key, owner=f"o{number}") for number in range(4) for key in KEYS]
        tasks = [asyncio.create_task(call) for call in calls]
        engine = dedup.gate.connection.engine
        assert engine is not None
        queue = engine._queue
        # The first replies have come, and most must be asked for again.
        await wait_until(lambda: queue.oldest_large() is not None, description="a claim was put again")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (await dedup.claim(KEYS[-1])).result == RESULT
        assert engine.pending == 0
