"""Scenarios of an outage: what an owner does without the store, and how it becomes known when the store is back."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from fastdedup import ClaimLostError, Outcome, UnavailableError

from .scenarios import LOST, audited, claim_work_complete, settle, start_later
from .simulation import LEASE, World, scenario


@scenario(gates=2)
async def renew_in_vain(world: World) -> None:
    """An owner loses the store for longer than its lease: its body ends before another owner begins."""
    world.is_resent = False

    async def body() -> None:
        async with world.gate.claim("k", lease=0.9, renew=True) as claim:
            if claim.acquired:
                with world.promises.holds("owner", "k", fence=claim.fence):
                    await asyncio.sleep(0.5)
                    world.network.refuse(1000)
                    await asyncio.sleep(2.0)

    async def owner() -> None:
        with suppress(*LOST):
            await body()

    async def second() -> None:
        await asyncio.sleep(0.7)
        for _ in range(8):
            await asyncio.sleep(0.1)
            with suppress(UnavailableError):
                claim = await world.gates[1].claim("k", lease=0.9)
                if claim.acquired:
                    with world.promises.holds("second", "k", fence=claim.fence):
                        await claim.complete()

    world.start("owner", owner())
    world.start("second", second())


@scenario(gates=2, local=True)
async def local_lru(world: World) -> None:
    """In an outage each process answers for itself; two that did the same work are told of it by a conflict."""
    audited(world, "k")

    async def second() -> None:
        await asyncio.sleep(0.3)
        await claim_work_complete(world, "second", world.gates[1], "k")

    world.start("second", second())
    await claim_work_complete(world, "main", world.gates[0], "k")
    again = await claim_work_complete(world, "main again", world.gates[0], "k")
    is_done = any(effect.who == "main" and effect.recorded for effect in world.promises.effects["k"])
    if is_done and again is not Outcome.SUCCEEDED and not world.promises.conflicts:
        world.promises.broke(f"main has done it in this process, and main again is told {again}")


@scenario(local=True)
async def local_lru_alone(world: World) -> None:
    """No other process claims the key. The work lasts until all that was given up is looked at."""
    audited(world, "k")
    await claim_work_complete(world, "main", world.gate, "k", work=0.1)


@scenario(local=True)
async def local_lru_frees(world: World) -> None:
    """A claim that was sent is answered in this process, and freed: a late copy of it is taken back."""
    for _ in range(2):
        asked = world.loop.time()
        claim = await world.gate.claim("k")
        if claim.acquired:
            with world.promises.holds("main", "k", fence=claim.fence, until=asked + LEASE) as holding:
                holding.settling = True
                await claim.release()


def overruled_in_silence(world: World) -> None:
    what = "the work of an owner is overruled, and no conflict is told"
    if world.is_unheard:
        world.promises.accept("conflict behind a lost reply", what)
    else:
        world.promises.broke(what)


@scenario(gates=2, local=True)
async def local_lru_overrules(world: World) -> None:
    """What was done in an outage stands, and the owner that the store had meanwhile is told of a conflict."""
    audited(world, "k")
    world.is_resent = False

    async def second() -> None:
        asked = world.loop.time()
        claim = await world.gates[1].claim("k")
        if not claim.acquired:
            return
        with world.promises.holds("second", "k", fence=claim.fence, until=asked + LEASE) as holding:
            await asyncio.sleep(0.002)
            holding.ended = True  # the other process cannot know of it
            await asyncio.sleep(1.0)
            effect = world.promises.works("second", "k", "second")
            try:
                await claim.complete("second")
                effect.recorded = True
            except LOST as error:
                effect.excused = True
                if isinstance(error, ClaimLostError) and not world.promises.conflicts:
                    overruled_in_silence(world)

    async def owner() -> None:
        await asyncio.sleep(0.01)
        world.network.refuse(5)
        await claim_work_complete(world, "owner", world.gates[0], "k")

    world.start("second", second())
    world.start("owner", owner())


@scenario(local=True)
async def local_lru_holds(world: World) -> None:
    """The store is back before it knows of a claim: others in this process are told of that claim all the same."""
    audited(world, "k")
    world.is_resent = False

    async def owner() -> None:
        world.network.refuse(2)
        await claim_work_complete(world, "owner", world.gate, "k", work=0.1)

    async def second() -> None:
        for _ in range(10):
            await asyncio.sleep(0.002)
            await claim_work_complete(world, "second", world.gate, "k")

    world.start("owner", owner())
    world.start("second", second())


@scenario(local=True)
async def local_lru_goes_on(world: World) -> None:
    """What is completed while its claim is just brought into the store comes there as well."""
    audited(world, "k")
    world.is_resent = False

    async def owner() -> None:
        world.network.refuse(5)
        claim = await world.gate.claim("k")
        with world.promises.holds("owner", "k", fence=claim.fence) as holding:
            await world.network.has_sent["adopt"].wait()
            holding.settling = True
            await settle(world, "owner", "k", claim, "owner")

    world.start("owner", owner())


@scenario(local=True)
async def local_lru_gives_way(world: World) -> None:
    """A caller is cancelled, and another one gets the key here: what the first has left in the store gives way."""
    audited(world, "k")
    start_later(world, 0.004, lambda: claim_work_complete(world, "second", world.gate, "k", work=0.3))
    await claim_work_complete(world, "main", world.gate, "k")
