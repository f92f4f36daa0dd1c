"""Who surely held a key, from when until when; and which successes are surely on record.

"Surely" leans to the side of fastdedup: an interval is what no order of events can make shorter, so
a conflict with it cannot be explained away. What was never answered may have acted at any time
after it was asked, or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .history import ENDING, FOREVER, SETTLING, TAKING, UNSURE, Event


@dataclass(slots=True)
class Tenure:
    """One ownership of a key: from the claim that began it to whatever ended it.

    Attributes:
        first: the claim whose answer came first.
        acts: renew, complete, fail and release of this owner with this fence, answered or not.
    """

    first: Event
    claims: list[Event]
    acts: list[Event] = field(default_factory=list)
    overruled: int = FOREVER
    """When its process was told, by an event, that another owner's record stands in its place."""

    @property
    def owner(self) -> str:
        return self.first.owner

    @property
    def since(self) -> int:
        """From here on it was surely held: the claim's answer had come."""
        return self.first.over

    @property
    def until(self) -> int:
        """To here it was surely held: the lease, counted from when it was asked for, cut off by its own end."""
        ends = min((act.start for act in self.acts if act.verb in ENDING), default=FOREVER)
        return min(ends, self._lease_until(), self.overruled)

    @property
    def at_most_until(self) -> int:
        """After this it was surely not held any more, unless a claim that was never answered renewed it."""
        if any(act.outcome == "ok" and act.verb in ENDING for act in self.acts):
            return min(act.over for act in self.acts if act.outcome == "ok" and act.verb in ENDING)
        leases = [*self.claims, *(act for act in self.acts if act.verb == "renew" and act.outcome != "lost")]
        return max(event.over + event.lease for event in leases)

    def _lease_until(self) -> int:
        until, asked = 0, 0
        renewals = [act for act in self.acts if act.verb == "renew" and act.outcome != "lost"]
        for event in sorted([*self.claims, *renewals], key=lambda event: event.start):
            given = event.start + event.lease
            if event.verb != "renew":  # a claim repeated by its owner never ends sooner for it
                until = max(until, given)
            elif event.outcome == "ok" and not event.degraded and event.start >= asked:
                until = given
            else:
                until = min(until, given)
            asked = max(asked, event.over)
        return until


def tenures(events: Sequence[Event], overruled: Mapping[tuple[str, str], int]) -> list[Tenure]:
    """Return the ownerships among the events of one key, ordered by their beginning. Consuming is none.

    `overruled`: when (ns) which process was told that which of its owners is none any more.
    """
    # What the policy repeats of a claim made in the store prolongs nothing there: two tenures.
    found: dict[tuple[str, int, bool], Tenure] = {}
    claims = [
        event for event in events if event.acquired and event.verb in TAKING and event.verb != "consume"
    ]
    for claim in sorted(claims, key=lambda event: event.over):
        name = (claim.owner, claim.fence, claim.degraded)
        if name in found:
            found[name].claims.append(claim)
        else:
            told = overruled.get((claim.worker, claim.owner), FOREVER)
            found[name] = Tenure(claim, [claim], overruled=told)
    for event in events:
        if event.verb not in TAKING:
            of_it = (found.get((event.owner, event.fence, degraded)) for degraded in (False, True))
            for tenure in filter(None, of_it):
                tenure.acts.append(event)
    return list(found.values())


@dataclass(slots=True)
class Success:
    """A settled result (or failure) that is surely on record.

    Attributes:
        act: the complete, fail or consume that wrote it.
        source: what it is known from: the act's own answer, or a replay of it.
        value: what every claimant must be told.
    """

    act: Event
    source: Event
    state: str
    value: Any

    @property
    def known(self) -> int:
        """From here on it was surely on record."""
        return self.source.over

    @property
    def until(self) -> int:
        """Until here it surely was."""
        return self.act.start + self.act.ttl


def successes(events: Sequence[Event]) -> list[Success]:
    """Return the results surely on record among the events of one key."""
    found = [
        Success(event, event, state_of(event), event.value)
        for event in events
        if _settled(event) and event.end is not None
    ]
    for event in events:
        if event.verb in TAKING and event.outcome in ("succeeded", "failed") and event.verb != "consume":
            writers = writers_of(event, events)
            # Only one can have written it: then it did, whatever that one was told.
            if len(writers) == 1 and not (_settled(writers[0]) and writers[0].over <= event.over):
                found.append(Success(writers[0], event, str(event.outcome), event.result))
    return found


def writers_of(answer: Event, events: Sequence[Event]) -> list[Event]:
    """Return what can have written the result that `answer` replays. Consuming a token tells no result."""
    return [
        event
        for event in events
        if event.start <= answer.over
        and state_of(event) == answer.outcome
        and (event.value == answer.result or answer.verb == "consume")
        and (_settled(event) or event.outcome in UNSURE)
    ]


def state_of(event: Event) -> str:
    """The state that an event leaves behind where it settles: succeeded, failed; else nothing."""
    return {"complete": "succeeded", "consume": "succeeded", "fail": "failed"}.get(event.verb, "")


def _settled(event: Event) -> bool:
    return (event.verb in SETTLING and event.outcome == "ok") or (event.verb == "consume" and event.acquired)
