"""What a ledger remembers: not an id that was given up, not one more or less than its window, in every version."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import orjson
import pytest

from fastdedup import Dedup, Ledger, LocalLRU, UsageError
from fastdedup.core.orphans import Orphan
from fastdedup.events import Conflict, Event
from fastdedup.kernel.codes import Code
from fastdedup.kernel.owners import owner_field
from fastdedup.kernel.verbs import Verb
from fastdedup.ledger.forms import DENSE_WIDTH, LedgerForm
from fastdedup.ledger.ids import ledger_wire, nonce_of
from fastdedup.ledger.operations import FOREVER_MS, FirstOp, LedgerOp, LedgerTerms
from fastdedup.ledger.orphan_ids import OrphanId, OrphanIds
from fastdedup.testing import FakeStore

from ..servers import RedisServer
from ..waiting import cancel, wait_until

# Fault: where a call was given up after some 1,100 ids had been taken back, only its first id was taken
# back. A list of places was tidied while it was read, so a RuntimeError ended the loop, in place of the
# caller's own error. The other ids stayed remembered for the whole window, though nobody had been told that
# they were the first.


async def give_up(ledger: Ledger, ids: list[str]) -> None:
    """Ask for ids, and go as soon as they are asked for."""
    call = asyncio.ensure_future(ledger.first_many(ids))
    await asyncio.sleep(0)
    await cancel(call)


async def test_all_ids_of_a_later_call_are_taken_back(redis_url: str) -> None:
    async with Dedup(redis_url, namespace="t") as dedup:
        ledger = dedup.ledger("orders", window=60, capacity=10_000)
        await ledger.seen("the ledger is founded")

        async def is_empty() -> bool:
            return not len(dedup.gate.connection.orphans) and (await ledger.stats()).ids == 0

        await give_up(ledger, [f"former-{number}" for number in range(2_000)])
        await wait_until(is_empty, description="the former ids are taken back")
        await give_up(ledger, [f"later-{number}" for number in range(20)])
        await wait_until(is_empty, description="the later ids are taken back")
        assert await ledger.first_many([f"later-{number}" for number in range(20)]) == [True] * 20


# Fault: while any claim or id was to be freed, such as one whose lease had to end minutes later, every id took the
# way of those that were given up.


async def test_other_orphans_do_not_slow_an_id(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Dedup("memory://", namespace="t") as dedup:
        ledger = dedup.ledger("orders", window=60, capacity=100)
        await ledger.first("the ledger is founded")
        orphans = dedup.gate.connection.orphans
        orphans.put((b"t:=k", owner_field("me")), Orphan(free_at=600.0))
        with monkeypatch.context() as patched:
            patched.setattr("fastdedup.ledger.client.FirstCall", None)
            assert [await ledger.first("id"), await ledger.first("other")] == [True, True]
        assert orphans


# Fault: after a failover to a server whose clock was behind by a moment, an id counted as remembered long ago:
# another call was told of a duplicate, although the call that had remembered it might still be taken back.


# Later fault: not so in a window under 100 s, because two ticks are several of its slots.


@pytest.mark.parametrize("window", [3600.0, 20.0])
@pytest.mark.parametrize("is_dense", [False, True])
async def test_an_id_from_a_clock_that_was_ahead_may_still_be_taken_back(
    redis_url: str, redis_server: RedisServer, is_dense: bool, window: float
) -> None:
    async with Dedup(redis_url, namespace="t") as dedup:
        ledger = dedup.ledger("calls", window=window, capacity=1000, dense=is_dense)
        await ledger.open()
        view = ledger.view
        assert view is not None
        one, two = (
            FirstOp(*view.addresses.entry(b"7", nonce_of(owner_field(name), 20)), view.terms, b"7")
            for name in ("one", "two")
        )
        assert await dedup.gate.run(one) is Code.OK
        with redis_server.client() as raw:
            bucket = raw.get(one.wire)
            assert isinstance(bucket, bytes)
            tick = bucket.index(one.entry[-5:-1]) + 4
            raw.setrange(one.wire, tick, bytes([(bucket[tick] + 2) % 256]))
            slot = tick - 5 if is_dense else tick - 5 - view.terms.width
            ahead = bucket[slot] - 1 + 1_000_000 // view.terms.slot_us
            raw.setrange(one.wire, slot, bytes([ahead % 255 + 1]))
        assert await dedup.gate.run(two) is Code.PENDING


# Fault: only the first id of a batch was checked for a place that its bucket has: another one ended the whole call.


@pytest.mark.parametrize("is_stored", [False, True])
async def test_a_place_that_no_dense_bucket_has_fails_alone(
    redis_url: str, redis_server: RedisServer, is_stored: bool
) -> None:
    form = LedgerForm(capacity=1000, width=DENSE_WIDTH, window_ms=3_600_000, secret=bytes(32))
    shared, beyond, places = LedgerTerms(form, "set", FOREVER_MS), bytes(7) + b"\xff\xff", range(200)
    ops = [FirstOp(b"t:=x{A}AAAA", bytes(7) + at.to_bytes(2, "big") + b"call\1", shared) for at in places]
    async with Dedup(redis_url, namespace="t", timeout=5.0) as dedup:
        execute = dedup.gate.connection.store.execute
        assert set(await execute(Verb.FIRST, ops[:100])) == {Code.OK}
        if is_stored:
            with redis_server.client() as raw:
                raw.append(ops[0].wire, beyond + raw.getrange(ops[0].wire, 2, 2) + b"call\0")
        else:
            ops.insert(150, FirstOp(ops[0].wire, beyond + b"call\1", shared))
        replies = await execute(Verb.FIRST, ops[100:])
        assert [code for code in replies if code is not Code.OK] == [Code.FOREIGN] * (not is_stored)


# Fault: a call took the place of one that was given up, nonce and all; then the store asked for the form
# anew. The next try had a nonce of its own, and nobody remembered the given-up one: the id was a duplicate
# for ever, though nobody had been told True.


async def first(ledger: Ledger) -> bool:
    return await ledger.first("id")


async def first_of_many(ledger: Ledger) -> bool:
    return (await ledger.first_many(["other", "id"]))[1]


@pytest.mark.parametrize("ask", [first, first_of_many])
async def test_a_given_up_id_is_new_though_the_form_is_read_again(
    redis_url: str, ask: Callable[[Ledger], Awaitable[bool]]
) -> None:
    async with Dedup(redis_url, namespace="t") as dedup:
        ledger = dedup.ledger("orders", window=60, capacity=1000)
        assert await ledger.first("id", owner="lost")
        view = ledger.view
        assert view is not None
        wire, entry = view.addresses.entry(b"id", nonce_of(owner_field("lost")))
        OrphanIds(dedup.gate.connection.orphans).add(FirstOp(wire, entry, view.terms, b"id"))
        view.terms.until_ms = 1
        assert await ask(ledger)
        assert not await ask(ledger)


# `first_many` asked for 100,000 ids at once: they timed out, opened the breaker, and most were never taken
# back.


async def test_a_list_has_at_most_as_many_ids_as_can_be_taken_back(redis_url: str) -> None:
    async with Dedup(redis_url, namespace="t", timeout=2.0) as dedup:
        ledger = dedup.ledger("orders", window=3600, capacity=10_000)
        with pytest.raises(UsageError, match="at most 10000 ids, got 10001"):
            await ledger.first_many(range(10_001))
        assert await ledger.first_many(range(2_001)) == [True] * 2_001  # asked for in two parts
        assert await ledger.first_many([*range(2_001), "new"]) == [False] * 2_001 + [True]


# `Ledger.forget` gave a bucket without an expiry one of a millisecond, and with it all of its ids.


async def test_a_bucket_without_expiry_keeps_its_other_ids(redis_url: str, redis_server: RedisServer) -> None:
    """As PERSIST leaves it, or a tool that copies keys without their expiry."""
    raw = redis_server.client()
    async with Dedup(redis_url, namespace="t", timeout=2.0) as dedup:
        ledger = dedup.ledger("orders", window=3600, capacity=100)
        await ledger.first_many(range(50))
        (bucket,) = raw.keys("t:~orders{*}")
        assert raw.persist(bucket)
        assert await ledger.forget(7) is True
        assert raw.pttl(bucket) == -1
        assert [await ledger.seen(each) for each in (6, 7, 8)] == [True, False, True]
        raw.delete(bucket)  # a test leaves no key without a TTL


# A ledger that version 0.1.0 founded keeps its buckets, and 0.1.0 refuses one whose buckets it would not
# find.


WINDOW_MS = 60_000


def text_of_0_1_0(width: int) -> bytes:
    return orjson.dumps(
        {"capacity": 10_000, "width": width, "window_ms": WINDOW_MS, "slots": 100, "secret": "5a" * 32}
    )


@pytest.mark.parametrize(("width", "buckets"), [(3, 90), (4, 90), (7, 90), (16, 79)])
def test_an_old_form_has_its_buckets(width: int, buckets: int) -> None:
    form = LedgerForm.read(text_of_0_1_0(width))
    assert form is not None
    assert form.buckets == buckets
    assert form.text() == text_of_0_1_0(width)
    assert form.settled().buckets == buckets
    resized = LedgerForm.read(form.resized(20_000, 99).text())
    assert resized is not None
    assert resized.former is not None
    assert resized.former.buckets == buckets


@pytest.mark.parametrize(("width", "buckets"), [(3, 63), (4, 63), (7, 90), (16, 74)])
def test_a_new_form_says_its_buckets_where_they_differ(width: int, buckets: int) -> None:
    form = LedgerForm.drawn(capacity=10_000, width=width, window_ms=WINDOW_MS)
    again = LedgerForm.read(form.text())
    assert again is not None
    assert again.buckets == form.buckets == buckets
    # 0.1.0 asks for "slots" and refuses a form without them.
    assert ("slots" in orjson.loads(form.text())) == (width == 7)


@pytest.mark.parametrize("entries", [0, -1, 1001, "160", None, 1.5, True])
def test_a_form_with_a_wrong_plan_is_refused(entries: object) -> None:
    form = orjson.loads(LedgerForm.drawn(capacity=10_000, width=4, window_ms=WINDOW_MS).text())
    form["plan"]["entries"] = entries
    assert LedgerForm.read(orjson.dumps(form)) is None


async def test_ids_of_version_0_1_0_are_found_again(redis_url: str) -> None:
    """Where another version would look in other buckets, a week of ids would be new."""
    async with Dedup(redis_url, namespace="old-ledger", timeout=5.0) as dedup:
        wire = ledger_wire("old-ledger", "ids")
        await dedup.gate.run(LedgerOp(wire, text_of_0_1_0(16), WINDOW_MS))
        ledger = dedup.ledger("ids", window=60.0, capacity=10_000, width=16)
        assert all(await ledger.first_many(range(500)))
        view = ledger.view
        assert view is not None
        assert view.form.buckets == 79
    async with Dedup(redis_url, namespace="old-ledger", timeout=5.0) as dedup:
        ledger = dedup.ledger("ids", window=60.0, capacity=10_000, width=16)
        assert not any(await ledger.first_many(range(500)))


# Fault: in an outage an id was new for one caller, and the store had it from a call that was given up. The journal
# found the id there, and was done. Then the given-up call's id was removed, and the next caller was the first again.
# If a third caller asked for the id in the outage, it was not removed, and a Conflict named a second owner; or it got
# an error, though the policy knew the answer.


@pytest.mark.parametrize("is_removing", [False, True])
async def test_an_id_of_an_outage_outlives_a_call_that_was_given_up(is_removing: bool) -> None:
    store, policy, events = FakeStore(), LocalLRU(), list[Event]()
    async with Dedup(store, on_unavailable=policy, on_event=events.append) as dedup:
        ledger = await dedup.ledger("orders", window=60, capacity=1_000).open()
        orphans, view = dedup.gate.connection.orphans, ledger.view
        assert view is not None
        given_up = FirstOp(*view.addresses.entry(b"7", nonce_of(owner_field("given up"))), view.terms, b"7")
        await store.execute(Verb.FIRST, [given_up])
        with store.outage("refused"):
            assert await ledger.first("7")
            OrphanIds(orphans).add(given_up)
            for _, orphan in orphans.listed():
                assert isinstance(orphan, OrphanId)
                orphan.is_removing = is_removing
            assert not await ledger.first("7")
            assert orphans.held_keys() == [given_up.held_key]
            for _, orphan in orphans.listed():
                orphan.again_at = asyncio.get_running_loop().time() + 0.2
        await wait_until(lambda: not policy.lines, description="the store has the id")
        await wait_until(
            lambda: not any(orphan.is_pending for _, orphan in orphans.listed()),
            description="the given-up call's id was looked for",
        )
        assert not await ledger.first("7")
    assert not any(isinstance(event, Conflict) for event in events)
