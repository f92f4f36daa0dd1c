"""Scenarios of what only one call may have: a token's use, an id's first, a move of a machine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from fastdedup import Ledger, Outcome, TransitionOutcome, UnavailableError

from .scenarios import patiently, start_later, work_on
from .simulation import TIMEOUT, World, scenario


@scenario()
async def redeem(world: World) -> None:
    token = await world.gate.tokens.issue("user:7")

    async def submit(who: str) -> None:
        asked = world.loop.time()
        claim = await world.gate.tokens.redeem(token, "user:7")
        await work_on(world, who, "token", claim, asked)

    async def check() -> None:
        world.promises.check_effects("token")
        outcome = await world.gate.tokens.consume(token, "user:7")
        if outcome is Outcome.ACQUIRED and world.promises.must_be_done("token"):
            world.promises.contradicts("a token that was used is given again")

    world.at_end(check)

    start_later(world, 0.3, lambda: submit("second"))
    await submit("main")


def given_once(world: World, thing: str, again: Callable[[], Awaitable[bool]]) -> None:
    """At the end: what no call was given is given now, and what was given is not given again."""

    async def check() -> None:
        world.promises.check_uses(thing, world.after_error, world.after_cancel)
        was_given = world.promises.was_given(thing)
        given_again = await again()
        if was_given and given_again:
            world.promises.contradicts(f"{thing!r} was given, and is given again")
        elif not was_given and not given_again:
            world.promises.broke(f"{thing!r} was given to no call, and is a duplicate")

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

    start_later(world, 0.3, lambda: consumes("second", 1))
    await redelivered(world, lambda at: consumes(f"main at {at}", at))


@scenario()
async def failed_use(world: World) -> None:
    """The error of a use comes when that is taken back, or after two timeouts: a broker delivers again at once."""
    token = await world.gate.tokens.issue()
    asked = world.loop.time()
    try:
        await world.gate.tokens.consume(token)
    except UnavailableError:
        if world.loop.time() < asked + 2 * TIMEOUT and "S" in world.states():
            world.promises.broke("the error of a use is told before that is taken back")


@scenario()
async def failed_first(world: World) -> None:
    """As `failed_use`, of an id. No other call asks for it, so what a late copy leaves stays there."""
    ledger = world.gate.ledger("seen", window=3600.0, capacity=1000)

    async def asks(who: str) -> bool:
        return await use(world, who, "id", lambda: ledger.first("id"))

    given_once(world, "id", lambda: asks("audit"))
    asked = world.loop.time()
    try:
        await asks("main")
    except UnavailableError:
        if world.loop.time() < asked + 2 * TIMEOUT and world.is_remembered():
            world.promises.broke("the error of a first call is told before that is taken back")


@scenario(gates=2)
async def redeem_what_is_consumed(world: World) -> None:
    """A token that one process consumes is redeemed by another one, which has nothing to do and gives it back."""
    token = await world.gate.tokens.issue()

    async def consumes(who: str, at: int) -> bool:
        async def call() -> bool:
            outcome = await world.gates[at].tokens.consume(token)
            if outcome is Outcome.IN_PROGRESS:
                raise UnavailableError("ask again once it is given back")
            return outcome is Outcome.ACQUIRED

        return await use(world, who, "token", call)

    given_once(world, "token", lambda: consumes("audit", 0))

    async def redeems() -> None:
        asked = world.promises.asks("second", "token")
        with world.bounded("second", 5 * TIMEOUT):
            claim = await world.gates[1].tokens.redeem(token, wait=TIMEOUT)
        if claim.acquired:
            with world.promises.holds(
                "second", "token", fence=claim.fence
            ):  # until it gives up to release it
                await patiently(claim.release)
        world.promises.told(asked, False if claim.outcome is Outcome.SUCCEEDED else None)

    start_later(world, 0.1, redeems)
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
        world.promises.note(who, repr(moved))
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
async def first(world: World) -> None:
    ledgers = [gate.ledger("seen", window=3600.0, capacity=1000) for gate in world.gates]

    async def asks(who: str, at: int) -> bool:
        return await use(world, who, "id", lambda: ledgers[at].first("id"))

    given_once(world, "id", lambda: asks("audit", 0))

    start_later(world, 0.3, lambda: asks("second", 0))
    await redelivered(world, lambda at: asks(f"main at {at}", at))


async def asked_elsewhere(world: World, second: Callable[[Ledger], Awaitable[bool]]) -> None:
    """Another process asks for an id before the first one knows that its own call has failed."""
    ledgers = [gate.ledger("seen", window=3600.0, capacity=1000) for gate in world.gates]

    async def owner() -> None:
        await use(world, "owner", "id", lambda: ledgers[0].first("id"))

    async def asks() -> None:
        await asyncio.sleep(0.1)
        await patiently(lambda: use(world, "second", "id", lambda: second(ledgers[1])))

    given_once(world, "id", lambda: use(world, "audit", "id", lambda: ledgers[0].first("id")))
    world.start("owner", owner())
    world.start("second", asks())


@scenario(gates=2)
async def first_elsewhere(world: World) -> None:
    await asked_elsewhere(world, lambda ledger: ledger.first("id"))


@scenario(gates=2)
async def first_many_elsewhere(world: World) -> None:
    async def in_a_list(ledger: Ledger) -> bool:
        return (await ledger.first_many(["id"]))[0]

    await asked_elsewhere(world, in_a_list)


@scenario()
async def first_again(world: World) -> None:
    """A call for an id follows another one at once. If that was cancelled, the second is the first."""
    ledger = world.gate.ledger("seen", window=3600.0, capacity=1000)
    ended = asyncio.Event()

    async def asks(who: str) -> bool:
        return await use(world, who, "id", lambda: ledger.first("id"))

    given_once(world, "id", lambda: asks("audit"))

    async def second() -> None:
        await ended.wait()
        try:
            await asks("second")
        except UnavailableError as error:
            if not world.disturbances:
                world.promises.broke(f"second is refused while all is well: {error!r}")

    world.start("second", second())
    try:
        await asks("main")
    finally:
        ended.set()


@scenario(gates=2)
async def first_many(world: World) -> None:
    ledgers = [gate.ledger("seen", window=3600.0, capacity=1000) for gate in world.gates]

    async def asks(who: str, at: int, ids: str) -> None:
        uses = [world.promises.asks(who, each) for each in ids]
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

    for each in "ab":
        given_once(world, each, lambda each=each: use(world, "audit", each, lambda: ledgers[1].first(each)))

    start_later(world, 0.3, lambda: asks("second", 1, "b"))
    await redelivered(world, lambda at: asks(f"main at {at}", at, "ab"))


@scenario()
async def remember(world: World) -> None:
    ledger = world.gate.ledger("done", window=3600.0, capacity=1000)

    async def take(who: str) -> None:
        asked = world.loop.time()
        claim = await world.gate.claim("k", remember=ledger)
        await work_on(world, who, "k", claim, asked)

    async def check() -> None:
        world.promises.check_effects("k")
        claim = await world.gate.claim("k", remember=ledger)
        if claim.acquired and world.promises.must_be_done("k"):
            world.promises.broke("what a ledger shall remember is given again")

    world.at_end(check)

    start_later(world, 0.3, lambda: take("second"))
    await take("main")
