"""Step 6: the same gate for code without asyncio."""

from __future__ import annotations

from fastdedup.sync import Dedup


def test_the_synchronous_gate_has_the_same_names(url: str) -> None:
    """`fastdedup.sync` is the same without `await`."""
    with Dedup(url) as dedup:
        with dedup.claim("order:42") as claim:
            assert claim.acquired
            claim.complete("done")
        assert dedup.claim("order:42").result == "done"
