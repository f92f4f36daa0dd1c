"""A long list of claims goes to the store in parts, and so does all that follows from it."""

from __future__ import annotations

from typing import Any

import pytest

from fastdedup import Dedup, Outcome, ShortfallError
from fastdedup.kernel.operations import ClaimOp, Op, Reply, Verdict
from fastdedup.stores.memory import MemoryStore

KEYS = [str(number) for number in range(2_100)]


class LastFails(MemoryStore):
    """Too few replicas confirm the claim of one key."""

    def apply(self, op: Op) -> Reply:
        reply = super().apply(op)
        if isinstance(op, ClaimOp) and getattr(op, "key", "") == "last" and isinstance(reply, Verdict):
            reply.underreplicated = True
        return reply


@pytest.mark.parametrize("ledger", [None, "seen"])
async def test_a_long_list_that_fails_gives_all_its_keys_back(ledger: str | None) -> None:
    """All at once they would miss the deadline, and those that nothing takes back would stay held."""
    async with Dedup(LastFails(), on_shortfall="raise", max_pending=2050) as dedup:
        options: dict[str, Any] = {"remember": ledger and dedup.ledger(ledger, capacity=10_000, window=60.0)}
        with pytest.raises(ShortfallError):
            await dedup.claim_many([*KEYS, "last"], **options)
        assert all(claim.acquired for claim in await dedup.claim_many(KEYS, **options))


@pytest.mark.parametrize("ledger", [None, "seen"])
async def test_a_long_list_waits_in_parts(ledger: str | None) -> None:
    """A part that waits for other owners all the time leaves each key behind it one look."""
    async with Dedup(MemoryStore(), max_pending=2050) as dedup:
        options: dict[str, Any] = {"remember": ledger and dedup.ledger(ledger, capacity=10_000, window=60.0)}
        owned = await dedup.claim_many(KEYS, **options)
        claims = await dedup.claim_many(KEYS, wait=0.01, **options)
        assert {claim.outcome for claim in claims} == {Outcome.IN_PROGRESS}
        for claim in owned[-10:]:
            await claim.complete("done")
        last = (await dedup.claim_many(KEYS, wait=0.01, **options))[-10:]
        assert [claim.result for claim in last] == ["done"] * 10
