"""What `pyright` accepts in strict mode: read by `tests/test_types.py`, never run. Mypy reads it as well."""

from collections.abc import Coroutine
from typing import Any, assert_type

from fastdedup import Claim, Dedup
from fastdedup.sql import Inbox
from fastdedup.sync import Claim as SyncClaim
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.sync.sql import Inbox as SyncInbox


class Order:
    id: str = ""


class Receipt:
    pass


def key_of(order: Order, *, retries: int = 0) -> str:
    return f"{order.id}:{retries}"


async def decorated(dedup: Dedup) -> None:
    @dedup.once(key=lambda order: f"order:{order.id}")
    async def place(order: Order) -> Receipt:
        return Receipt()

    assert_type(await place(Order()), Receipt)

    @dedup.once(key=lambda order, pieces: f"{order.id}:{pieces}", fingerprint=lambda order, pieces: pieces)
    async def place_many(order: Order, pieces: int) -> Receipt:
        return Receipt()

    call = place_many(Order(), pieces=3)
    made: Coroutine[Any, Any, Receipt] = call
    assert_type(await made, Receipt)

    @dedup.once(key_of, wait=2.0)
    async def place_again(order: Order, *, retries: int = 0) -> Receipt:
        return Receipt()

    assert_type(await place_again(Order(), retries=1), Receipt)


def decorated_without_asyncio(dedup: SyncDedup) -> None:
    @dedup.once(key=lambda order: f"order:{order.id}")
    def place(order: Order) -> Receipt:
        return Receipt()

    assert_type(place(Order()), Receipt)

    @dedup.once(key_of)
    def place_again(order: Order, *, retries: int = 0) -> Receipt:
        return Receipt()

    assert_type(place_again(Order(), retries=1), Receipt)


async def claimed(dedup: Dedup) -> None:
    async with dedup.claim("key") as claim:
        assert_type(claim, Claim)
        if claim.acquired:
            await claim.complete({"order": 1})
    assert_type(claim.replay(Receipt), Receipt)
    assert_type(claim.replay(list[Receipt]), list[Receipt])
    claim.replay(Receipt | None)
    claims = [claim, await dedup.claim("other", wait=1.0, renew=True), *await dedup.claim_many(["a", "b"])]
    assert_type(claims, list[Claim])


async def claimed_with_a_type(dedup: Dedup) -> None:
    async with dedup.claim("key", returns=Receipt) as claim:
        await claim.complete(Receipt())
        await claim.complete("no receipt")  # type: ignore[arg-type]
    assert_type(claim, Claim[Receipt])
    assert_type(claim.replay(), Receipt)
    assert_type(claim.replay(dict[str, int]), dict[str, int])
    assert_type((await dedup.claim("key", returns=list[Receipt])).replay(), list[Receipt])
    await dedup.claim("key", returns=Receipt | None)  # type: ignore[arg-type] # mypy would call it a Receipt
    assert_type(await dedup.claim_many(["a"], returns=Receipt), list[Claim[Receipt]])
    any_claim: Claim = claim
    assert_type(any_claim.replay(), Any)


def claimed_without_asyncio(dedup: SyncDedup) -> None:
    with dedup.claim("key") as claim:
        assert_type(claim.replay(Receipt), Receipt)
    with dedup.claim("key", returns=Receipt) as typed:
        typed.complete(Receipt())
        typed.complete("no receipt")  # type: ignore[arg-type]
    assert_type(typed, SyncClaim[Receipt])
    assert_type(typed.replay(), Receipt)


async def received(inbox: Inbox, sync_inbox: SyncInbox, session: object) -> None:
    assert_type((await inbox.receive(session, "key")).replay(Receipt), Receipt)
    assert_type(sync_inbox.receive(session, "key").replay(Receipt), Receipt)


def key_in_a_transaction(transaction: object, order: Order) -> str:
    return order.id


async def decorated_in_a_transaction(inbox: Inbox, sync_inbox: SyncInbox) -> None:
    @inbox.once(key_in_a_transaction)
    async def place(transaction: object, order: Order) -> Receipt:
        return Receipt()

    assert_type(await place(Order()), Receipt)
    assert_type(await place(order=Order()), Receipt)
    await place("no order")  # type: ignore[arg-type]

    @sync_inbox.once(key_in_a_transaction)
    def place_now(transaction: object, order: Order) -> Receipt:
        return Receipt()

    assert_type(place_now(Order()), Receipt)

    def key_of_a_method(self: object, transaction: object, order: Order) -> str:
        return order.id

    class Desk:
        @inbox.once(key_of_a_method)
        async def place(self, transaction: object, order: Order) -> Receipt:
            return Receipt()

    assert_type(await Desk().place(Order()), Receipt)
