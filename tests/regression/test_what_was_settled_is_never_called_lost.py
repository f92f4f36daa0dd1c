"""What took effect without a reply is this owner's own: saying it otherwise afterwards is no lost lease.

`fail()` raised ClaimLostError, with a LeaseLost event, where the record that it met was its own owner's success.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fastdedup import Dedup, UnavailableError, UsageError
from fastdedup.events import Event, LeaseLost
from fastdedup.protocol.operations import Op, Reply, Verb
from fastdedup.stores.memory import MemoryStore

from ..proxy import Fate, proxied
from ..servers import RedisServer

WaitUntil = Callable[..., Any]
DONE = {"complete": "completed", "fail": "failed", "release": "released"}
ORDERS = [(first, then) for first in DONE for then in DONE if first != then]


async def settled_unheard(
    proxy: Any, settling: Any, verb: str, wait_until: WaitUntil, *, cancels: bool
) -> None:
    """Settle, so that it takes effect and its reply is lost; then the caller gives up."""
    proxy.follow(lambda name: Fate.LOSE if name == verb else Fate.PASS)
    if cancels:
        task = asyncio.ensure_future(settling)
        await wait_until(lambda: proxy.lost[verb], description="it has taken effect")
        task.cancel()
        with pytest.raises((asyncio.CancelledError, UnavailableError)):
            await task
    else:
        with pytest.raises(UnavailableError):
            await settling


@pytest.mark.parametrize(("cancels", "unread"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize(("first", "then"), ORDERS)
async def test_what_took_effect_stands(
    redis_server: RedisServer,
    wait_until: WaitUntil,
    first: str,
    then: str,
    cancels: bool,
    unread: bool,
) -> None:
    """`unread`: the record cannot be looked at, at first."""
    events: list[Event] = []
    options: dict[str, Any] = {"namespace": "t", "lease": 60.0, "timeout": 0.3, "on_event": events.append}
    async with proxied(redis_server) as proxy, Dedup(proxy.url, **options) as dedup:
        claim = await dedup.claim(f"{first}-{then}-{cancels}-{unread}")
        settling = claim.release() if first == "release" else getattr(claim, first)(within=0.1)
        verb = "release" if first == "release" else "settle"
        await settled_unheard(proxy, settling, verb, wait_until, cancels=cancels)
        proxy.follow(lambda name: Fate.CUT if name in (verb, "read") and unread else Fate.PASS)
        if unread:
            with pytest.raises((UnavailableError, UsageError)):
                await (claim.release() if then == "release" else getattr(claim, then)(within=0.2))
        proxy.forward()
        answers: list[str] = []

        async def refused() -> bool:
            try:
                await getattr(claim, then)()
            except UnavailableError:
                return False
            except UsageError as error:
                answers.append(str(error))
            return True

        await wait_until(refused, description="it says what stands")
        assert answers == [f"this claim was {DONE[first]} already; settle it once"]
        assert not claim.lost
    assert not [event for event in events if isinstance(event, LeaseLost)]


class Slow(MemoryStore):
    """A store that answers a renewal or a settling only once `settled` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.renewing, self.settled = asyncio.Event(), asyncio.Event()

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        if verb is Verb.RENEW:
            self.renewing.set()
            await self.settled.wait()
        replies = await super().execute(verb, ops)
        if verb is Verb.SETTLE:
            await self.settled.wait()
        return replies


async def test_a_renewal_under_way_loses_no_claim_that_is_being_settled(wait_until: WaitUntil) -> None:
    """The lease ends with both under way: ClaimLostError was raised inside of a `complete` that was recorded."""
    store, events = Slow(), list[Event]()
    async with Dedup(store, lease=0.5, timeout=30.0, on_event=events.append) as dedup:
        async with dedup.claim("k", renew=True) as claim:
            renewal: Any = claim._renewal
            await store.renewing.wait()
            completing = asyncio.create_task(claim.complete("done"))
            await wait_until(renewal._task.done, description="the lease has ended")
            store.settled.set()
            await completing
        assert (await dedup.claim("k")).result == "done"
    assert not events
