"""Two nodes of a Cluster were down and one returned, but its keys stayed local as long as the other was down.

Reconciling stopped at the first line that was refused. Meanwhile another process acquired the keys, and each of them
was a conflict later.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any

from fastdedup import Dedup, LocalLRU, Outcome
from fastdedup.events import Conflict, Event, Replayed
from fastdedup.stores.redis.cluster.slot_table import slot_of

from ..topologies import ClusterGroup, Member

WaitUntil = Callable[..., Any]
TIMEOUT = 0.3
EACH = 600
"""Keys of each node: more than reconciling sends at once."""
LEASE = 600
SOON = 8.0
"""Seconds in which a node that returned is found: the Cluster itself takes about two of them."""


class Outage:
    """Two nodes are down, and what a gate with `LocalLRU` answers meanwhile."""

    def __init__(self, cluster: ClusterGroup) -> None:
        self.returning, self.dead, _ = cluster.primaries()
        self.theirs = keys_of(cluster, self.returning)
        self.lost = keys_of(cluster, self.dead)
        self.events: list[Event] = []
        self.policy = LocalLRU()
        self.gate = Dedup(
            cluster.url,
            namespace="t",
            timeout=TIMEOUT,
            known_duplicates=0,
            on_unavailable=self.policy,
            on_event=self.events.append,
        )

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def keys_of(cluster: ClusterGroup, member: Member) -> list[str]:
    (span,) = [span for span, owner in cluster.spans() if owner is member]
    numbered = (f"key-{number}" for number in range(100_000))
    found = (key for key in numbered if slot_of(b"t:=" + key.encode()) in span)
    return [next(found) for _ in range(EACH)]


@asynccontextmanager
async def outage() -> AsyncIterator[tuple[Outage, Dedup]]:
    """Claim keys of both nodes in turn; yield that, and a gate in another process."""
    with ClusterGroup(replicas=0) as cluster:
        found = Outage(cluster)
        async with found.gate, Dedup(cluster.url, namespace="t", timeout=TIMEOUT) as other:
            await asyncio.gather(found.gate.get("warm"), other.get("warm"))
            found.returning.freeze()
            found.dead.freeze()
            keys = list(chain.from_iterable(zip(found.lost, found.theirs, strict=True)))
            claims = await found.gate.claim_many(keys, lease=LEASE)
            assert all(claim.acquired and claim.degraded for claim in claims)
            yield found, other


async def test_a_returning_node_gets_its_keys_while_another_is_down(wait_until: WaitUntil) -> None:
    async with outage() as (found, other):
        found.returning.thaw()
        await wait_until(lambda: found.policy.lines == EACH, description="the keys came home", deadline=SOON)
        claims = await other.claim_many(found.theirs)
        assert {claim.outcome for claim in claims} == {Outcome.IN_PROGRESS}
        again = await found.gate.claim_many(found.theirs)
        assert not any(claim.degraded for claim in again)
        assert sum(event.adopted for event in found.of(Replayed)) == EACH
        found.dead.thaw()
        await wait_until(lambda: not found.policy.lines, description="the others came home", deadline=SOON)
        assert found.of(Conflict) == []
