"""Scenarios of what a gate does by itself: refuse calls in an outage, send no call twice that would act twice."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from fastdedup import BreakerState, UnavailableError

from .simulation import World, scenario


@scenario()
async def breaker(world: World) -> None:
    """Three failures in a row open the breaker, and fewer do not."""
    world.is_resent = False  # the connections that break here are no fates

    async def calls() -> None:
        for number in range(10):
            is_open = world.gate.breaker is BreakerState.OPEN
            if is_open != (number == 9) and world.undisturbed:
                world.promises.broke(f"the breaker is {world.gate.breaker} before call {number}")
            if number in (0, 2, 4, 6):
                world.network.refuse(3 if number == 6 else 1)
            with suppress(UnavailableError):
                await world.gate.get(f"k{number}")

    world.start("second", calls())


@scenario()
async def forget(world: World) -> None:
    """This call has no owner, so it is not sent again: it might forget what the next owner has done."""
    with suppress(UnavailableError):
        await world.gate.forget("k")
    await asyncio.sleep(0.1)
    await world.gate.get("k")
