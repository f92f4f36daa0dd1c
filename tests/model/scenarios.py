"""What clients do with their gates: a scenario for each way in which fastdedup is used.

The first client, `main`, is the one that may be cancelled. Each tells the world's promises what it was told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from math import inf
from typing import TypeVar

from fastdedup import Claim, ClaimLostError, Dedup, InProgressError, Outcome, UnavailableError
from fastdedup.kernel.owners import owner_field

from .promises import Effect
from .simulation import LEASE, TIMEOUT, World, scenario

T = TypeVar("T")
LOST = (ClaimLostError, UnavailableError)


async def patiently(call: Callable[[], Awaitable[T]], tries: int = 8) -> T:
    """Repeat a call while the store is unavailable, as a broker or a retrying client does."""
    for _ in range(tries - 1):
        with suppress(UnavailableError):
            return await call()
        await asyncio.sleep(0.3)
    return await call()


def start_later(world: World, seconds: float, call: Callable[[], Awaitable[object]]) -> None:
    """Start a second client, which begins after some seconds and is as patient."""

    async def second() -> None:
        await asyncio.sleep(seconds)
        await patiently(call)

    world.start("second", second())


def audited(world: World, key: str) -> None:
    """At the end: whoever claims the key now is told of the work, or gets it if it was not done."""

    async def audit() -> None:
        world.promises.check_effects(key)
        claim = await world.gates[-1].claim(key)
        expected = [Outcome.SUCCEEDED] if world.promises.effects[key] else []
        if not world.promises.must_be_done(key):
            expected.append(Outcome.ACQUIRED)
        if claim.outcome not in expected:
            world.promises.contradicts(f"at the end {key!r} is {claim.outcome}, expected {expected}")

    world.at_end(audit)


async def settle(world: World, who: str, key: str, claim: Claim, value: object) -> None:
    """Do the work and complete the claim; what the client is told of that counts."""
    effect = world.promises.works(who, key, value)
    try:
        with world.bounded(who, LEASE + TIMEOUT):
            await claim.complete(value)
        effect.recorded = True
    except LOST as error:
        effect.excused = True
        world.promises.note(who, f"gets {error!r}")
        is_held = claim.settlement.lease_left > 0 and not world.promises.conflicts
        if isinstance(error, ClaimLostError) and is_held:
            world.promises.contradicts(f"{who} holds {key!r} within its lease, and is told that it is lost")


async def work_on(world: World, who: str, key: str, claim: Claim, asked: float, work: float = 0.02) -> None:
    """Work for a while and complete what was acquired at the time `asked` or later; check a duplicate's result."""
    if claim.outcome is Outcome.SUCCEEDED and not claim.remembered:
        world.promises.duplicate(who, key, claim.result)
    if claim.acquired:
        with world.promises.holds(who, key, fence=claim.fence, until=asked + LEASE) as holding:
            await asyncio.sleep(work)
            holding.settling = True
            await settle(world, who, key, claim, who)


NEWS = 1.5
"""Seconds within which a waiter gets news of its key, whatever a fate does to its subscription."""


def check_wait(world: World, who: str, key: str, asked: float, outcome: Outcome) -> None:
    """A waiter is told soon after the work is done, and does not wait for a key that is free."""
    since = max([asked, *(effect.at for effect in world.promises.effects[key])])
    bound = world.news if world.undisturbed else NEWS * max(1, world.disturbances)
    if outcome is Outcome.SUCCEEDED and world.loop.time() > since + bound:
        world.promises.broke(f"{who} was told {world.loop.time() - since:.3f} s later that {key!r} is done")
    if outcome is Outcome.IN_PROGRESS and not world.promises.left_by_the_dead():
        world.promises.contradicts(f"{who} waits for {key!r} in vain: nobody holds it for so long")


async def claim_work_complete(
    world: World, who: str, gate: Dedup, key: str, wait: float = 0.0, work: float = 0.02
) -> Outcome:
    """Claim; work for a while, complete."""
    asked = world.loop.time()
    try:
        with world.bounded(who, wait + 2 * TIMEOUT):
            claim = await gate.claim(key, wait=wait)
    except UnavailableError as error:
        if world.loop.time() < asked + wait and world.disturbances < 2:
            world.promises.broke(f"{who} does not look again within its wait: {error!r}")
        raise
    if wait:
        check_wait(world, who, key, asked, claim.outcome)
    if claim.acquired and not claim.degraded and not world.is_stored(claim.fence):
        world.promises.contradicts(f"{who} is not told that the store does not know of its claim")
    await work_on(world, who, key, claim, asked, work)
    return claim.outcome


@scenario()
async def claim_and_complete(world: World) -> None:
    audited(world, "k")

    async def second() -> None:
        await asyncio.sleep(0.01)
        await claim_work_complete(world, "second", world.gate, "k")

    world.start("second", second())
    await claim_work_complete(world, "main", world.gate, "k")
    await claim_work_complete(world, "main again", world.gate, "k")


@scenario()
async def alone(world: World) -> None:
    """No other client claims the key, so what a lost packet leaves stays there."""
    audited(world, "k")
    await claim_work_complete(world, "main", world.gate, "k")


@scenario()
async def twins(world: World) -> None:
    """Two equal claims of one turn become one operation; the second must not wait for a first that has gone."""
    audited(world, "k")
    begins = asyncio.Event()

    async def second() -> None:
        await begins.wait()
        outcome = await claim_work_complete(world, "second", world.gate, "k")
        is_gone = world.loop.steps > world.cancelled_at + 1
        # With a second fate or a copy, the release of the first may be under way still.
        if outcome is Outcome.IN_PROGRESS and is_gone and not world.may_free_late:
            world.promises.broke("second is told of an owner that has gone")

    world.start("second", second())
    try:
        await asyncio.sleep(0)
    finally:
        begins.set()
    await claim_work_complete(world, "main", world.gate, "k")


async def in_a_body(world: World, who: str, gate: Dedup, key: str) -> None:
    async with gate.claim(key) as claim:
        if claim.outcome is Outcome.SUCCEEDED:
            world.promises.duplicate(who, key)
        if not claim.acquired:
            return
        with world.promises.holds(who, key, fence=claim.fence) as holding:
            holding.settling = True  # leaving settles, whatever happens
            await asyncio.sleep(0.02)
            effect = world.promises.works(who, key)
    effect.recorded = True


@scenario()
async def async_with(world: World) -> None:
    audited(world, "k")
    start_later(world, 0.4, lambda: in_a_body(world, "second", world.gate, "k"))
    await in_a_body(world, "main", world.gate, "k")


@scenario(gates=2)
async def once(world: World) -> None:
    audited(world, "k")

    def place_on(gate: Dedup, who: str) -> Callable[[str], Awaitable[str]]:
        @gate.once(key=lambda order: order, wait=1.0)
        async def place(order: str) -> str:
            with world.promises.holds(who, order):
                await asyncio.sleep(0.02)
                world.promises.works(who, order, "placed")
                return "placed"

        return place

    async def order(who: str, gate: Dedup) -> None:
        place = place_on(gate, who)
        with suppress(InProgressError):
            world.promises.duplicate(who, "k", await patiently(lambda: place("k")))

    world.start("second", order("second", world.gates[1]))
    await order("main", world.gates[0])


@scenario(gates=2)
async def lock(world: World) -> None:

    async def critical(who: str, gate: Dedup) -> None:
        async with gate.lock("k", lease=LEASE, wait=3.0) as held:
            with world.promises.holds(who, "k", fence=held.fence) as holding:
                holding.settling = True
                await asyncio.sleep(0.05)

    async def second() -> None:
        await asyncio.sleep(0.01)
        try:
            with world.bounded("second", 3.0 + 2 * TIMEOUT):
                await critical("second", world.gates[1])
        except InProgressError:
            check_wait(world, "second", "k", 0.0, Outcome.IN_PROGRESS)

    world.start("second", second())
    await critical("main", world.gates[0])


@scenario()
async def claim_many(world: World) -> None:
    for key in "abc":
        audited(world, key)

    async def take(who: str, keys: str) -> None:
        asked, held = world.loop.time(), []
        with ExitStack() as stack:
            for claim in await world.gate.claim_many(list(keys)):
                if claim.outcome is Outcome.SUCCEEDED:
                    world.promises.duplicate(who, claim.key, claim.result)
                if claim.acquired:
                    holds = world.promises.holds(who, claim.key, fence=claim.fence, until=asked + LEASE)
                    held.append((claim, stack.enter_context(holds)))
            for claim, holding in held:
                holding.settling = True
                await settle(world, who, claim.key, claim, who)

    start_later(world, 0.3, lambda: take("second", "cb"))
    await take("main", "abc")


async def waits(world: World) -> None:
    await asyncio.sleep(0.005)
    await claim_work_complete(world, "second", world.gates[1], "k", wait=3.0)


@scenario(gates=2)
async def wait(world: World) -> None:
    audited(world, "k")
    world.start("second", waits(world))
    await claim_work_complete(world, "main", world.gates[0], "k")


async def waits_undisturbed(world: World, news: float, happens: Callable[[], None]) -> None:
    """Another owner works while a client waits, and something happens to the subscription. No client is cancelled."""
    audited(world, "k")
    world.news = news

    async def owner() -> None:
        await claim_work_complete(world, "owner", world.gates[0], "k")

    world.start("second", waits(world))
    world.start("owner", owner())
    world.loop.call_later(0.012, happens)


@scenario(gates=2)
async def wait_resubscribed(world: World) -> None:
    """The subscription breaks: what a waiter misses until it is back, it looks up then."""
    await waits_undisturbed(world, 0.22, world.network.unsubscribe)


@scenario(gates=2)
async def wait_unheard(world: World) -> None:
    """The subscription breaks, and the server allows no other: a waiter looks by itself every so often."""

    def forbid() -> None:
        world.network.subscribed = b"-NOPERM no permission to subscribe\r\n"
        world.network.unsubscribe()

    await waits_undisturbed(world, 0.3, forbid)


@scenario()
async def renew(world: World) -> None:
    """The body takes longer than its lease, which is renewed."""
    audited(world, "k")
    effects: list[Effect] = []

    async def body(who: str) -> None:
        async with world.gate.claim("k", lease=world.short_lease, renew=True) as claim:
            if not claim.acquired:
                return
            with world.promises.holds(who, "k", fence=claim.fence) as holding:
                holding.settling = True
                await asyncio.sleep(world.short_lease - 0.2)
                effects.append(world.promises.works(who, "k"))
        effects[-1].recorded = True

    async def until_lost(who: str) -> None:
        asked = world.loop.time()
        try:
            await body(who)
        except asyncio.CancelledError:
            # Its completing goes on by itself, but not beyond its lease.
            for effect in effects:
                effect.excused = effect.excused or (effect.who == who and world.is_long_outage)
            raise
        except LOST as error:
            if isinstance(error, ClaimLostError) and world.loop.time() < asked + world.short_lease:
                world.promises.contradicts(
                    f"{who} is told that its claim is lost before its first lease ends"
                )
            own = [effect for effect in effects if effect.who == who]
            for effect in own:
                effect.excused = True
            if not own and not isinstance(error, ClaimLostError):
                raise  # its claim was refused

    start_later(world, 0.5, lambda: until_lost("second"))
    await until_lost("main")


@scenario(two_loops=True)
async def two_loops(world: World) -> None:
    """One process has a gate on each of two event loops, as with `fastdedup.sync` beside asyncio."""
    audited(world, "k")
    other = world.gate_on_other_loop

    async def second() -> None:
        await asyncio.sleep(0.002)
        await patiently(lambda: claim_work_complete(world, "second", other, "k"))

    world.start("second", world.on_other_loop(second()))
    await patiently(lambda: claim_work_complete(world, "main", world.gate, "k"))


@scenario(gates=2)
async def two_gates(world: World) -> None:
    audited(world, "k")
    start_later(world, 0.002, lambda: claim_work_complete(world, "second", world.gates[1], "k"))
    await patiently(lambda: claim_work_complete(world, "main", world.gates[0], "k"))


@scenario(gates=2)
async def named_owner(world: World) -> None:
    """An owner with a name of its own asks again after an error, and gets its own claim back."""
    audited(world, "k")
    await world.gate.get(
        "k"
    )  # a gate that knows no time of the store leaves alone what a name may have held before

    async def work(who: str, gate: Dedup) -> None:
        asked = 0.0

        async def ask() -> Claim:
            nonlocal asked
            asked = world.loop.time()
            return await gate.claim("k", owner=who)

        claim = await patiently(ask)
        if claim.acquired and claim.attempt > 1 and world.cancelled_at == inf:
            world.promises.broke(
                f"{who} gets the key by attempt {claim.attempt}: its own claim was taken back"
            )
        await work_on(world, who, "k", claim, asked)

    async def second() -> None:
        await asyncio.sleep(0.4)
        await work("second", world.gates[1])

    world.start("second", second())
    await work("main", world.gates[0])


@scenario(gates=2)
async def named_again(world: World) -> None:
    """A named owner claims a key twice at once, and once more: whatever becomes of one call, it holds the key."""
    lease_ends = 0.0

    async def claim() -> Claim:
        return await world.gate.claim("k", owner="ann")

    async def twin() -> None:
        nonlocal lease_ends
        held = await patiently(claim)
        if held.acquired:
            lease_ends = world.loop.time() + LEASE - 2 * TIMEOUT  # that call was sent no earlier
            await asyncio.sleep(0.5)
            lease_ends = 0.0
            await settle(world, "twin", "k", held, "done")

    async def other() -> None:
        await asyncio.sleep(0.3)
        taken = await patiently(lambda: world.gates[1].claim("k", owner="bob"))
        if taken.acquired and world.loop.time() < lease_ends:
            world.promises.broke("other got the key that ann holds")

    await world.gate.get("k")
    world.start("twin", twin())
    world.start("other", other())
    await patiently(claim)
    await asyncio.sleep(0.1)
    await patiently(claim)


@scenario(gates=2)
async def named_hedge(world: World) -> None:
    """A named owner claims a key by two calls; the one answered first gives up the other, and holds the key."""
    audited(world, "k")
    calls: list[asyncio.Task[None]] = []

    async def call(who: str) -> None:
        asked = world.loop.time()
        claim = await world.gate.claim("k", owner="ann")
        for other in calls:
            if other is not asyncio.current_task():
                other.cancel()
        await work_on(world, who, "k", claim, asked, work=0.5)

    await world.gate.get("k")
    calls += [world.start(who, call(who)) for who in ("one", "two")]
    start_later(world, 0.3, lambda: claim_work_complete(world, "second", world.gates[1], "k"))


@scenario(gates=2)
async def asked_again_by_name(world: World) -> None:
    """A claim ends in an error that names its owner; under this name its client asks again, and holds the key."""
    audited(world, "k")
    start_later(world, 0.3, lambda: claim_work_complete(world, "second", world.gates[1], "k"))
    asked = world.loop.time()
    try:
        claim = await world.gate.claim("k")
    except UnavailableError as error:
        owner = error.owner
        assert owner is not None
        world.chosen.add(owner_field(owner))
        claim = await patiently(lambda: world.gate.claim("k", owner=owner))
    await work_on(world, "main", "k", claim, asked, work=0.5)
