"""`complete(within=...)` took text, a negative number and infinity. `fastdedup.sync` had no `within` at all."""

from __future__ import annotations

import time
from datetime import timedelta
from math import inf, nan
from typing import Any

import pytest

from fastdedup import ConfigError, Dedup, UnavailableError
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.testing import FakeStore, fake_sync_dedup


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


@pytest.mark.parametrize("within", ["1", -1, nan])
@pytest.mark.parametrize("how", ["complete", "fail"])
def test_synchronous_code_is_told_of_no_time(redis_url: str, how: str, within: Any) -> None:
    with SyncDedup(redis_url, namespace="t") as dedup:
        claim = dedup.claim("k")
        with pytest.raises(ConfigError, match="within"):
            getattr(claim, how)(within=within)
        claim.complete("done", within=timedelta(seconds=1))
        assert dedup.claim("k").result == "done"


@pytest.mark.parametrize("within", [0, 0.1])
@pytest.mark.parametrize("how", ["complete", "fail"])
def test_synchronous_code_gives_up_within_its_time(how: str, within: float) -> None:
    """Not at the end of the lease, an hour later; and it may be tried again."""
    store = FakeStore()
    dedup = fake_sync_dedup(store, lease=3_600.0, failure_ttl=60.0)
    claim = dedup.claim("k")
    began = time.monotonic()
    with store.outage(), pytest.raises(UnavailableError) as refused:
        getattr(claim, how)("done", within=within)
    assert time.monotonic() - began < 2.0
    assert refused.value.unrecorded
    claim.complete("done")
    assert dedup.claim("k").result == "done"
    dedup.close()
