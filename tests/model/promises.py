"""What the clients of a run were told, and whether it may all be true.

A scenario tells it what each client was told and did; each thing that contradicts a promise of fastdedup becomes a
line of `broken`. Nothing here knows the far end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

ACCEPTED = {
    "not taken back yet": "A first() or consume() was told nothing, and another call was a duplicate before what the "
    "first had left could be taken back: its process was cut off, or its packet came late. The docs say so.",
    "conflict behind a lost reply": "Work of an outage has replaced another process's live claim, and the reply is "
    "lost. Said again, the store finds that work and tells of no conflict. The other owner is told that it lost its "
    "claim.",
    "forgotten by a failover": "The former primary has acknowledged a write that its replica did not get. The new "
    "primary does not know of it: a key may have two owners, work may be done twice, and a claim may be lost before "
    "its lease ends. The inbox is for that.",
}
"""What is no promise, with its reason. Only pairs of fates meet the first, and only failovers the last."""


@dataclass
class Holding:
    """A client that holds a key: until it has ended with it, or until its lease ends as the client counts it."""

    who: str
    fence: int
    until: float
    ended: bool = False
    settling: bool = False
    """Its client has begun to settle it."""
    died: bool = False
    """Its client ended without settling: only the end of the lease frees the key."""


@dataclass
class Effect:
    """Work that was done, with its result; `excused` once its client was told that it is not recorded, or lost."""

    who: str
    value: Any
    recorded: bool = False
    excused: bool = False
    at: float = 0.0


@dataclass
class Use:
    """A call that asked for something that only one call may have: an id's first, a token's use."""

    who: str
    asked: float
    ended: float = 0.0
    answer: bool | None = None
    """True for the one that has it; None for a call that was told nothing, because it failed or was cancelled."""
    cancelled: bool = False


class Promises:
    """Checks what is told of each key.

    Args:
        now: the virtual time.
        log: called with a client's name and what it was told.
    """

    def __init__(self, now: Callable[[], float], log: Callable[[str, str], None]) -> None:
        self._now = now
        self.note = log
        """Writes a line of the trace: who, and what it was told."""
        self.broken: list[str] = []
        self.accepted: Counter[str] = Counter()
        """What is no promise, by the names in `ACCEPTED`."""
        self.effects: defaultdict[str, list[Effect]] = defaultdict(list)
        self._holdings: defaultdict[str, list[Holding]] = defaultdict(list)
        self._uses: defaultdict[str, list[Use]] = defaultdict(list)
        self.is_forgotten = False
        """The store has forgotten what it had acknowledged."""
        self.conflicts = 0
        """Events that tell of work that two owners may have done, in a fallback's time."""

    def broke(self, what: str) -> None:
        self.note("PROMISE", what)
        self.broken.append(f"{self._now():.3f} {what}")

    def contradicts(self, what: str) -> None:
        """What the store has said cannot all be true: no promise once it has forgotten what it had said."""
        if self.is_forgotten:
            self.accept("forgotten by a failover", what)
        else:
            self.broke(what)

    def forget(self) -> None:
        """The store forgets what it had acknowledged last."""
        self.note("store", "has forgotten its last write")
        self.is_forgotten = True

    def accept(self, name: str, what: str) -> None:
        """Count what would be a broken promise but for an entry of `ACCEPTED`."""
        assert name in ACCEPTED
        self.note("KNOWN", f"{name}: {what}")
        self.accepted[name] += 1

    # One owner, one effect

    @contextmanager
    def holds(self, who: str, key: str, *, fence: int = 0, until: float = float("inf")) -> Iterator[Holding]:
        """In the body, this client believes that it alone holds the key; at the end it has given it up."""
        for other in self._holdings[key]:
            if not other.ended and other.until > self._now() and not self.conflicts:
                self.contradicts(f"{who} holds {key!r} beside {other.who}")
            if fence and other.fence >= fence and not self.conflicts:
                self.broke(f"{who} has fence {fence} of {key!r}, not above {other.fence} of {other.who}")
        holding = Holding(who, fence, until)
        self._holdings[key].append(holding)
        self.note(who, f"holds {key!r}" + (f", fence {fence}" if fence else ""))
        try:
            yield holding
        except BaseException:
            holding.died = not holding.settling
            raise
        finally:
            holding.ended = True

    def left_by_the_dead(self) -> set[int]:
        """Return the fences of clients that died."""
        return {each.fence for held in self._holdings.values() for each in held if each.died}

    def works(self, who: str, key: str, value: Any = None) -> Effect:
        """The client does the work, and will say at once that it is done."""
        effect = Effect(who, value, at=self._now())
        self.effects[key].append(effect)
        self.note(who, f"does the work of {key!r}")
        return effect

    def duplicate(self, who: str, key: str, value: Any = None) -> None:
        """The client was told that the work is done, and got this result."""
        self.note(who, f"is told that {key!r} is done: {value!r}")
        if not any(effect.value == value for effect in self.effects[key]):
            self.broke(f"{who} was told that {key!r} is done ({value!r}); what was done: {self.effects[key]}")

    def check_effects(self, key: str) -> None:
        """At the end: the work was done once, but for the work whose client was told that its claim was lost."""
        done = self.effects[key]
        most = 1 + sum(effect.excused for effect in done) + self.conflicts
        if len(done) > most:
            self.contradicts(f"{key!r} was done {len(done)} times: {done}")

    def must_be_done(self, key: str) -> bool:
        """True if whoever asks now must be told that the work is done."""
        return any(effect.recorded or not effect.excused for effect in self.effects[key])

    # One use

    def asks(self, who: str, thing: str) -> Use:
        """A call begins that asks for something that only one call may have."""
        use = Use(who, self._now())
        self._uses[thing].append(use)
        return use

    def told(self, use: Use, answer: bool | None, *, cancelled: bool = False) -> None:
        """The call has ended."""
        use.ended, use.answer, use.cancelled = self._now(), answer, cancelled
        self.note(use.who, f"is told {answer}")

    def was_given(self, thing: str) -> bool:
        """True if a call was told that it is the one."""
        return any(use.answer for use in self._uses[thing])

    def check_uses(self, thing: str, after_error: float, after_cancel: float) -> None:
        """At the end: one call at most was the one; a call was a duplicate only of another call that was.

        The numbers are seconds from the end of a call that was told nothing, in which it may not be taken back yet.
        """
        uses = self._uses[thing]
        given = [use for use in uses if use.answer]
        if len(given) > 1:
            self.contradicts(f"{thing!r} was given {len(given)} times: {given}")
        untold = [
            (use.ended + (after_cancel if use.cancelled else after_error))
            for use in uses
            if use.answer is None
        ]
        for use in uses:
            if use.answer is False and not any(other.asked <= use.ended for other in given):
                what = f"{use.who} is a duplicate of {thing!r}, which no call before had: {uses}"
                if any(use.asked < until for until in untold):
                    self.accept("not taken back yet", what)
                else:
                    self.broke(what)
