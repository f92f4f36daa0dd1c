"""`complete(within=...)` took text, a negative number and infinity."""

from __future__ import annotations

from datetime import timedelta
from math import inf, nan
from typing import Any

import pytest

from fastdedup import ConfigError, Dedup


@pytest.mark.parametrize("within", ["1", -1, inf, nan, True, timedelta(seconds=-1)])
@pytest.mark.parametrize("how", ["complete", "fail"])
async def test_within_that_is_no_time_is_refused(redis_url: str, how: str, within: Any) -> None:
    """And the claim is still live."""
    async with Dedup(redis_url, namespace="t") as dedup:
        claim = await dedup.claim("k")
        with pytest.raises(ConfigError, match="within"):
            await getattr(claim, how)(within=within)
        await claim.complete("done", within=1)
        assert (await dedup.claim("k")).result == "done"


@pytest.mark.parametrize("within", [0, 0.5, 2, timedelta(seconds=1), None])
async def test_within_that_is_a_time_is_taken(redis_url: str, within: Any) -> None:
    async with Dedup(redis_url, namespace="t") as dedup:
        claim = await dedup.claim("k")
        await claim.complete("done", within=within)
        assert (await dedup.claim("k")).result == "done"
