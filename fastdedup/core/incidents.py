"""The log lines of a gate: one line for each incident, never one line for each request.

An outage begins with one line and ends with one line, which says how many operations the policy answered and refused
meanwhile. A store that comes and goes, such as a full one, has `AT_ONCE` such pairs in a minute. Events about single
keys get `AT_ONCE` lines in a minute; then they are counted, and one line a minute says how many there were. No line
shows an owner, a token, a result or a password. Each event's class has its line.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any

from ..declarations import LogLine
from ..events import KEPT_LOCALLY, BreakerClosed, BreakerOpened, Degraded, Event, Replayed, name_of
from ..log_throttle import LogThrottle
from ..tasks import running_loop

log = logging.getLogger("fastdedup.store")
claims_log = logging.getLogger("fastdedup.claims")

AT_ONCE = 5
"""Lines that a kind of event may have before further events are only counted."""
WINDOW = 60.0
"""Seconds between two lines that say how many events of a kind were counted."""

_AWAY = "the store does not answer"


class StoreAway:
    """A time in which the store does not answer, from its first unanswered operation.

    Attributes:
        reason: the reason of its first unanswered operation.
        told: True once a log line has its beginning.
        open: the parts of the store whose breakers are open, and whether a log line says that of each.
        answered: operations that the policy answered.
        refused: operations that the policy refused.
        fresh: True if an operation went unanswered since the last look.
    """

    def __init__(self, reason: str, told: bool) -> None:
        self.reason = reason
        self.told = told
        self.open: dict[str, bool] = {}
        self.began = monotonic()
        self.answered = self.refused = 0
        self.fresh = True


class Incidents:
    """An `on_event` that writes the log lines of one gate.

    Args:
        gate: the gate's name in the lines: its namespace.
        window: see `WINDOW`.
    """

    def __init__(self, gate: str, window: float = WINDOW) -> None:
        self._gate = gate
        self._window = window
        # Mutable: the outage, and one before it that has no line yet; the lines of each kind; the end of the window.
        self._outage: StoreAway | None = None
        self._untold: StoreAway | None = None
        self._kinds: dict[str, LogThrottle] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._by_type: dict[type, Callable[[Any], None]] = {
            Degraded: self._degraded,
            BreakerOpened: self._opened,
            BreakerClosed: self._closed,
            Replayed: self._replayed,
        }

    def __call__(self, event: Event) -> None:
        """Log an event, or count it. Events of messages are left out: the consumers log these themselves."""
        handle = self._by_type.get(type(event))
        if handle is not None:
            handle(event)
        elif (line := getattr(event, "line", None)) is not None:
            self._single(event, line)

    def unreached(self, reason: str) -> None:
        """Note that the store did not answer when the gate was opened."""
        if self._outage is None:
            self._begin(reason)

    def mistaken(self, reason: str) -> None:
        """Note that the gate cannot be opened with its present set-up."""
        if self.may_tell(f"cannot be opened: {reason}", 1):
            log.error("gate %r cannot be opened: %s", self._gate, reason)

    def tell(self, kind: str, text: str, *args: object) -> None:
        """Log a line about a single key, or count it as one of its kind."""
        if self.may_tell(kind):
            claims_log.warning(f"gate %r: {text}", self._gate, *args)

    def may_tell(self, kind: str, lines: int = AT_ONCE) -> bool:
        """Count an event of this kind; True if it may have a line of its own."""
        throttle = self._kinds.get(kind)
        if throttle is None:
            throttle = self._kinds[kind] = LogThrottle(lines, inf)
        self._look_later()
        return throttle.passes(0.0)

    def close(self) -> None:
        """Log the events that were only counted so far, because the gate is closed."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._tell_counts()
        self._kinds.clear()
        outage, self._outage = self._outage, None
        if outage is None:
            return
        if outage.open:
            log.warning(
                "gate %r: it is closed, and the store did not answer for %s", self._gate, _sums(outage)
            )
        else:
            self._tell_unsteady(outage)
        self._untold = None

    # Outages

    def _begin(self, reason: str) -> StoreAway:
        outage = self._outage = StoreAway(reason, self.may_tell(_AWAY))
        untold, self._untold = self._untold, None
        if untold is not None:
            outage.answered, outage.refused = untold.answered, untold.refused
        if outage.told:
            self._tell_begin(outage)
        return outage

    def _tell_begin(self, outage: StoreAway) -> None:
        outage.told = True
        log.warning("gate %r: the store does not answer: %s", self._gate, outage.reason)

    def _degraded(self, event: Degraded) -> None:
        outage = self._outage
        if outage is None:
            if event.reason == KEPT_LOCALLY:
                return  # the store is back, and will get the policy's records in a moment
            outage = self._begin(event.reason)
        outage.fresh = True
        if event.answered:
            outage.answered += 1
        else:
            outage.refused += 1

    def _opened(self, event: BreakerOpened) -> None:
        outage = self._outage
        if outage is None:
            outage = self._begin(event.reason)
        is_first = not outage.open
        told = outage.told and (is_first or self.may_tell(f"{event.store} does not answer"))
        if told and not is_first:
            log.warning("gate %r: %s does not answer either: %s", self._gate, event.store, event.reason)
        outage.open[event.store] = told

    def _closed(self, event: BreakerClosed) -> None:
        outage = self._outage
        if outage is None:
            return
        told = outage.open.pop(event.store, False)
        if outage.open:
            if told:
                log.warning("gate %r: %s answers again after %.1f s", self._gate, event.store, event.lasted)
            return
        self._outage = None
        if outage.told:
            log.warning("gate %r: the store answers again after %s", self._gate, _sums(outage))
        else:
            self._untold = outage

    def _replayed(self, event: Replayed) -> None:
        log.log(
            logging.WARNING if event.conflicts else logging.INFO,
            "gate %r: the answers of the outage are in the store: %d keys, %d conflicts",
            self._gate,
            event.adopted,
            event.conflicts,
        )

    # Single events

    def _single(self, event: Event, line: LogLine) -> None:
        if self.may_tell(name_of(type(event)), AT_ONCE if line.at_once is None else line.at_once):
            to = logging.getLogger(f"fastdedup.{line.logger}")
            to.warning(f"gate %(gate)r: {line.text}", {"gate": self._gate, **_fields(event, line)})

    # Counted events

    def _look_later(self) -> None:
        """Look at the counts at the end of the window, if an event loop runs."""
        loop = running_loop()
        if loop is None or (self._alarm is not None and self._loop is loop):
            return
        self._loop = loop
        self._alarm = loop.call_later(self._window, self._look)

    def _look(self) -> None:
        """End the kinds that were quiet for a window; log the counts of all others."""
        self._alarm = None
        self._tell_counts()
        self._end_quiet_outage()
        if self._kinds or self._outage is not None:
            self._look_later()

    def _tell_counts(self) -> None:
        for kind, throttle in list(self._kinds.items()):
            if count := throttle.take_left_out():  # it continues: the next line comes with the next window
                log.warning("gate %r: %d more of this within %g s: %s", self._gate, count, self._window, kind)
            else:
                del self._kinds[kind]

    def _end_quiet_outage(self) -> None:
        """End an outage in which no breaker opened: a few operations got no answer, and others did."""
        outage = self._outage
        if outage is None:
            return
        if outage.open:
            if not outage.told:  # it continues, and no line has said so yet
                self._tell_begin(outage)
            return
        if outage.fresh:
            outage.fresh = False
            return
        self._outage = None
        self._tell_unsteady(outage)

    def _tell_unsteady(self, outage: StoreAway) -> None:
        """Log an outage in which no breaker opened, unless only one operation met it."""
        if not outage.told:
            self._untold = outage
        elif outage.answered + outage.refused > 1:
            log.warning("gate %r: the store was unsteady for %s", self._gate, _sums(outage))


def _sums(outage: StoreAway) -> str:
    lasted = monotonic() - outage.began
    return f"{lasted:.1f} s: the policy answered {outage.answered} operations and refused {outage.refused}"


def _fields(event: Event, line: LogLine) -> dict[str, Any]:
    """Return the fields of an event for a log line: not the owner, because that could settle the claim."""
    shown = {
        name: getattr(event, name) for name in event.__slots__ if name not in ("owner", "ours", "theirs")
    }
    return shown | {name: words[shown[name]] for name, words in line.words.items()}
