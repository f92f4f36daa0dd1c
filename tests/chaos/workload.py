"""The load: clients that claim, settle, renew, lock, move machines and use tokens, step after step, all on record."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Sequence

from fastdedup import Claim, Dedup, UnavailableError

from .caller import Shared, fill
from .history import SECOND, Event
from .ids import LedgerCaller
from .steps import CIRCLES, KEYS, LONG_LEASE, NAMED, TOKEN_TTL, TTL, Step, draw_step, terms

LEASE, SAFE_LEASE = 0.4, 5.0
"""Seconds; SAFE_LEASE is never over before its owner is through."""
BLOCKS = (0.6, 0.9, 1.0, 1.03, 1.06, 1.1, 1.15, 1.2, 1.28, 1.6)
"""For how long a program blocks its loop, in timeouts."""
SUBJECT = "user:7"


class Client(LedgerCaller):
    """A caller that takes step after step. `run` is its life."""

    def __init__(self, name: str, policy: str, dedup: Dedup, shared: Shared, draw: random.Random) -> None:
        super().__init__(name, policy, dedup, shared, draw)
        self._machines = {
            name: dedup.machine(name, initial=states[0], transitions=circle(states), ttl=TTL)
            for name, states in CIRCLES.items()
        }

    async def run(self) -> None:
        """Take steps until all shall stop."""
        while not self._shared.stopped:
            step = draw_step(self._draw, self._shared.mix)
            self._count += 1
            await getattr(self, f"_{step.kind}")(step)
            await asyncio.sleep(step.pause)

    # The steps

    async def _settle(self, step: Step) -> None:
        key = f"s{self._shared.generation()}-{step.slot}"
        await self._take("claim", f"claim/{key}", step, lambda: self._claim(key, step))

    async def _churn(self, step: Step) -> None:
        """A key that is never settled for good, so it changes owners all the time."""
        key = self._lasting(step)
        if step.end in ("complete", "fail"):
            step.end = "release"
        await self._take("claim", f"claim/{key}", step, lambda: self._claim(key, step), last="release")

    async def _again(self, step: Step) -> None:
        """The same owner claims again, as after a lost reply."""
        key, owner = self._lasting(step), f"{self._name}-{self._count}"
        call = lambda: self._claim(key, step, owner=owner)  # noqa: E731 -- it is called twice
        facts = {"owner": owner, "named": True, **terms(step)}
        event, claim = await self._asked("claim", f"claim/{key}", call, **facts)
        if event.outcome in ("acquired", "unavailable"):
            event, again = await self._asked("claim", f"claim/{key}", call, **facts)
            claim = again if event.outcome == "acquired" else claim
        if claim is not None and claim.acquired:
            await self._finish("release", f"claim/{key}", claim, step)

    async def _lock(self, step: Step) -> None:
        call = self._dedup.lock(f"l{step.slot}", lease=step.lease, wait=step.wait)
        key = f"lock/l{step.slot}"
        lease = round(step.lease * SECOND)
        event, lock = await self._asked("lock", key, call.__aenter__, lease=lease, ttl=lease)
        if lock is None:
            return
        await asyncio.sleep(step.lease + 0.03 if step.end == "overstay" else step.hold)
        leave = lambda: call.__aexit__(None, None, None)  # noqa: E731
        await self._asked("release", key, leave, owner=event.owner, fence=event.fence, known=event.degraded)

    async def _cancel(self, step: Step) -> None:
        """The caller goes away at a random moment; what it acquired unseen is fastdedup's to free."""
        key = self._lasting(step)
        asked = self._asked("claim", f"claim/{key}", lambda: self._claim(key, step), **terms(step))
        task = asyncio.ensure_future(asked)
        await asyncio.wait([task], timeout=step.use * 0.004)
        task.cancel()
        await asyncio.wait([task])
        if task.cancelled():
            return
        _, claim = task.result()
        if claim is not None and claim.acquired:
            await self._finish("release", f"claim/{key}", claim, step)

    async def _many(self, step: Step) -> None:
        self._lasting(step)
        keys = [f"c{n}" for n in range(KEYS)]
        events = [
            self._shared.recorder.ask("claim", self._key(f"claim/{key}"), **terms(step)) for key in keys
        ]
        try:
            claims = await self._dedup.claim_many(keys, lease=step.lease, ttl=step.ttl)
        except UnavailableError:
            for event in events:
                event.outcome = "unavailable"
                self._shared.recorder.answered(event)
            return
        for event, claim in zip(events, claims, strict=True):
            fill(event, claim)
            self._shared.recorder.answered(event)
        for key, claim in zip(keys, claims, strict=True):
            if claim.acquired:
                await self._finish("release", f"claim/{key}", claim, step)

    async def _token(self, step: Step) -> None:
        known = self._shared.tokens[self._policy]
        if step.use < 0.3 or not known:
            await self._issue(publish=True)
            return
        token = known[int(step.use * 997) % len(known)]
        if step.use < 0.7:
            await self._consume(token)
            return
        redeem = lambda: self._dedup.tokens.redeem(token, subject=SUBJECT, lease=step.lease, ttl=TTL)  # noqa: E731
        await self._take("redeem", f"token/{token}", step, redeem, ttl=TTL)

    async def _consume(self, token: str, owner: str = "") -> Event:
        """Use a token up; `owner` names the call that is made again."""
        named = {"owner": owner} if owner else {}
        call = lambda: self._dedup.tokens.consume(token, subject=SUBJECT, **named)  # noqa: E731
        facts = {"owner": owner or self._label, "ttl": round(TTL * SECOND)}
        event, _ = await self._asked("consume", f"token/{token}", call, named=bool(owner), **facts)
        return event

    async def _issue(self, *, publish: bool) -> str | None:
        """The token is the key, known only when it is there; nobody can use it before."""
        asked = time.monotonic_ns()
        task = asyncio.current_task()
        self._shared.marked.discard(task)
        try:
            token = await self._dedup.tokens.issue(subject=SUBJECT)
        except UnavailableError:
            return None
        event = self._shared.recorder.ask("issue", self._key(f"token/{token}"), ttl=round(TOKEN_TTL * SECOND))
        event.start, event.outcome, event.degraded = asked, "ok", task in self._shared.marked
        self._shared.recorder.answered(event)
        if publish:
            self._shared.publish(self._policy, token)
        return token

    async def _named(self, step: Step) -> None:
        """All processes claim a key under one name: now, or some generations late, as one job started twice."""
        back = 0 if step.use < 0.6 else 1 + int(step.use * 997) % 5
        name = f"n{self._shared.generation() - back}-{int(step.use * 9973) % NAMED}"
        step.ttl, key, owner = TTL, f"claim/{name}", f"job-{name}"
        call = lambda: self._claim(name, step, owner=owner)  # noqa: E731
        event, claim = await self._asked("claim", key, call, owner=owner, named=True, **terms(step))
        if event.outcome == "unavailable":
            await asyncio.sleep(0.015)
        if claim is not None and claim.acquired:
            # All write the same, as twins do: which of them it was, only the fence tells.
            await self._finish("complete", key, claim, step, value=owner)

    async def _machine(self, step: Step) -> None:
        """Move a machine that goes round to any of its states."""
        name = "lamp" if step.use < 0.6 else "signal"
        states, number = CIRCLES[name], f"m{self._shared.generation() // 2}-{step.slot % 2}"
        to = states[int(step.use * 997) % len(states)]
        call = lambda: self._machines[name].transition(number, to=to)  # noqa: E731
        event, _ = await self._asked("move", f"machine/{name}/{number}", call, value=to)
        if event.outcome == "unavailable":
            await asyncio.sleep(0.01)

    async def _giveup(self, step: Step) -> None:
        """A key that nobody else asks for, with a long lease. Whoever gets no answer gives it up, or asks again."""
        name = f"u{self._name}-{self._count}"
        key, lease = f"claim/{name}", round(LONG_LEASE * SECOND)
        facts = {"lease": lease, "ttl": round(TTL * SECOND)}
        call = lambda: self._dedup.claim(name, lease=LONG_LEASE, ttl=TTL)  # noqa: E731
        asked = asyncio.ensure_future(self._asked("claim", key, call, **facts))
        # One in three goes away before the deadline, if there is no answer by then.
        await asyncio.wait([asked], timeout=step.use * 0.1 if step.slot == 0 else None)
        asked.cancel()
        await asyncio.wait([asked])
        event, claim = (None, None) if asked.cancelled() else asked.result()
        if event is not None and event.outcome == "unavailable" and event.owner and step.slot == 1:
            await asyncio.sleep(step.use * 0.3)
            again = lambda: self._dedup.claim(name, owner=event.owner, lease=LONG_LEASE, ttl=TTL)  # noqa: E731
            event, claim = await self._asked("claim", key, again, owner=event.owner, named=True, **facts)
        elif event is None or event.outcome == "unavailable":
            self._shared.given_up.append((self._policy, "claim", name))
        if claim is not None and claim.acquired:
            await self._finish("release", key, claim, step)

    async def _burn(self, step: Step) -> None:
        """A token of one's own, used at once. Whoever gets no answer gives it up, or asks again."""
        token = await self._issue(publish=False)
        if token is None:
            return
        event = await self._consume(token)
        if event.outcome == "unavailable" and event.owner != self._label and step.slot == 1:
            await asyncio.sleep(step.use * 0.3)
            await self._consume(token, event.owner)
        elif event.outcome == "unavailable":
            self._shared.given_up.append((self._policy, "consume", token))

    async def _forget(self, step: Step) -> None:
        """An owner forgets its key in place of releasing it: the key's last fence is forgotten, too."""
        name = f"f{step.slot}"
        facts = {
            "lease": round(SAFE_LEASE * SECOND)
        }  # no ttl: the record does not stand long enough to count attempts
        call = lambda: self._dedup.claim(name, lease=SAFE_LEASE, ttl=TTL)  # noqa: E731
        event, claim = await self._asked("claim", f"claim/{name}", call, **facts)
        if event.outcome == "acquired":
            await asyncio.sleep(step.hold)
            forget = lambda: self._dedup.forget(name)  # noqa: E731
            await self._asked("release", f"claim/{name}", forget, owner=claim.owner, fence=claim.fence)

    async def _block(self, step: Step) -> None:
        """A claim goes out, and the program blocks its own loop for about the timeout."""
        claim = asyncio.ensure_future(self._giveup(step))
        for _ in range(2 + step.slot % 2):
            await asyncio.sleep(0)  # twice: it was asked, and nothing has been sent; thrice: it was sent
        time.sleep(self._shared.timeout * BLOCKS[int(step.use * 997) % len(BLOCKS)])  # noqa: ASYNC251 -- the fault
        await claim

    async def look_again(self, verb: str, name: str) -> None:
        """Ask, as a stranger, for what somebody gave up."""
        if verb == "consume":
            await self._consume(name)
            return
        call = lambda: self._dedup.claim(name, lease=LEASE, ttl=TTL)  # noqa: E731
        facts = {"lease": round(LEASE * SECOND), "ttl": round(TTL * SECOND)}
        event, claim = await self._asked("claim", f"claim/{name}", call, **facts)
        if event.outcome == "acquired":
            await self._asked("release", f"claim/{name}", claim.release, owner=claim.owner, fence=claim.fence)

    # Common parts

    def _lasting(self, step: Step) -> str:
        """Return a key whose record stands all through the run, so that its attempts can be followed."""
        step.ttl = TTL
        return f"c{step.slot}"

    def _claim(self, key: str, step: Step, owner: str | None = None) -> Awaitable[Claim]:
        return self._dedup.claim(key, owner=owner, lease=step.lease, ttl=step.ttl, wait=step.wait)


def circle(states: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the transitions of a machine whose states follow one another, and the last leads to the first."""
    return {state: (states[(n + 1) % len(states)],) for n, state in enumerate(states)}
