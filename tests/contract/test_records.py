"""Finding what is stuck: records are listed, say who holds them, and are shown and forgotten by kind."""

from __future__ import annotations

from typing import Any

import pytest

from fastdedup import ConfigError, Dedup, InvalidKeyError, Listing, State
from fastdedup.events import Event, KeyForgotten, RecordsListed

from ..stores import ALL_BUT_LOCAL, Backend, on_stores

# LocalLRU stands for a store that is down, and a list asks no policy.
pytestmark = on_stores(*ALL_BUT_LOCAL, "synchronous")


async def all_of(dedup: Dedup, **wanted: Any) -> Listing:
    """Go on to the end, a step at a time."""
    found = await dedup.records(limit=1, **wanted)
    while found.cursor is not None:
        further = await dedup.records(limit=1, cursor=found.cursor, **wanted)
        found = Listing([*found.records, *further.records], further.cursor, found.looked_at)
    return found


def keys(found: Listing) -> list[str]:
    return sorted({record.key for record in found.records})


async def test_a_list_finds_every_record_of_its_namespace(dedup: Dedup) -> None:
    names = [f"k{number}" for number in range(600)]
    await dedup.claim_many(names)
    await dedup.scoped("other").claim("not mine")
    assert keys(await all_of(dedup)) == sorted(names)


async def test_a_list_has_no_key_of_another_namespace_in_its_cursor(dedup: Dedup) -> None:
    """On memory:// it was the last key that was looked at, whose ever that was."""
    await dedup.claim_many(["a", "b"])
    for other in ("a", "z"):  # before and behind its own keys
        await dedup.scoped(other).claim_many([f"secret {number}" for number in range(600)])
    cursors, found = [""], await dedup.records(limit=1)
    while found.cursor is not None:
        cursors.append(found.cursor)
        found = await dedup.records(limit=1, cursor=found.cursor)
    told = " ".join(cursors)
    assert "secret" not in told
    assert b"secret".hex() not in told


async def test_a_list_is_narrowed_by_prefix_state_kind_and_age(dedup: Dedup) -> None:
    await (await dedup.claim("order:*1")).complete({"n": 1})
    await dedup.claim("order:2", fingerprint="body")
    await dedup.claim("x" * 100)
    token = await dedup.tokens.issue()
    async with dedup.lock("order:9"):
        await dedup.machine("order", initial="a", transitions={"a": ("b",), "b": ()}).transition("1", to="b")
        assert keys(await all_of(dedup, prefix="order:")) == ["order:*1", "order:2", "order:9"]
        assert keys(await all_of(dedup, prefix="order:*")) == ["order:*1"]
        assert keys(await all_of(dedup, kind="lock")) == ["order:9"]
        assert keys(await all_of(dedup, state=State.SUCCEEDED)) == ["order:*1"]
        held = await all_of(dedup, kind="claim", state=State.PROCESSING)
    assert keys(held) == [
        held.records[0].key if held.records[0].key[0] == "#" else held.records[1].key,
        "order:2",
    ]
    (issued,) = (await all_of(dedup, kind="token")).records
    assert (issued.state, issued.kind, issued.key[0]) == (State.ISSUED, "token", "#")
    assert token not in issued.key
    assert (await all_of(dedup, older=60)).records == []
    assert all(0 <= (record.age or 0) < 30 for record in held.records)


async def test_a_record_tells_its_age(backend: Backend) -> None:
    async with backend.make() as dedup:
        await dedup.claim("order:2")
        record = await dedup.get("order:2")
        (listed,) = (await all_of(dedup, kind="claim")).records
    assert record is not None
    assert record.age is not None
    assert listed.age is not None
    assert 0 <= record.age < 30
    assert 0 <= listed.age < 30


async def test_a_listed_digest_names_its_record(backend: Backend) -> None:
    events: list[Event] = []
    async with backend.make(on_event=events.append) as dedup:
        long = "order:" + "7" * 90
        await (await dedup.claim(long, owner="worker-1")).complete(7)
        assert [(await dedup.claim(long)).result for _ in range(2)] == [7, 7]  # told from memory from now on
        (found,) = (await all_of(dedup)).records
        record = await dedup.get(found.key, digest=True)
        assert record is not None
        assert record.owner == "worker-1"
        assert await dedup.forget(found.key, digest=True, reason="ticket 7") is True
        assert (await dedup.claim(long)).acquired
        with pytest.raises(InvalidKeyError, match="32 hexadecimal"):
            await dedup.get("#12", digest=True)
    (told,) = [event for event in events if isinstance(event, KeyForgotten)]
    assert (told.kind, told.key, told.found, told.reason) == ("claim", found.key, True, "ticket 7")
    assert "@" in told.by
    assert any(isinstance(event, RecordsListed) and event.found == 1 for event in events)


async def test_each_kind_is_shown_and_forgotten(dedup: Dedup) -> None:
    token = await dedup.tokens.issue("me")
    orders = dedup.machine("order", initial="a", transitions={"a": ("b",), "b": ()})
    await orders.transition("1", to="b")
    async with dedup.lock("l"):
        found = [
            await dedup.get("l", "lock"),
            await dedup.get(token, "token"),
            await dedup.get("order/1", "machine"),
        ]
        assert [record and record.state for record in found] == [
            State.PROCESSING,
            State.ISSUED,
            State.MACHINE,
        ]
        assert found[2] is not None
        assert (found[2].result, found[2].version) == ("b", 1)
    assert await dedup.get("l") is None
    assert await dedup.forget(token, "token") is True
    assert await dedup.forget(token, "token") is False
    assert await orders.forget("1") is True
    assert await orders.get("1") == ("a", 0)
    with pytest.raises(ConfigError, match="kind must be one of"):
        await dedup.get("l", "wrong")  # type: ignore[arg-type]


async def test_a_record_says_who_holds_it_where_asked(backend: Backend) -> None:
    """Its owner is one like any other: another gate, without the setting, reads it and finds the key held."""
    async with backend.make(holder="billing") as dedup, backend.make() as plain:
        claim = await dedup.claim("k")
        async with dedup.lock("l"):
            found = await all_of(plain if backend.name != "memory" else dedup)
        assert [record.holder for record in found.records] == [found.records[0].holder] * 2
        assert str(found.records[0].holder).startswith("billing@")
        await claim.complete("done")
        record = await dedup.get("k")
        assert record is not None
        assert str(record.holder).startswith("billing@")
        assert (record.owner, record.result) == (claim.owner, "done")
        await plain.claim("unsaid")
        silent = await plain.get("unsaid")
        assert silent is not None
        assert silent.holder is None
        assert len(silent.owner) == 20
