"""One caller of one scope: makes a call, puts it on record whatever becomes of it, and settles what it got."""

from __future__ import annotations

import asyncio
import random
import time
import traceback
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastdedup import Claim, ClaimLostError, Dedup, InProgressError, Transition, UnavailableError, UsageError

from .history import OURS_STANDS, REPORTED, SECOND, Event, Recorder
from .steps import KINDS, TTL, Step, terms

GENERATION = 0.12
"""Seconds after which the clients of all processes move on to new keys: a settled key is a dull one."""
OF_ITS_OWNER = "by another call of the same owner"
"""In the error of a claim that is renewed once another caller of its owner has settled it."""


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
        mix: how often each kind of step comes.
        given_up: (policy, "claim" or "consume", key or token) of what was asked, and given up without an answer.
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
    timeout: float = 1.0
    mix: Mapping[str, int] = field(default_factory=lambda: KINDS)
    given_up: list[tuple[str, str, str]] = field(default_factory=list)

    def on_event(self, event: Any) -> None:
        """Count what fastdedup reports, and remember whose operation it was."""
        name = type(event).__name__
        self.events[f"{name} ({event.reason})" if name == "Unreplayed" else name] += 1
        if getattr(event, "answered", False):
            self.marked.add(asyncio.current_task())
        if name == "Shortfall":
            self.short.add(asyncio.current_task())
        if getattr(event, "kept", "") == "theirs":  # a Conflict; by name, so that none need exist
            told = self.recorder.ask(OURS_STANDS, event.key, owner=event.ours, value=event.theirs)
            self.recorder.answered(told)
        if name in ("Conflict", "Unreplayed"):
            for key in self._keys_of(event.key):
                self.recorder.answered(self.recorder.ask(REPORTED, key, note=name))

    def _keys_of(self, key: str) -> tuple[str, ...]:
        """An event names a key without its kind. Only the policy of "local" has a journal."""
        return f"local/claim/{key}", f"local/machine/{key}"

    def learn(self, policy: str, token: str) -> None:
        known = self.tokens[policy]
        known.append(token)
        if len(known) > 6:
            known.popleft()

    def generation(self) -> int:
        return int((time.monotonic_ns() - self.origin) / (GENERATION * SECOND))


class Caller:
    """One caller of one scope. `_asked` is the common part of all that it does."""

    def __init__(self, name: str, policy: str, dedup: Dedup, shared: Shared, draw: random.Random) -> None:
        self._name = name
        self._policy = policy
        self._dedup = dedup
        self._shared = shared
        self._draw = draw
        self._count = 0

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

    async def _finish(self, how: str, key: str, claim: Claim, step: Step, value: str = "") -> None:
        """Hold the claim, then end it as drawn; ask again where the answer is lost."""
        facts = {"owner": claim.owner, "fence": claim.fence, "known": claim.degraded}
        await asyncio.sleep(step.lease + 0.03 if step.end == "overstay" else step.hold)
        if step.end == "renewed":
            ttl = round(TTL * SECOND)
            await self._asked("renew", key, claim.renew, lease=round(step.lease * SECOND), ttl=ttl, **facts)
            await asyncio.sleep(step.hold)
        if how == "abandon":
            return
        value = value or self._label
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
            fill(event, answer)
        except UnavailableError as error:
            event.outcome, event.note = "unavailable", str(error)[:80]
            event.owner = getattr(error, "owner", None) or event.owner  # what the caller may ask again under
        except ClaimLostError:
            event.outcome = "lost"
        except InProgressError:
            event.outcome = "in_progress"
        except asyncio.CancelledError:
            event.outcome = "cancelled"
            raise
        except Exception as error:  # noqa: BLE001 -- any other is a finding
            if verb == "renew" and isinstance(error, UsageError) and OF_ITS_OWNER in str(error):
                event.outcome = (
                    "lost"  # two callers share an owner, and the other has settled: nothing is renewed
                )
            else:
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

    @property
    def _label(self) -> str:
        """Names the present step among all steps of all callers."""
        return f"{self._name}-{self._count}"

    def _key(self, key: str) -> str:
        return f"{self._policy}/{key}"


def fill(event: Event, answer: Any) -> None:
    """Note an answer: a Claim, a Lock, an Outcome, a Transition, or nothing for what just had to be done."""
    if answer is None or isinstance(answer, bool):
        event.outcome = "ok"
        return
    if isinstance(answer, str):
        event.outcome = str(answer)
        return
    event.outcome = str(getattr(answer, "outcome", "acquired"))
    if isinstance(answer, Transition):
        event.result, event.fence, event.degraded = answer.state, answer.version, answer.degraded
        event.confirmed = answer.confirmed
        return
    event.owner, event.fence, event.degraded = answer.owner, answer.fence, answer.degraded
    if isinstance(answer, Claim):
        event.attempt, event.confirmed = answer.attempt, answer.confirmed
        event.result = answer.error if event.outcome == "failed" else answer.result
