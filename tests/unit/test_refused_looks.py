"""Claims that wait while the store is away: when they look again, and who wakes them. In virtual time."""

from __future__ import annotations

import asyncio

import pytest

from fastdedup import Dedup, ShortfallError, UnavailableError
from fastdedup.events import BreakerClosed, Degraded, Event
from fastdedup.kernel.operations import ClaimOp, Op, Reply, Verdict
from fastdedup.stores.memory import MemoryStore

from ..virtual import EPOCH, Link, virtual


class Gate:
    """A gate on a link, and the times at which a look was refused."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.link = Link(MemoryStore(clock=lambda: EPOCH + self.loop.time()))
        self.refused: list[float] = []
        self.closed: list[float] = []
        self.dedup = Dedup(self.link, namespace="t", known_duplicates=0, on_event=self.note)

    def note(self, event: Event) -> None:
        if isinstance(event, Degraded):
            self.refused.append(self.loop.time())
        elif isinstance(event, BreakerClosed):
            self.closed.append(self.loop.time())

    async def claim(self, number: int, wait: float) -> float:
        """Return when the claim is answered."""
        assert (await self.dedup.claim(f"k{number}", wait=wait)).acquired
        return self.loop.time()


@virtual
async def test_a_refused_claim_looks_again_until_its_time_is_over() -> None:
    gate = Gate()
    async with gate.dedup:
        gate.link.down = True
        with pytest.raises(UnavailableError, match="link is down"):
            await gate.dedup.claim("k", wait=5.0)
        assert gate.loop.time() == pytest.approx(5.0, abs=0.01)
        assert 12 <= len(gate.refused) <= 40
        pauses = [later - earlier for earlier, later in zip(gate.refused, gate.refused[1:], strict=False)]
        assert max(pauses) < 0.41


@virtual
async def test_thousands_of_refused_claims_look_seldom() -> None:
    gate = Gate()
    async with gate.dedup:
        gate.link.down = True
        claims = [gate.dedup.claim(f"k{number}", wait=10.0) for number in range(4000)]
        errors = await asyncio.gather(*claims, return_exceptions=True)
        assert {type(error) for error in errors} == {UnavailableError}
        looks = [moment for moment in gate.refused if 1.0 <= moment < 9.0]
        assert len(looks) / 8.0 < 1500


@virtual
async def test_all_who_were_refused_are_woken_when_the_store_is_back() -> None:
    gate = Gate()
    async with gate.dedup:
        gate.link.down = True
        claims = [asyncio.create_task(gate.claim(number, 60.0)) for number in range(4000)]
        await asyncio.sleep(8.0)
        gate.link.down = False
        answered = await asyncio.gather(*claims)
        assert max(answered) - gate.closed[0] < 0.1


@virtual
async def test_a_shortfall_is_no_reason_to_look_again() -> None:
    """The store answers, so waiting does not help."""

    class Short(MemoryStore):
        def apply(self, op: Op) -> Reply:
            reply = super().apply(op)
            if isinstance(op, ClaimOp) and isinstance(reply, Verdict):
                reply.underreplicated = True
            return reply

    async with Dedup(Short(), on_shortfall="raise") as dedup:
        with pytest.raises(ShortfallError):
            await dedup.claim("k", wait=60.0)
        with pytest.raises(ShortfallError):
            await dedup.claim_many(["l"], wait=60.0)
        assert asyncio.get_running_loop().time() < 1.0
