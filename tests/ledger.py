"""What each process was told: the ledger fails as soon as one is told something that contradicts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastdedup import Claim, LocalLRU, Outcome
from fastdedup.events import Conflict, Event

from .virtual import VirtualLoop

KEYS = ("a", "b")
PROCESSES = (0, 1)
TIMEOUT = 0.25
SLACK = 0.005
"""Seconds: records count in whole milliseconds."""


def wire_of(key: str) -> bytes:
    return f"t:={key}".encode()


@dataclass(eq=False)
class Told:
    """One claim that a process was told it has acquired."""

    process: int
    claim: Claim
    since: float
    until: float
    settled: bool = False


@dataclass(eq=False)
class Success:
    """One result that a process recorded, or was told of."""

    owner: str
    result: Any
    since: float
    until: float
    forgotten: bool = False


class Ledger:
    """What each process was told."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.policies: list[LocalLRU] = []
        self.told: dict[str, list[Told]] = {key: [] for key in KEYS}
        self.known: dict[tuple[int, str], Success] = {}
        self.recorded: dict[str, list[Success]] = {key: [] for key in KEYS}
        self.losers: set[str] = set()
        self.in_conflict: set[str] = set()
        self.gone: set[tuple[str, int]] = set()
        self.fences: dict[tuple[int, str], tuple[str, int]] = {}
        self.forgotten_at: dict[str, float] = {}
        self.consumed: dict[str, list[tuple[int, str]]] = {}

    def acquired(self, process: int, claim: Claim, asked: float) -> Told:
        assert claim.lease is not None
        now = self._loop.time()
        gone = (claim.owner, claim.fence) in self.gone or asked <= self.forgotten_at.get(claim.key, -1.0)
        if gone:  # given up, or forgotten, while it was asked for
            told = Told(process, claim, now, now, settled=True)
            self.told[claim.key].append(told)
            return told
        for other in self.told[claim.key]:
            if other.claim.owner == claim.owner or other.settled or other.until <= now + SLACK:
                continue
            if other.claim.owner in self.losers:
                continue
            assert other.process != process, f"{other.claim!r} is live, and so is {claim!r}"
            assert other.claim.degraded or claim.degraded, f"the store gave {other.claim!r} and {claim!r}"
        known = self.known.get((process, claim.key))
        if known is not None and known.owner not in self.losers:
            assert known.until <= now + SLACK, f"{known} is forgotten: {claim!r}"
        owner, fence = self.fences.get((process, claim.key), ("", 0))
        again = any(
            (one.claim.owner, one.claim.fence) == (claim.owner, claim.fence) for one in self.told[claim.key]
        )
        excused = again or owner in self.losers
        assert excused or claim.fence > fence, f"{claim!r} after fence {fence}"
        self.fences[process, claim.key] = claim.owner, claim.fence
        same = [other.since for other in self.told[claim.key] if other.claim.owner == claim.owner]
        told = Told(process, claim, min([now, *same]), asked + claim.lease)
        self.told[claim.key].append(told)
        return told

    def answered(self, process: int, claim: Claim, asked: float) -> None:
        """Not acquired."""
        known = self.known.get((process, claim.key))
        if known is not None and (known.owner in self.losers or known.until <= self._loop.time() + SLACK):
            known = None
        if known is not None and known.since <= asked:
            assert claim.outcome is Outcome.SUCCEEDED, f"{known} is forgotten: {claim!r}"
            assert claim.result == known.result, f"{known} is altered: {claim.result}"
        if claim.outcome is Outcome.SUCCEEDED:
            first = [success for success in self.recorded[claim.key] if success.result == claim.result]
            assert first, f"nobody recorded {claim.result}"
            sure = known is None and first[0].owner not in self.losers and not first[0].forgotten
            if sure and not self.policies[process].holds(wire_of(claim.key)):
                self.known[process, claim.key] = Success(
                    first[0].owner,
                    claim.result,
                    self._loop.time(),
                    asked + claim.settlement.verdict.left_ms / 1000 - SLACK,
                )

    def tried(self, claim: Claim, result: Any) -> Success:
        """A result may stand from now on, whatever its owner is told."""
        success = Success(claim.owner, result, self._loop.time(), 0.0)
        self.recorded[claim.key].append(success)
        return success

    def let_go(self, told: Told) -> None:
        """The owner does not insist on the key any more; it may have been told more than once that it has it."""
        self.gone.add((told.claim.owner, told.claim.fence))
        for other in self.told[told.claim.key]:
            if (other.claim.owner, other.claim.fence) in self.gone:
                other.settled = True

    def renewed(self, told: Told, until: float) -> None:
        """The lease runs from when that was asked, and may be shorter than it was."""
        for other in self.told[told.claim.key]:
            if (other.claim.owner, other.claim.fence) == (told.claim.owner, told.claim.fence):
                other.until = until

    def completed(self, told: Told, success: Success, asked: float, ttl: float) -> None:
        self.let_go(told)
        if asked <= self.forgotten_at.get(told.claim.key, -1.0):
            return
        success.since, success.until = self._loop.time(), asked + ttl
        policy, wire = self.policies[told.process], wire_of(told.claim.key)
        entry = policy.records.entry(wire)
        # Where another owner has the key here, only one of the two can be known; the conflict is told.
        rivals = told.claim.key in self.in_conflict or policy.holds(wire)
        if not rivals or (entry is not None and entry.state == "S"):
            self.known[told.process, told.claim.key] = success

    def forgot(self, key: str) -> None:
        """Whoever had it, or had asked for it: from now on anybody may have it anew."""
        self.forgotten_at[key] = self._loop.time()
        for told in self.told[key]:
            told.settled = True
            self.gone.add((told.claim.owner, told.claim.fence))
        for success in self.recorded[key]:
            success.until, success.forgotten = 0.0, True
        for process in PROCESSES:
            self.known.pop((process, key), None)

    def event(self, event: Event) -> None:
        if isinstance(event, Conflict):
            self.losers.add(event.ours if event.kept == "theirs" else event.theirs)
            self.in_conflict.add(event.key)
