"""What was asked and answered, and when: one `Event` for each operation, one file for each worker and run.

All times are nanoseconds of CLOCK_MONOTONIC, which the processes of one Linux host share.
A worker writes one line as it asks and another as it is answered, at once and unbuffered: so a
worker that is killed leaves behind what it had asked.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import orjson

MS = 1_000_000
"""Nanoseconds in a millisecond."""

SECOND = 1_000 * MS

TAKING = ("claim", "redeem", "lock", "consume")
"""Verbs that acquire a key."""
SETTLING = ("complete", "fail")
ENDING = ("complete", "fail", "release")
"""Verbs that end an ownership, or may have."""
OURS_STANDS = "overruled"
"""No operation: fastdedup told a process that `owner`, whom its policy let through, is none any more."""
REPORTED = "reported"
"""No operation: fastdedup told a process how the outage ended for `key`; `note` is the event's class."""
CLOSED = "closed"
"""No operation: a process closed its gates, and so has reported all that it had to report."""
FACTS = (OURS_STANDS, REPORTED, CLOSED)
UNSURE = (None, "unavailable", "cancelled", "error")
"""Outcomes that leave open whether, and when, the operation took effect."""


@dataclass(slots=True)
class Event:
    """One operation.

    Attributes:
        worker: the process, new after each restart of it.
        n: counts the worker's operations.
        verb: claim redeem lock consume issue complete fail release renew move; of ids first seen forget.
        key: policy, kind and key in one text: keys of different kinds never meet.
        start, end: end is None where it was never answered.
        owner, fence: of the claimant; of the claim that is settled.
        lease, ttl: ns, 0 where the verb has none.
        value: what a settling wrote; the state that a move wants.
        named: the owner's name is the caller's own, and not drawn by fastdedup.
        outcome: acquired in_progress succeeded failed mismatch unknown; ok lost; changed already illegal
            stale; new known unseen gone absent; unavailable cancelled error.
        degraded: the policy answered, not the store.
        confirmed: False where fastdedup said that too few replicas have it.
        result: what a claimant was told of the first one's result or error.
    """

    worker: str
    n: int
    verb: str
    key: str
    start: int
    end: int | None = None
    owner: str = ""
    named: bool = False
    fence: int = 0
    lease: int = 0
    ttl: int = 0
    value: Any = None
    outcome: str | None = None
    attempt: int = 0
    degraded: bool = False
    confirmed: bool = True
    result: Any = None
    note: str = ""

    @property
    def over(self) -> int:
        """When it was answered; for ever later where it was not."""
        return FOREVER if self.end is None else self.end

    @property
    def acquired(self) -> bool:
        return self.outcome == "acquired"

    def line(self, origin: int = 0) -> str:
        """One line for people; times in ms since `origin`."""
        until = "never" if self.end is None else f"{(self.end - origin) / MS:.3f}"
        shown = {
            "owner": self.owner,
            "fence": self.fence,
            "attempt": self.attempt,
            "lease_ms": self.lease / MS,
            "value": self.value,
            "result": self.result,
            "degraded": self.degraded,
            "unconfirmed": not self.confirmed,
            "named": self.named,
            "note": self.note,
        }
        facts = " ".join(f"{name}={value}" for name, value in shown.items() if value)
        span = f"{(self.start - origin) / MS:.3f}..{until} ms"
        return f"{span} {self.worker}#{self.n} {self.verb} {self.key} -> {self.outcome} {facts}"


FOREVER = 1 << 62


@dataclass(slots=True)
class History:
    """The events of one run, and what happened to the server meanwhile. All spans are (ns, ns).

    Attributes:
        losses: spans in which the server may have lost its data.
        steps: spans in which its clock was set back.
        slow: None where nothing is known; else the store was well all through, but for these spans.
    """

    events: list[Event]
    losses: Sequence[tuple[int, int]] = field(default_factory=tuple)
    steps: Sequence[tuple[int, int]] = field(default_factory=tuple)
    slow: Sequence[tuple[int, int]] | None = None


_NAMES = tuple(item.name for item in fields(Event))


class Recorder:
    """Appends events to a worker's file."""

    def __init__(self, worker: str, path: Path | None = None) -> None:
        self._worker = worker
        self._n = 0
        self._file = -1 if path is None else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.events: list[Event] = []
        """What was recorded without a file."""

    def ask(self, verb: str, key: str, **facts: Any) -> Event:
        """Record that an operation starts now."""
        self._n += 1
        event = Event(self._worker, self._n, verb, key, time.monotonic_ns(), **facts)
        if self._file < 0:
            self.events.append(event)
        else:
            self._write(event)
        return event

    def answered(self, event: Event) -> None:
        """Record the answer to an operation; it came now."""
        event.end = time.monotonic_ns()
        if self._file >= 0:
            self._write(event)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, event: Event) -> None:
        os.write(self._file, orjson.dumps(asdict(event), option=orjson.OPT_APPEND_NEWLINE))


def load(paths: Iterable[Path]) -> list[Event]:
    """Read files of events, oldest first. A line torn by a killed worker is left out."""
    events: dict[tuple[str, int], Event] = {}
    for path in paths:
        for line in path.read_bytes().splitlines():
            try:
                facts = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            event = Event(**{name: facts[name] for name in _NAMES})
            events[event.worker, event.n] = event  # the answer replaces the question
    return sorted(events.values(), key=lambda event: event.start)
