"""Scenarios of settlings that are cut short, and said once more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from fastdedup import Claim, ClaimLostError, DedupError, Outcome, UnavailableError

from .network import LATENCY
from .scenarios import audited, claim_work_complete, patiently, settle, start_later
from .simulation import LEASE, World, scenario


async def cut_short(call: Callable[[], Awaitable[None]]) -> bool:
    """Begin to settle a claim and give up before the answer comes, after it has taken effect; False if it came."""
    try:
        async with asyncio.timeout(1.5 * LATENCY):
            await call()
    except TimeoutError:
        return True
    return False


async def say_anew(world: World, how: str) -> None:
    """Complete a claim, but the call is cut short; then say how it ends, again."""
    asked = world.loop.time()
    claim = await world.gate.claim("k")
    with world.promises.holds("main", "k", fence=claim.fence, until=asked + LEASE) as holding:
        holding.settling = True
        effect = world.promises.works("main", "k", 1)
        if not await cut_short(lambda: claim.complete(1)):
            effect.recorded = True
            return
        try:
            await (claim.complete(1) if how == "completed" else claim.fail("it failed"))
        except ClaimLostError as error:
            world.promises.broke(f"its owner settled it, and is told {error!r}")
        except DedupError as error:  # it was completed before, or is not recorded
            world.promises.note("main", repr(error))
            effect.excused = isinstance(error, UnavailableError)
        else:
            effect.excused = how == "failed"
            world.at_end(lambda: stays(world, claim, how))


async def stays(world: World, claim: Claim, how: str) -> None:
    """What was said last counts, whatever becomes of what was said before."""
    if claim.settlement.settled != how:
        world.promises.broke(
            f"main is told that its claim is {how}, and then it is {claim.settlement.settled}"
        )


@scenario()
async def completed_anew(world: World) -> None:
    audited(world, "k")
    await say_anew(world, "completed")


@scenario()
async def failed_anew(world: World) -> None:
    async def check() -> None:
        claim = await world.gate.claim("k")
        done = world.promises.effects["k"]
        if claim.acquired and done and not done[0].excused:
            world.promises.broke("what was settled is given again")

    world.at_end(check)
    await say_anew(world, "failed")


async def say_free_anew(world: World, between: Callable[[], Awaitable[None]]) -> None:
    """A release is cut short; the client says once more that the key is free."""
    asked = world.loop.time()
    claim = await world.gate.claim("k")
    with world.promises.holds("owner", "k", fence=claim.fence, until=asked + LEASE) as holding:
        holding.settling = True
        try:
            if await cut_short(claim.release):
                holding.ended = True
                await between()
                await claim.release()
        except UnavailableError:
            holding.died = True  # it does not call again
        except DedupError as error:
            world.promises.broke(f"its owner released it, and is told {error!r}")


@scenario()
async def released_anew(world: World) -> None:
    async def nothing() -> None:
        pass

    await say_free_anew(world, nothing)


@scenario(gates=2)
async def released_and_taken(world: World) -> None:
    """Another owner has the key before the first one says once more that it is free. No client is cancelled."""
    audited(world, "k")

    async def second() -> None:
        await asyncio.wait([world.start("second", take())])

    async def take() -> None:
        await claim_work_complete(world, "second", world.gates[1], "k")

    world.start("owner", say_free_anew(world, second))


@scenario()
async def completed_inside(world: World) -> None:
    """The body completes its claim itself. If it is cancelled after that, the key is not freed."""
    audited(world, "k")

    async def body(who: str) -> None:
        async with world.gate.claim("k") as claim:
            if claim.outcome is Outcome.SUCCEEDED:
                world.promises.duplicate(who, "k", claim.result)
            if claim.acquired:
                with world.promises.holds(who, "k", fence=claim.fence) as holding:
                    holding.settling = True
                    await settle(world, who, "k", claim, who)

    start_later(world, 0.3, lambda: body("second"))
    await body("main")


@scenario()
async def release_and_claim(world: World) -> None:
    audited(world, "k")
    start_later(world, 0.3, lambda: claim_work_complete(world, "second", world.gate, "k", wait=3.0))
    asked = world.loop.time()
    claim = await world.gate.claim("k", wait=1.0)
    if claim.acquired:
        with world.promises.holds("main", "k", fence=claim.fence, until=asked + LEASE) as holding:
            await asyncio.sleep(0.02)
            holding.settling = holding.ended = True
            try:
                await claim.release()
            except UnavailableError:
                holding.died = True  # it does not call again


@scenario(gates=2)
async def released_by_name(world: World) -> None:
    """What one process frees, another one of the same name acquires anew: what is left of the release spares that."""

    async def second() -> None:
        claim = await world.gates[1].claim("k", owner="ann")
        if claim.attempt > 1:
            start_later(world, 1.0, claim.complete)
        elif claim.acquired:  # it is the first one's own, which may still be released
            with suppress(ClaimLostError):
                await patiently(claim.complete)

    start_later(world, 0.3, second)
    await (await world.gate.claim("k", owner="ann")).release()
