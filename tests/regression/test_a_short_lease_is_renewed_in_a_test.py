"""A lease of which a third is over in real time is renewed when a test moves the clock, as any other is.

The gate of a test looked for renewals only where they wait for that third. Who was at work for longer lost the key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastdedup.testing import FakeStore, fake_dedup


async def test_it_is_renewed_also_after_its_first_third(wait_until: Callable[..., Any]) -> None:
    store = FakeStore()
    async with fake_dedup(store, lease=0.15) as dedup, dedup.claim("k", renew=True) as claim:
        await wait_until(lambda: hasattr(claim, "_ends"), description="its own task has renewed it")
        store.clock.advance(3_600)
        assert not (await dedup.claim("k")).acquired
        assert not claim.lost
