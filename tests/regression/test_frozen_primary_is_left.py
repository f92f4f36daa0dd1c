"""A frozen primary that was failed over was never left: its keys were refused until it thawed.

The probe's deadline cancelled it, and a cancelled probe did not ask for the layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fastdedup import Dedup, UnavailableError
from fastdedup.model import BreakerState
from fastdedup.stores.redis.cluster.slot_table import slot_of

from ..topologies import ClusterGroup

WaitUntil = Callable[..., Any]


class Slow(ClusterGroup):
    """Takes longer to fail over than a breaker takes to open."""

    NODE_TIMEOUT = 2000


@pytest.fixture
def cluster() -> Iterator[ClusterGroup]:
    group = Slow()
    try:
        yield group.start()
    finally:
        group.stop()


async def is_served(gate: Dedup) -> bool:
    """Ask for a key of the slot of `{k}`: any answer but an outage."""
    try:
        await gate.claim("{k}", owner="me")
    except UnavailableError:
        return False
    return True


async def test_a_frozen_primary_is_left_after_its_failover(
    cluster: ClusterGroup, wait_until: WaitUntil
) -> None:
    """Its replica serves the keys, and nobody thaws it. The breaker is open by then: only probes go to the node."""
    slot = slot_of(b"{k}")
    frozen = cluster.owner(slot)
    async with Dedup(cluster.url, namespace="t", timeout=0.5) as gate:

        async def is_refused() -> bool:
            return not await is_served(gate) and gate.breaker is not BreakerState.CLOSED

        assert await is_served(gate)
        frozen.freeze()
        await wait_until(is_refused, description="the breaker of the node opens")
        await wait_until(lambda: cluster.owner(slot) is not frozen, description="its replica is promoted")
        await wait_until(lambda: is_served(gate), description="the replica is asked", deadline=2.0)
