"""The embedded store's own matters: bounds, expiry, fences and the clock. Guarantees are the contract suite's."""

import asyncio
from typing import Any

import pytest

from fastdedup import Dedup, Outcome, UnavailableError
from fastdedup.kernel.codes import Code
from fastdedup.kernel.operations import (
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
from fastdedup.kernel.terms import Mode, terms
from fastdedup.kernel.verbs import Verb
from fastdedup.ledger.memory import MemoryLedgers
from fastdedup.ledger.operations import LedgerOp
from fastdedup.stores.memory import MemoryStore
from fastdedup.testing import Clock

from ..ops import move

ENTRY = 400
"""Bytes that the store counts for a record without payload."""


@pytest.fixture
def clock() -> Clock:
    return Clock(1_700_000_000.0)


def owner(name: int) -> bytes:
    return b"\0" + name.to_bytes(10, "big")


def claim(
    store: MemoryStore, wire: bytes = b"k", by: int = 1, lease: int = 10_000, keep: int = 60_000
) -> Verdict:
    reply = store.apply(ClaimOp(wire, terms(Mode.CLAIM, lease, keep, False), owner(by), None))
    assert isinstance(reply, Verdict)
    return reply


def settle(
    store: MemoryStore, wire: bytes = b"k", by: int = 1, payload: bytes = b"", keep: int = 60_000
) -> Any:
    return store.apply(SettleOp(wire, owner(by), 0, succeeded=True, keep_ms=keep, payload=payload))


# Bounds


def test_a_full_store_refuses_a_new_key_rather_than_forget_one(clock: Clock) -> None:
    """A forgotten claim would be run twice; the message names the settings to change."""
    store = MemoryStore(maxsize=2, clock=clock)
    claim(store, b"a")
    claim(store, b"b")
    with pytest.raises(UnavailableError, match=r"full: 2 unexpired records.*raise maxsize or lower ttl"):
        claim(store, b"c")
    assert len(store) == 2
    assert claim(store, b"a", by=2).outcome is Outcome.IN_PROGRESS


@pytest.mark.parametrize(
    "op",
    [
        ClaimOp(b"c", terms(Mode.CLAIM, 1000, 2000, False), owner(1), None),
        IssueOp(b"c", owner(1), None, 1000),
        move(b"c", "paid", "new"),
    ],
)
def test_whatever_makes_a_record_keeps_to_the_bounds(op: Op, clock: Clock) -> None:
    """Claims, tokens and machines alike, by count and by bytes."""
    for store in (MemoryStore(maxsize=1, clock=clock), MemoryStore(max_bytes=ENTRY, clock=clock)):
        claim(store, b"a")
        with pytest.raises(UnavailableError, match="full"):
            store.apply(op)
        assert not store.holds(b"c")


def test_a_full_store_goes_on_serving_what_it_holds(clock: Clock) -> None:
    """Taking over, settling with nothing, releasing and reading need no room."""
    store = MemoryStore(maxsize=1, clock=clock)
    claim(store)
    assert store.apply(ReleaseOp(b"k", owner(1), 0)) is Code.OK
    assert claim(store, by=2).attempt == 2
    assert settle(store, by=2) is Code.OK
    assert claim(store, by=3).outcome is Outcome.SUCCEEDED


def test_what_has_expired_makes_room(clock: Clock) -> None:
    """Nobody has to touch the old key."""
    store = MemoryStore(maxsize=1, clock=clock)
    claim(store, b"a", keep=60_000)
    clock.advance(59.9)
    with pytest.raises(UnavailableError):
        claim(store, b"b")
    clock.advance(0.1)
    assert claim(store, b"b").outcome is Outcome.ACQUIRED
    assert not store.holds(b"a")


def test_results_count_against_max_bytes(clock: Clock) -> None:
    """A result that does not fit is refused, and its claim stays live."""
    store = MemoryStore(max_bytes=2 * ENTRY + 100, clock=clock)
    claim(store, b"a")
    claim(store, b"b")
    assert settle(store, b"a", payload=b"x" * 100) is Code.OK
    with pytest.raises(UnavailableError, match="no room for a result"):
        settle(store, b"b", payload=b"x")
    assert claim(store, b"b", by=2).outcome is Outcome.IN_PROGRESS


async def test_results_and_ids_share_max_bytes() -> None:
    """A result was let in that had room beside the records alone: twice the bytes were held."""
    async with Dedup("memory://?max_bytes=100000", namespace="t", lease=0.2) as dedup:
        ledger = dedup.ledger("ids", window=60, capacity=1000)
        await ledger.first_many(range(200))  # 60,000 bytes
        claim = await dedup.claim("k")
        with pytest.raises(UnavailableError, match="no room for a result of 50002"):
            await claim.complete("x" * 50_000)
        store = dedup.gate.connection.store
        assert isinstance(store, MemoryStore)
        assert store.bytes_taken() <= 100_000


def test_a_record_moves_into_a_full_store(clock: Clock) -> None:
    store = MemoryStore(maxsize=2, max_bytes=2 * ENTRY + 10, clock=clock)
    for key in (b"t:=a", b"t:=b"):
        store.apply(ClaimOp(key, terms(Mode.CLAIM, 1000, 2000, False), b"o", None))
    store.apply(SettleOp(b"t:=a", b"o", 0, succeeded=True, keep_ms=3000, payload=b"0123456789"))
    store.move(b"t:=a", b"t:=c")
    store.move(b"t:=nobody", b"t:=d")
    moved = store.entry(b"t:=c")
    assert moved is not None
    assert (moved.payload, store.entry(b"t:=a"), len(store)) == (b"0123456789", None, 2)
    clock.advance(3.1)
    assert store.now()
    assert len(store) == 0


def test_a_client_with_a_shorter_window_does_not_cut_a_ledgers_life() -> None:
    ledgers = MemoryLedgers(lambda: None)
    ledgers.create(LedgerOp(b"t:~ids", b"form", 1000), 0)
    ledgers.create(LedgerOp(b"t:~ids", b"", 10), 0)
    assert ledgers.create(LedgerOp(b"t:~ids", b"", 10), 999) is not Code.ABSENT


def test_an_id_forgotten_again_and_again_takes_no_more_memory() -> None:
    """By a clock that stands, as tests have it, all its times end at once."""
    ledgers = MemoryLedgers(lambda: None)
    for _ in range(20_000):
        ledgers.put(b"bucket", b"digest", b"nonce", 1, 1000)
        ledgers.drop(b"bucket", b"digest")
    assert len(ledgers._order[1000]) < 2_000


@pytest.mark.parametrize("ends", ["forgotten", "expired", "closed"])
async def test_the_bytes_of_a_record_come_back_when_it_ends(ends: str, clock: Clock) -> None:
    """Else a store would fill up for good."""
    store = MemoryStore(max_bytes=ENTRY + 100, clock=clock)
    for round_ in range(3):
        claim(store, by=round_)
        assert settle(store, by=round_, payload=b"x" * 100) is Code.OK
        if ends == "forgotten":
            assert store.apply(ForgetOp(b"k")) is Code.OK
        elif ends == "expired":
            clock.advance(61)
        else:
            await store.aclose()
    claim(store)
    assert len(store) == 1


def test_a_machine_counts_its_present_state_only(clock: Clock) -> None:
    """A thousand moves take the room of one."""
    store = MemoryStore(max_bytes=ENTRY + 10, clock=clock)
    for version in range(1000):
        state = ("aaaaaaaa", "b")[version % 2]
        op = move(b"m", state, "b", {"aaaaaaaa", "b"}, change=version.to_bytes(10, "big"))
        assert store.apply(op).code is Code.OK  # type: ignore[union-attr]


async def test_in_a_batch_only_the_keys_without_room_are_refused() -> None:
    """Guarantee 13: claims of one loop meet in a batch, and one that cannot be answered fails alone."""
    async with Dedup("memory://?maxsize=2") as dedup:
        replay = await dedup.claim("done")
        await replay.complete(1)
        calls = [dedup.claim(key) for key in ("done", "a", "b", "c", "a")]
        done, first, *refused, again = await asyncio.gather(*calls, return_exceptions=True)
        assert done.outcome is Outcome.SUCCEEDED  # type: ignore[union-attr]
        assert first.acquired  # type: ignore[union-attr]
        assert all(isinstance(error, UnavailableError) for error in refused)
        assert again.outcome is Outcome.IN_PROGRESS  # type: ignore[union-attr]


# Expiry


def test_the_expiry_order_stays_bounded_under_renewals(clock: Clock) -> None:
    """A claim renewed for days must not grow the store."""
    store = MemoryStore(clock=clock)
    for key in range(10):
        claim(store, b"%d" % key)
    for step in range(10_000):
        clock.advance(0.001)
        assert store.apply(RenewOp(b"%d" % (step % 10), owner(1), 0, 10_000, 60_000)) is Code.OK
    assert len(store.expiries) <= 2 * 10 + 1024
    clock.advance(60.001)  # a record stands until the end of its last millisecond
    assert store.apply(ReadOp(b"0")) is Code.ABSENT
    assert (len(store), store.expiries) == (0, [])


# Odds and ends


def test_to_take_one_key_over_lowers_no_other_keys_fence() -> None:
    """Its fence rises above the former one's; the store's own must not fall with a clock that was set back."""
    now = 1_700_000_000.0
    store = MemoryStore(clock=lambda: now)
    first = claim(store, b"forgotten")
    store.apply(ForgetOp(b"forgotten"))
    claim(store, b"free")
    store.apply(ReleaseOp(b"free", owner(1), 0))
    now -= 3600
    claim(store, b"free", by=2)
    assert claim(store, b"forgotten", by=2).fence > first.fence


async def test_a_listener_is_told_once() -> None:
    """However often it was registered."""
    store, heard = MemoryStore(), list[bytes | None]()
    await store.listen(heard.append)
    on_freed = heard.append
    await store.listen(on_freed)
    watched = terms(Mode.CLAIM, 1000, 2000, True)
    await store.execute(
        Verb.CLAIM, [ClaimOp(b"k", watched, owner(1), None), ClaimOp(b"k", watched, owner(2), None)]
    )
    settle(store)
    assert heard == [b"k"]
