"""The counts of all workers, also while Redis is down: each writes a small file, and `/stats` adds them up."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastdedup.events import (
    BreakerClosed,
    BreakerOpened,
    ClockSkew,
    Conflict,
    Event,
    LeaseLost,
    PrimaryRestarted,
    Replayed,
    UndoOverflow,
    Unreplayed,
)

_SAMPLE = 256
"""The number of latest durations that a worker keeps."""
_LINES = 6
BOXES = ("ordered", "replayed", "sold_out", "later", "refused")
"""The kinds of answers to orders. Every answer is of one kind, so they add up to `answered`."""
_COUNTED = ("answered", *BOXES, "adopted", "conflicts")


class Tally:
    """One worker's figures.

    Args:
        folder: the folder for the files of all workers.
        number: this worker's number.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self._path = folder / f"stats-{number}.json"
        self._number = number
        # Mutable: the counts; the seconds of the latest answers; the latest events; the last written text.
        self._counts: Counter[str] = Counter()
        self._seconds: deque[float] = deque(maxlen=_SAMPLE)
        self._lines: deque[dict[str, Any]] = deque(maxlen=_LINES)
        self._written = ""

    def answered(self, box: str, *, seconds: float) -> None:
        """Count the answer to an order's request, as one of `BOXES`."""
        self._counts["answered"] += 1
        self._counts[box] += 1
        self._seconds.append(seconds)

    def on_event(self, event: Event) -> None:
        """Count an event of the `Dedup`."""
        if isinstance(event, Replayed):
            self._counts["adopted"] += event.adopted
        elif isinstance(event, Conflict):
            self._counts["conflicts"] += 1
        text = _text_of(event)
        if text:
            self._lines.append({"at": time.time(), "worker": self._number, "text": text})

    def write(self, breaker: str) -> None:
        """Write the file for the other workers, if anything has changed; it is replaced as a whole."""
        facts = {name: self._counts[name] for name in _COUNTED}
        ms = [round(seconds * 1000, 1) for seconds in self._seconds]
        text = json.dumps(
            {"number": self._number, "breaker": breaker, "ms": ms, "events": list(self._lines), **facts}
        )
        if text == self._written:
            return
        fresh = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):  # the folder is removed when the demo ends
            fresh.write_text(text)
            fresh.replace(self._path)
            self._written = text


def box_of(status: int, *, replayed: bool, later: bool) -> str:
    """Return which of the `BOXES` an answer belongs to.

    Args:
        status: the answer's HTTP status.
        replayed: whether it repeats an earlier answer.
        later: whether it says when to try again.
    """
    if replayed:
        return "replayed"
    if status < 400:
        return "ordered"
    if status == 410:
        return "sold_out"
    return "later" if later else "refused"


def total(folder: Path) -> dict[str, Any]:
    """Add up the files of all workers."""
    workers = sorted(_written(folder), key=lambda facts: facts["number"])
    ms = sorted(value for facts in workers for value in facts["ms"])
    events = sorted((line for facts in workers for line in facts["events"]), key=lambda line: -line["at"])
    return {
        **{name: sum(facts[name] for facts in workers) for name in _COUNTED},
        "p50_ms": _percentile(ms, 0.50),
        "p99_ms": _percentile(ms, 0.99),
        "workers": [{"number": facts["number"], "breaker": facts["breaker"]} for facts in workers],
        "events": events[:_LINES],
    }


def _written(folder: Path) -> Iterator[dict[str, Any]]:
    for path in folder.glob("stats-*.json"):
        with contextlib.suppress(OSError):
            yield json.loads(path.read_text())


def _percentile(ordered: list[float], share: float) -> float | None:
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else None


def _text_of(event: Event) -> str:
    """Return an event as a sentence; empty for events of other features, and for those of every request."""
    match event:
        case BreakerOpened():
            return "The breaker opened: Redis does not answer."
        case BreakerClosed(lasted=lasted):
            return f"The breaker closed: Redis is back after {lasted:.1f} s."
        case PrimaryRestarted():
            return "Redis was restarted: it has only what it had saved."
        case Replayed(adopted=adopted, conflicts=conflicts):
            return f"The journal was replayed: {adopted} put into Redis, {conflicts} in conflict."
        case Conflict(kept=kept):
            return f"Conflict: two owners of one key. The record that stands is {kept}."
        case Unreplayed(reason=reason):
            return f"Not put into Redis: {reason}."
        case LeaseLost() | UndoOverflow() | ClockSkew():
            return type(event).__name__
        case _:
            return ""
