"""When the store cannot answer: the policy does, visibly, or says that nobody can."""

from collections.abc import Sequence

import pytest

from fastdedup import (
    BreakerState,
    ClaimLostError,
    FallbackPolicy,
    LocalLRU,
    Outcome,
    Reject,
    UnavailableError,
)
from fastdedup.events import Degraded
from fastdedup.kernel.codes import Code
from fastdedup.kernel.operations import ClaimOp, Op, Reply, Verdict
from fastdedup.kernel.verbs import Verb
from fastdedup.stores.memory import MemoryStore
from fastdedup.testing import Clock

from ..heard import HeardGate
from ..virtual import virtual
from ..waiting import wait_until

pytestmark = virtual


class FlakyStore(MemoryStore):
    """A store that can be down: then it refuses, and remembers what it held."""

    def __init__(self) -> None:
        super().__init__()
        self.down = False

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        if self.down:
            raise UnavailableError("the store is down")
        return await super().execute(verb, ops)


class Gate(HeardGate):
    """A gate on a flaky store, and the events that it reported."""

    def __init__(self, policy: FallbackPolicy) -> None:
        self.store = FlakyStore()
        super().__init__(self.store, namespace="shop", on_unavailable=policy)

    async def is_up(self) -> None:
        await wait_until(lambda: self.dedup.breaker is BreakerState.CLOSED, description="the store is back")


# Reject


async def test_under_reject_a_claim_can_be_settled_after_the_outage() -> None:
    """The owner's call failed, nothing was decided: it calls again."""
    async with Gate(Reject()) as gate:
        claim = await gate.dedup.claim("k", lease=0.02)
        gate.store.down = True
        for settle in (claim.complete, claim.fail, claim.release, claim.renew):
            with pytest.raises(UnavailableError):
                await settle()
        gate.store.down = False
        await gate.is_up()
        await claim.complete({"sold": 1})
        assert (await gate.dedup.claim("k")).result == {"sold": 1}


# LocalLRU


async def test_a_key_is_the_stores_again_when_its_local_record_has_expired() -> None:
    """Whether or not anybody asked for it meanwhile: else one outage would last for ever.

    Settling is answered as the store would, which has no record: ClaimLostError, not an outage.
    """
    clock = Clock()
    async with Gate(LocalLRU(clock=clock)) as gate:
        gate.store.down = True
        _, expired = await gate.dedup.claim_many(["asked for", "k"], lease=1.0, ttl=1.0)
        clock.advance(2.0)
        gate.store.down = False
        claim = await gate.dedup.claim("asked for")
        assert (claim.acquired, claim.degraded) == (True, False)
        with pytest.raises(ClaimLostError):
            await expired.complete()


# A policy of the user's own


class Hesitant:
    """Answers for the keys of very important people, and refuses all others."""

    def __init__(self) -> None:
        self.asked: list[tuple[Verb, str]] = []

    def answer(self, op: Op, error: UnavailableError) -> Reply:
        self.asked.append((op.verb, str(error)))
        if isinstance(op, ClaimOp) and op.wire.endswith(b"vip"):
            return Verdict(Outcome.ACQUIRED, fence=1, attempt=1, left_ms=1000, degraded=True)
        if op.verb is Verb.SETTLE:
            return Code.OK
        raise UnavailableError("ask again at noon", retry_after=60.0)

    def holds(self, wire: bytes) -> bool:
        return wire.endswith(b"vip") and bool(self.asked)


async def test_a_policy_of_ones_own_needs_two_methods() -> None:
    """It is asked with the operation and the reason, and its answer or error is the caller's."""
    policy = Hesitant()
    async with Gate(policy) as gate:
        gate.store.down = True
        claim = await gate.dedup.claim("vip")
        assert (claim.acquired, claim.degraded) == (True, True)
        await claim.complete()
        with pytest.raises(UnavailableError, match="at noon") as caught:
            await gate.dedup.claim("k")
        assert caught.value.retry_after == 60.0
        assert [verb for verb, _ in policy.asked] == [Verb.CLAIM, Verb.SETTLE, Verb.CLAIM]
        assert policy.asked[0] == policy.asked[2] == (Verb.CLAIM, "the store is down")


# Events


async def test_every_answer_of_a_policy_is_an_event() -> None:
    """Answered or refused, with the reason: nothing is skipped in silence."""
    async with Gate(LocalLRU(maxsize=1)) as gate:
        gate.store.down = True
        await gate.dedup.claim("a")
        with pytest.raises(UnavailableError):
            await gate.dedup.claim("b")
        assert gate.of(Degraded) == [
            Degraded("shop", "claim", answered=True, reason="the store is down"),
            Degraded("shop", "claim", answered=False, reason="the store is down"),
        ]
