"""Fault: a call took the place of one that was given up, nonce and all; then the store asked for the form anew.

The next try had a nonce of its own, and nobody remembered the given-up one: the id was a duplicate for ever, though
nobody had been told True.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from fastdedup import Dedup, Ledger
from fastdedup.protocol.ledger_views import nonce_of
from fastdedup.protocol.ledgers import FirstOp
from fastdedup.protocol.owners import owner_field


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
        view = ledger._view
        assert view is not None
        wire, entry = view.addresses.entry(b"id", nonce_of(owner_field("lost")))
        dedup._namespace.connection.undo.add_id(FirstOp(wire, entry, view.terms, b"id"))
        view.terms.until_ms = 1
        assert await ask(ledger)
        assert not await ask(ledger)
