"""What `receive`, `complete` and `replay` promise, on every way into a database."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fastdedup import InProgressError, Outcome, UsageError

from ..fixtures import async_fixture
from ..waiting import cancel, wait_until
from .conftest import Opener
from .ways import WAYS, AsyncParty, Party

party = async_fixture(lambda way: way())


async def test_a_key_is_first_once(party: Party, key: str) -> None:
    inbox = party.inbox()
    async with party.transaction():
        assert (await party.receive(inbox, key)).first
        await party.work(key)
    async with party.transaction():
        again = await party.receive(inbox, key)
        assert (again.first, again.outcome, again.result) == (False, Outcome.SUCCEEDED, None)
        assert again.replay() is None
    assert party.place.sql(f"SELECT note FROM work WHERE note = '{key}'") == [(key,)]


async def test_a_rolled_back_key_is_first_again(party: Party, key: str) -> None:
    inbox = party.inbox()
    await party.start()
    await party.receive(inbox, key)
    await party.work(key)
    await party.rollback()
    assert party.place.sql(f"SELECT note FROM work WHERE note = '{key}'") == []
    async with party.transaction():
        assert (await party.receive(inbox, key)).first


async def test_a_duplicate_replays_the_first_result(party: Party, key: str) -> None:
    inbox = party.inbox()
    async with party.transaction():
        receipt = await party.receive(inbox, key)
        await party.call(receipt.complete, {"invoice": 7, "name": "Zoë?"})
        assert receipt.result == {"invoice": 7, "name": "Zoë?"}
    async with party.transaction():
        assert (await party.receive(inbox, key)).replay() == {"invoice": 7, "name": "Zoë?"}


async def test_a_receipt_is_completed_once(party: Party, key: str) -> None:
    inbox = party.inbox()
    async with party.transaction():
        first = await party.receive(inbox, key)
        second = await party.receive(inbox, key)
        await party.call(first.complete, 1)
        with pytest.raises(UsageError, match="is completed already"):
            await party.call(first.complete, 2)
        with pytest.raises(UsageError, match="is a duplicate"):
            await party.call(second.complete, 3)
    async with party.transaction():
        assert (await party.receive(inbox, key)).result == 1


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_no_receipt_is_completed_after_its_transaction(party: Party, key: str, end: str) -> None:
    await party.start()
    receipt = await party.receive(party.inbox(), key)
    await getattr(party, end)()
    with pytest.raises(UsageError, match="has ended"):
        await party.call(receipt.complete, 1)


ON_SERVERS = [
    name for name, way in WAYS.items() if issubclass(way.party, AsyncParty) and way.kind != "sqlite"
]


@pytest.mark.parametrize("name", ON_SERVERS)
async def test_a_cancelled_wait_leaves_no_row(of: Any, key: str, name: str) -> None:
    async with of(name)() as ours:
        await ours.start()
        await ours.receive(ours.inbox(), key)
        async with of(name)() as other:
            await other.start()
            twin = asyncio.create_task(other.receive(other.inbox(), key))
            await in_flight(ours)
            await cancel(twin)
        await ours.rollback()
        async with ours.transaction():
            assert (await ours.receive(ours.inbox(), key)).first


# The other drivers, of SQLite and MySQL, do not tell one transaction of a connection from the next one.
THAT_TELL = [
    "asyncpg",
    "psycopg",
    "psycopg async",
    *(name for name in WAYS if name.startswith(("session", "conn", "async s", "async c", "django"))),
]


@pytest.mark.parametrize("name", THAT_TELL)
async def test_no_receipt_is_completed_in_the_next_transaction(of: Any, key: str, name: str) -> None:
    async with of(name)() as party:
        async with party.transaction():
            receipt = await party.receive(party.inbox(), key)
        async with party.transaction():
            await party.work(key)
            with pytest.raises(UsageError, match="has ended"):
                await party.call(receipt.complete, 1)


async def test_many_keys_are_received_in_their_order(party: Party, key: str) -> None:
    inbox = party.inbox()
    async with party.transaction():
        known = await party.receive(inbox, f"{key} known")
        await party.call(known.complete, "kept")
    async with party.transaction():
        keys = [f"{key} {name}" for name in ("b", "known", "a", "b")]
        found = await party.call(inbox.receive_many, party.raw, keys)
        assert [each.key for each in found] == keys
        assert [each.first for each in found] == [True, False, True, False]
        for no_list in (keys[0], None):
            with pytest.raises(UsageError, match="takes a list of keys, got "):
                await party.call(inbox.receive_many, party.raw, no_list)
        assert found[1].result == "kept"
        await party.call(found[0].complete, "new")
    async with party.transaction():
        assert (await party.receive(inbox, keys[0])).result == "new"


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_twin_waits_for_the_end_of_the_first(way: Opener, key: str, end: str) -> None:
    async with way() as ours, way() as other:
        inbox = ours.inbox()
        await ours.start()
        receipt = await ours.receive(inbox, key)
        twin = asyncio.create_task(begin_and_receive(other, other.inbox(), key))
        await in_flight(ours)
        assert not twin.done()
        if end == "commit":
            await ours.call(receipt.complete, "ours")
        await getattr(ours, end)()
        found = await twin
        assert found.first if end == "rollback" else found.replay() == "ours"
        await getattr(other, end)()


async def begin_and_receive(party: Any, inbox: Any, key: str) -> Any:
    await party.start()
    return await party.receive(inbox, key)


async def in_flight(party: Any) -> None:
    """Wait until a twin waits; SQLite, which has one writer, does not tell of it."""
    if party.place.kind != "sqlite":
        await wait_until(lambda: party.place.waiting() == 1, description="the twin waits")


async def test_without_a_twin_skip_receives_as_usual(database: Opener, key: str) -> None:
    async with database() as party:
        inbox = party.inbox()
        async with party.transaction():
            await party.call((await party.receive(inbox, key, busy="skip")).complete, 1)
        async with party.transaction():
            assert (await party.receive(inbox, key, busy="skip")).replay() == 1


async def test_a_twin_in_flight_can_be_skipped(server_way: Opener, key: str) -> None:
    async with server_way() as ours, server_way() as other:
        await ours.start()
        await ours.receive(ours.inbox(), key)
        inbox = other.inbox()
        async with other.transaction():
            twin = await other.receive(inbox, key, busy="skip")
            assert (twin.first, twin.outcome) == (False, Outcome.IN_PROGRESS)
            with pytest.raises(InProgressError) as caught:
                twin.replay()
            assert caught.value.retry_after > 0
            assert (await other.receive(inbox, f"{key} other", busy="skip")).first
            await other.work(key)
        await ours.rollback()
        assert other.place.sql(f"SELECT note FROM work WHERE note = '{key}'") == [(key,)]
        async with other.transaction():
            assert not (await other.receive(inbox, f"{key} other", busy="skip")).first
