"""What clients do with their gates: a scenario for each way in which fastdedup is used.

The first client, `main`, is the one that may be cancelled. Each tells the world's promises what it was told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from typing import TypeVar

from fastdedup import (
    Claim,
    ClaimLostError,
    Dedup,
    DedupError,
    InProgressError,
    Outcome,
    TransitionOutcome,
    UnavailableError,
)

from .network import LATENCY
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


def audited(world: World, key: str) -> None:
    """At the end: whoever claims the key now is told of the work, or gets it if it was not done."""

    async def audit() -> None:
        world.promises.check_effects(key)
        claim = await world.gates[-1].claim(key)
        done = world.promises.must_be_done(key)
        expected = Outcome.SUCCEEDED if done else Outcome.ACQUIRED
        if claim.outcome is not expected and not (claim.outcome is Outcome.SUCCEEDED and world.promises.effects[key]):
            world.promises.broke(f"at the end {key!r} is {claim.outcome}, expected {expected}")

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
        world.promises._log(who, f"gets {error!r}")


async def claim_work_complete(world: World, who: str, gate: Dedup, key: str, wait: float = 0.0) -> Outcome:
    """Claim; work for a while, complete."""
    asked = world.loop.time()
    with world.bounded(who, wait + 2 * TIMEOUT):
        claim = await gate.claim(key, wait=wait)
    if claim.outcome is Outcome.SUCCEEDED:
        world.promises.duplicate(who, key, claim.result)
    if claim.acquired:
        with world.promises.holds(who, key, fence=claim.fence, until=asked + LEASE) as holding:
            await asyncio.sleep(0.02)
            holding.settling = True
            await settle(world, who, key, claim, who)
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

    async def second() -> None:
        await asyncio.sleep(0.4)
        await patiently(lambda: in_a_body(world, "second", world.gate, "k"))

    world.start("second", second())
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


@scenario()
async def release_and_claim(world: World) -> None:
    audited(world, "k")

    async def second() -> None:
        await asyncio.sleep(0.3)
        await patiently(lambda: claim_work_complete(world, "second", world.gate, "k", wait=3.0))

    world.start("second", second())
    asked = world.loop.time()
    claim = await world.gate.claim("k")
    if claim.acquired:
        with world.promises.holds("main", "k", fence=claim.fence, until=asked + LEASE) as holding:
            await asyncio.sleep(0.02)
            holding.settling = holding.ended = True
            try:
                await claim.release()
            except UnavailableError:
                holding.died = True  # it does not call again


@scenario()
async def redeem(world: World) -> None:
    token = await world.gate.tokens.issue("user:7")

    async def submit(who: str) -> None:
        asked = world.loop.time()
        claim = await world.gate.tokens.redeem(token, "user:7")
        if claim.outcome is Outcome.SUCCEEDED:
            world.promises.duplicate(who, "token", claim.result)
        if claim.acquired:
            with world.promises.holds(who, "token", fence=claim.fence, until=asked + LEASE) as holding:
                await asyncio.sleep(0.02)
                holding.settling = True
                await settle(world, who, "token", claim, who)

    async def check() -> None:
        world.promises.check_effects("token")
        if await world.gate.tokens.consume(token, "user:7") is Outcome.ACQUIRED and world.promises.must_be_done("token"):
            world.promises.broke("a token that was used is given again")

    world.at_end(check)

    async def second() -> None:
        await asyncio.sleep(0.3)
        await patiently(lambda: submit("second"))

    world.start("second", second())
    await submit("main")


def given_once(world: World, thing: str, again: Callable[[], Awaitable[bool]]) -> None:
    """At the end: what no call was given is given now, and what was given is not given again."""

    async def check() -> None:
        world.promises.check_uses(thing, world.after_error, world.after_cancel)
        was_given = world.promises.was_given(thing)
        given_again = await again()
        late = {verb for verb, _, _ in world.network.late}
        if was_given and given_again:
            what, name = f"{thing!r} was given, and is given again", "late take-back of an id"
            world.promises.accept(name, what) if "forget_id" in late else world.promises.broke(what)
        elif not was_given and not given_again:
            what, name = f"{thing!r} was given to no call, and is a duplicate", "late copy of an id"
            world.promises.accept(name, what) if "first" in late else world.promises.broke(what)

    world.at_end(check)


async def use(world: World, who: str, thing: str, call: Callable[[], Awaitable[bool]]) -> bool:
    """Ask for what only one call may have."""
    asked, answer, cancelled = world.promises.asks(who, thing), None, False
    try:
        with world.bounded(who, 3 * TIMEOUT):
            answer = await call()
    except asyncio.CancelledError:
        cancelled = True
        raise
    finally:
        world.promises.told(asked, answer, cancelled=cancelled)
    return answer


async def redelivered(world: World, call: Callable[[int], Awaitable[object]]) -> None:
    """Let one process call after the other until a call is answered, as a broker delivers a message again at once."""
    for at in (0, 1, 0):
        with suppress(UnavailableError):
            await call(at)
            return
    await patiently(lambda: call(1))


@scenario(gates=2)
async def consume(world: World) -> None:
    token = await world.gate.tokens.issue()

    async def consumes(who: str, at: int) -> bool:
        async def call() -> bool:
            return await world.gates[at].tokens.consume(token) is Outcome.ACQUIRED

        return await use(world, who, "token", call)

    given_once(world, "token", lambda: consumes("audit", 0))

    async def second() -> None:
        await asyncio.sleep(0.3)
        await patiently(lambda: consumes("second", 1))

    world.start("second", second())
    await redelivered(world, lambda at: consumes(f"main at {at}", at))


@scenario()
async def redeem_then_consume(world: World) -> None:
    """An owner who has redeemed a token consumes it: it is used up, and nobody else gets it."""
    token = await world.gate.tokens.issue()
    claim = await world.gate.tokens.redeem(token, owner="ann")
    with world.promises.holds("main", "token", fence=claim.fence):
        if await world.gate.tokens.consume(token, owner="ann") is not Outcome.ACQUIRED:
            world.promises.broke("the owner of a token cannot use it up")

    async def check() -> None:
        if await world.gate.tokens.consume(token, owner="bob") is not Outcome.SUCCEEDED:
            world.promises.broke("a token that was consumed is given again")

    world.at_end(check)


@scenario(gates=2)
async def transition(world: World) -> None:
    moves = {"pending": ("paid", "canceled"), "paid": (), "canceled": ()}
    machines = [gate.machine("order", initial="pending", transitions=moves) for gate in world.gates]
    changed: list[str] = []

    async def move(who: str, at: int, to: str) -> None:
        moved = await patiently(lambda: machines[at].transition("42", to=to))
        world.promises._log(who, repr(moved))
        if moved.outcome is TransitionOutcome.CHANGED:
            changed.append(to)
        elif moved.state == "pending":
            world.promises.broke(f"{who} gets {moved}")

    async def check() -> None:
        state, version = await machines[0].get("42")
        if len(changed) > 1 or version > 1 or (changed and changed != [state]):
            world.promises.broke(f"changed to {changed}, and is {state!r}, version {version}")

    world.at_end(check)
    world.start("second", move("second", 1, "canceled"))
    await move("main", 0, "paid")


@scenario(gates=2)
async def lock(world: World) -> None:
    async def critical(who: str, gate: Dedup) -> None:
        async with gate.lock("k", lease=LEASE, wait=3.0) as held:
            with world.promises.holds(who, "k", fence=held.fence) as holding:
                holding.settling = True
                await asyncio.sleep(0.05)

    async def second() -> None:
        await asyncio.sleep(0.01)
        with suppress(InProgressError), world.bounded("second", 8 * TIMEOUT + 3.5):
            await critical("second", world.gates[1])

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

    async def second() -> None:
        await asyncio.sleep(0.3)
        await patiently(lambda: take("second", "cb"))

    world.start("second", second())
    await take("main", "abc")


@scenario(gates=2)
async def first(world: World) -> None:
    ledgers = [gate.ledger("seen", window=3600.0, capacity=1000) for gate in world.gates]

    async def asks(who: str, at: int) -> bool:
        return await use(world, who, "id", lambda: ledgers[at].first("id"))

    given_once(world, "id", lambda: asks("audit", 0))

    async def second() -> None:
        await asyncio.sleep(0.3)
        await patiently(lambda: asks("second", 0))

    world.start("second", second())
    await redelivered(world, lambda at: asks(f"main at {at}", at))


@scenario(gates=2)
async def first_many(world: World) -> None:
    ledgers = [gate.ledger("seen", window=3600.0, capacity=1000) for gate in world.gates]

    async def asks(who: str, at: int, ids: str) -> None:
        uses = [world.promises.asks(who, id) for id in ids]
        answers: list[bool] | list[None] = [None] * len(ids)
        cancelled = False
        try:
            answers = await ledgers[at].first_many(list(ids))
        except asyncio.CancelledError:
            cancelled = True
            raise
        finally:
            for asked, answer in zip(uses, answers, strict=True):
                world.promises.told(asked, answer, cancelled=cancelled)

    for id in "ab":
        given_once(world, id, lambda id=id: use(world, "audit", id, lambda: ledgers[1].first(id)))

    async def second() -> None:
        await asyncio.sleep(0.3)
        await patiently(lambda: asks("second", 1, "b"))

    world.start("second", second())
    await redelivered(world, lambda at: asks(f"main at {at}", at, "ab"))


@scenario(gates=2)
async def wait(world: World) -> None:
    audited(world, "k")

    async def second() -> None:
        await asyncio.sleep(0.005)
        outcome = await claim_work_complete(world, "second", world.gates[1], "k", wait=3.0)
        if outcome is Outcome.IN_PROGRESS and not world.promises.left_by_the_dead():
            world.promises.broke("a waiter was told nothing of a key that was settled")

    world.start("second", second())
    await claim_work_complete(world, "main", world.gates[0], "k")


@scenario()
async def renew(world: World) -> None:
    """The body takes longer than its lease, which is renewed."""
    audited(world, "k")
    effects: list[Effect] = []

    async def body(who: str) -> None:
        async with world.gate.claim("k", lease=0.9, renew=True) as claim:
            if not claim.acquired:
                return
            with world.promises.holds(who, "k", fence=claim.fence) as holding:
                holding.settling = True
                await asyncio.sleep(0.7)
                effects.append(world.promises.works(who, "k"))
        effects[-1].recorded = True

    async def until_lost(who: str) -> None:
        try:
            await body(who)
        except LOST as error:
            own = [effect for effect in effects if effect.who == who]
            for effect in own:
                effect.excused = True
            if not own and not isinstance(error, ClaimLostError):
                raise  # its claim was refused

    async def second() -> None:
        await asyncio.sleep(0.5)
        await patiently(lambda: until_lost("second"))

    world.start("second", second())
    await until_lost("main")


@scenario()
async def remember(world: World) -> None:
    ledger = world.gate.ledger("done", window=3600.0, capacity=1000)

    async def take(who: str) -> None:
        asked = world.loop.time()
        claim = await world.gate.claim("k", remember=ledger)
        if claim.outcome is Outcome.SUCCEEDED and not claim.remembered:
            world.promises.duplicate(who, "k", claim.result)
        if claim.acquired:
            with world.promises.holds(who, "k", fence=claim.fence, until=asked + LEASE) as holding:
                await asyncio.sleep(0.02)
                holding.settling = True
                await settle(world, who, "k", claim, who)

    async def check() -> None:
        world.promises.check_effects("k")
        claim = await world.gate.claim("k", remember=ledger)
        if claim.acquired and world.promises.must_be_done("k"):
            world.promises.broke("what a ledger shall remember is given again")

    world.at_end(check)

    async def second() -> None:
        await asyncio.sleep(0.3)
        await patiently(lambda: take("second"))

    world.start("second", second())
    await take("main")


@scenario(gates=2, local=True)
async def local_lru(world: World) -> None:
    """In an outage each process answers for itself; two that did the same work are told of it by a conflict."""
    audited(world, "k")

    async def second() -> None:
        await asyncio.sleep(0.3)
        await claim_work_complete(world, "second", world.gates[1], "k")

    world.start("second", second())
    await claim_work_complete(world, "main", world.gates[0], "k")
    await claim_work_complete(world, "main again", world.gates[0], "k")


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
            world.promises._log("main", repr(error))
            effect.excused = isinstance(error, UnavailableError)
        else:
            effect.excused = how == "failed"


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


@scenario()
async def released_anew(world: World) -> None:
    """A release is cut short; the client says once more that the key is free."""
    asked = world.loop.time()
    claim = await world.gate.claim("k")
    with world.promises.holds("main", "k", fence=claim.fence, until=asked + LEASE) as holding:
        holding.settling = True
        try:
            if await cut_short(claim.release):
                await claim.release()
        except UnavailableError:
            holding.died = True  # it does not call again
        except DedupError as error:
            world.promises.broke(f"its owner released it, and is told {error!r}")


@scenario(gates=2)
async def two_gates(world: World) -> None:
    audited(world, "k")

    async def second() -> None:
        await asyncio.sleep(0.002)
        await patiently(lambda: claim_work_complete(world, "second", world.gates[1], "k"))

    world.start("second", second())
    await patiently(lambda: claim_work_complete(world, "main", world.gates[0], "k"))
