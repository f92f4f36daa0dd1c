"""`fastdedup.testing.conformance`, which users run against a store, on every store that can answer."""

from __future__ import annotations

import pytest

from fastdedup.testing import conformance
from fastdedup.testing.guarantees import CHECKS
from fastdedup.testing.trial import Trial

from ..stores import ALL_BUT_LOCAL, Backend, on_stores

NEEDS_THE_STORE = {10, 15, 17, 19, 20}
"""Checks that ask what no policy knows: whether a token was issued, what the store holds, which call it knows."""


@on_stores(*ALL_BUT_LOCAL)
async def test_each_store_keeps_each_guarantee(backend: Backend) -> None:
    """LocalLRU is no store of its own: it stands for one that is down, which ends the run."""
    found = await conformance(backend.store(), namespace="mine", timeout=5.0)
    found.check()
    assert {finding.status for finding in found} == {"PASS"}


@on_stores("local")
@pytest.mark.parametrize("number", sorted(CHECKS.keys() - NEEDS_THE_STORE))
async def test_local_lru_keeps_the_guarantees_of_a_store(backend: Backend, number: int) -> None:
    async with backend.make(lease=30.0) as dedup:
        await CHECKS[number](Trial([dedup], None))
