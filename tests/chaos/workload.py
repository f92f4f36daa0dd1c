"""The load: clients that claim, settle, renew, lock and use tokens, step after step, each step on record."""

from __future__ import annotations

import asyncio
import random
import time
import traceback
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from fastdedup import Claim, ClaimLostError, Dedup, InProgressError, UnavailableError

from .history import OVERRULED, SECOND, Event, Recorder
from .steps import KEYS, TOKEN_TTL, TTL, Step, draw_step, terms

GENERATION = 0.12
"""Seconds after which the clients of all processes move on to new keys: a settled key is a dull one."""


@dataclass(slots=True)
class Shared:
    """What the clients of one process share in one run.

    Attributes:
        origin: ns, when the run began, for all processes: gives the generation of keys.
        on_good: called with (policy, start) of an operation that the store itself answered.
        tokens: the latest tokens that anybody issued, by policy.
        publish: hands a token to the other processes.
        marked: the tasks whose present operation the policy answered; told by events.
        short: those whose present operation too few replicas confirmed.
    """

    recorder: Recorder
    origin: int
    on_good: Callable[[str, int], None] = lambda policy, start: None
    publish: Callable[[str, str], None] = lambda policy, token: None
    tokens: dict[str, deque[str]] = field(default_factory=lambda: {"reject": deque(), "local": deque()})
    stopped: bool = False
    failures: list[str] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    marked: set[Any] = field(default_factory=set)
    short: set[Any] = field(default_factory=set)

    def on_event(self, event: Any) -> None:
        """Count what fastdedup reports, and remember whose operation it was."""
        name = type(event).__name__
        self.events[f"{name} ({event.reason})" if name == "Unreplayed" else name] += 1
        if getattr(event, "answered", False):
            self.marked.add(asyncio.current_task())
        if name == "Shortfall":
            self.short.add(asyncio.current_task())
        if getattr(event, "kept", "") == "theirs":  # a Conflict; by name, so that none need exist
            told = self.recorder.ask(OVERRULED, event.key, owner=event.ours, value=event.theirs)
            self.recorder.answered(told)

    def learn(self, policy: str, token: str) -> None:
        known = self.tokens[policy]
        known.append(token)
        if len(known) > 6:
            known.popleft()

    def generation(self) -> int:
        return int((time.monotonic_ns() - self.origin) / (GENERATION * SECOND))


class Client:
    """One caller of one scope. `run` is its life; `_take` the common part of every step."""

    def __init__(self, name: str, policy: str, dedup: Dedup, shared: Shared, draw: random.Random) -> None:
        self._name = name
        self._policy = policy
        self._dedup = dedup
        self._shared = shared
        self._draw = draw
        self._count = 0

    async def run(self) -> None:
        """Take steps until all shall stop."""
        while not self._shared.stopped:
            step = draw_step(self._draw)
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
        event, claim = await self._asked("claim", f"claim/{key}", call, owner=owner, **terms(step))
        if event.outcome in ("acquired", "unavailable"):
            event, again = await self._asked("claim", f"claim/{key}", call, owner=owner, **terms(step))
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
            _fill(event, claim)
            self._shared.recorder.answered(event)
        for key, claim in zip(keys, claims, strict=True):
            if claim.acquired:
                await self._finish("release", f"claim/{key}", claim, step)

    async def _token(self, step: Step) -> None:
        known = self._shared.tokens[self._policy]
        if step.use < 0.3 or not known:
            await self._issue()
            return
        token = known[int(step.use * 997) % len(known)]
        subject = "user:7"
        if step.use < 0.7:
            call = lambda: self._dedup.tokens.consume(token, subject=subject)  # noqa: E731
            facts = {"owner": f"{self._name}-{self._count}", "ttl": round(TTL * SECOND)}
            await self._asked("consume", f"token/{token}", call, **facts)
            return
        redeem = lambda: self._dedup.tokens.redeem(token, subject=subject, lease=step.lease, ttl=TTL)  # noqa: E731
        await self._take("redeem", f"token/{token}", step, redeem, ttl=TTL)

    async def _issue(self) -> None:
        """The token is the key, known only when it is there; nobody can use it before."""
        asked = time.monotonic_ns()
        task = asyncio.current_task()
        self._shared.marked.discard(task)
        try:
            token = await self._dedup.tokens.issue(subject="user:7")
        except UnavailableError:
            return
        event = self._shared.recorder.ask("issue", self._key(f"token/{token}"), ttl=round(TOKEN_TTL * SECOND))
        event.start, event.outcome, event.degraded = asked, "ok", task in self._shared.marked
        self._shared.recorder.answered(event)
        self._shared.publish(self._policy, token)

    # Common parts

    def _lasting(self, step: Step) -> str:
        """Return a key whose record stands all through the run, so that its attempts can be followed."""
        step.ttl = TTL
        return f"c{step.slot}"

    def _claim(self, key: str, step: Step, owner: str | None = None) -> Awaitable[Claim]:
        return self._dedup.claim(key, owner=owner, lease=step.lease, ttl=step.ttl, wait=step.wait)

    async def _take(
        self,
        verb: str,
        key: str,
        step: Step,
        call: Callable[[], Awaitable[Claim]],
        *,
        last: str = "complete",
        ttl: float | None = None,
    ) -> None:
        event, claim = await self._asked(verb, key, call, **terms(step, ttl))
        if event.outcome == "unavailable":
            await asyncio.sleep(0.015)
        if claim is not None and claim.acquired:
            await self._finish(last if step.end in ("renewed", "overstay") else step.end, key, claim, step)

    async def _finish(self, how: str, key: str, claim: Claim, step: Step) -> None:
        """Hold the claim, then end it as drawn; ask again where the answer is lost."""
        facts = {"owner": claim.owner, "fence": claim.fence, "known": claim.degraded}
        await asyncio.sleep(step.lease + 0.03 if step.end == "overstay" else step.hold)
        if step.end == "renewed":
            ttl = round(TTL * SECOND)
            await self._asked("renew", key, claim.renew, lease=round(step.lease * SECOND), ttl=ttl, **facts)
            await asyncio.sleep(step.hold)
        if how == "abandon":
            return
        value = f"{self._name}-{self._count}"
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "complete": lambda: claim.complete(value, ttl=step.ttl),
            "fail": lambda: claim.fail(value, ttl=step.ttl),
            "release": claim.release,
        }
        if how != "release":
            facts |= {"value": value, "ttl": round(step.ttl * SECOND)}
        for _ in range(3):
            event, _answer = await self._asked(how, key, calls[how], **facts)
            if event.outcome != "unavailable":
                return
            await asyncio.sleep(0.02)

    async def _asked(
        self, verb: str, key: str, call: Callable[[], Awaitable[Any]], known: bool = False, **facts: Any
    ) -> tuple[Event, Any]:
        """Make one call and put it on record, whatever becomes of it. `known`: it is of a degraded claim."""
        shared, task = self._shared, asyncio.current_task()
        event = shared.recorder.ask(verb, self._key(key), **facts)
        shared.marked.discard(task)
        shared.short.discard(task)
        answer: Any = None
        try:
            answer = await call()
            _fill(event, answer)
        except UnavailableError as error:
            event.outcome, event.note = "unavailable", str(error)[:80]
        except ClaimLostError:
            event.outcome = "lost"
        except InProgressError:
            event.outcome = "in_progress"
        except asyncio.CancelledError:
            event.outcome = "cancelled"
            raise
        except Exception as error:  # noqa: BLE001 -- any other is a finding
            event.outcome, event.note = "error", repr(error)
            shared.failures.append(f"{event.line()}\n{traceback.format_exc()}")
        finally:
            # A claim says it itself: one that waited may have been refused by the policy, and then acquired.
            silent = answer is None or isinstance(answer, str)
            event.degraded = event.degraded or known or (silent and task in shared.marked)
            event.confirmed = event.confirmed and not (silent and task in shared.short)
            shared.marked.discard(task)
            shared.short.discard(task)
            shared.recorder.answered(event)
        if event.outcome in ("acquired", "ok") and not event.degraded:
            shared.on_good(self._policy, event.start)
        return event, answer

    def _key(self, key: str) -> str:
        return f"{self._policy}/{key}"


def _fill(event: Event, answer: Any) -> None:
    """Note an answer: a Claim, a Lock, an Outcome, or nothing for what just had to be done."""
    if answer is None or isinstance(answer, bool):
        event.outcome = "ok"
        return
    if isinstance(answer, str):
        event.outcome = str(answer)
        return
    event.outcome = str(getattr(answer, "outcome", "acquired"))
    event.owner, event.fence, event.degraded = answer.owner, answer.fence, answer.degraded
    if isinstance(answer, Claim):
        event.attempt, event.confirmed = answer.attempt, answer.confirmed
        event.result = answer.error if event.outcome == "failed" else answer.result
