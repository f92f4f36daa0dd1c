"""The sidecar's log: one line an event, for people or as JSON. No token, and no key unless asked, is in clear.

stdlib logging underneath: `log.warning("what happened", extra=facts(key=value))`. Events of the gate come
through `EventLog`, which counts what an outage says 100,000 times a second and logs it once.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, TextIO

import orjson

from ...events import BreakerClosed, Degraded, Event, Replayed

log = logging.getLogger("fastdedup.sidecar")

_LEVELS: dict[type, int] = {BreakerClosed: logging.INFO, Replayed: logging.INFO}
_LOGGERS = ("fastdedup", "uvicorn", "asyncio")
_SECRET = ("key", "owner", "ours", "theirs")
_BURST = 20
"""Lines a second of one kind of event; the rest of that second is one more line with their number."""

Kind = tuple[type, str, bool]
"""Of events that are counted together: type, namespace, and whether the policy answered."""


def facts(**values: Any) -> dict[str, Any]:
    """Return `extra` for a log call: what the line says beside its event."""
    return {"facts": values}


def set_up(level: str, format: str, stream: TextIO | None = None) -> Callable[[], None]:
    """Send the logs of fastdedup, uvicorn and asyncio to `stream` (stderr); return what undoes that."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if format == "json" else Readable())
    handler.addFilter(Throttle())
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    former = [(each, each.handlers[:], each.propagate, each.level) for each in loggers]
    for each in loggers:
        each.handlers, each.propagate = [handler], False
        each.setLevel(level.upper() if each.name == "fastdedup" else logging.WARNING)

    def undo() -> None:
        for each, handlers, propagate, was in former:
            each.handlers, each.propagate = handlers, propagate
            each.setLevel(was)

    return undo


class Lines(logging.Formatter):
    """What the formats have in common. Of an exception its type and where: its text may hold a key."""

    def values(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return what the line says, in order."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        values = {
            "at": when.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": " ".join(record.getMessage().split()),
            **getattr(record, "facts", {}),
        }
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            frames = traceback.extract_tb(error.__traceback__)
            values["error"] = type(error).__name__
            values["where"] = " > ".join(f"{frame.name}:{frame.lineno}" for frame in frames[-6:])
        return values


class JsonLines(Lines):
    """A JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return orjson.dumps(self.values(record), default=str).decode()


class Readable(Lines):
    """`time level event key=value …`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        values = self.values(record)
        begin = f"{values.pop('at')} {values.pop('level'):<7} {values.pop('event')}"
        return " ".join([begin, *(f"{name}={_shown(value)}" for name, value in values.items())])


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
    plain = text.isprintable() and text and not set(text) & set(' "=')
    return text if plain else orjson.dumps(text).decode()


class Throttle(logging.Filter):
    """At most `_BURST` lines a second of one kind, as of refused connections; the next one says how many were not."""

    def __init__(self) -> None:
        super().__init__()
        # Mutable, by message before formatting: the second that it counts, lines in it, lines left out.
        self._counts: dict[str, list[int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Let the line pass or not."""
        count = self._counts.setdefault(f"{record.name} {record.msg}"[:80], [0, 0, 0])
        second = int(record.created)
        if count[0] != second:
            count[0], count[1] = second, 0
        count[1] += 1
        if count[1] > _BURST:
            count[2] += 1
            return False
        if count[2]:
            record.facts = {**getattr(record, "facts", {}), "left_out": count[2]}
            count[2] = 0
        if len(self._counts) > 1000:
            self._counts.clear()
        return True


class EventLog:
    """An `on_event` that logs: each kind and namespace at once, then once a second with the number of more.

    Args:
        keys: show keys in clear; owners, with which one could settle, never are.
    """

    def __init__(self, *, keys: bool = False) -> None:
        self._keys = keys
        self._salt = secrets.token_bytes(16)
        # Mutable, by kind while its second lasts: how often it came.
        self._seen: dict[Kind, int] = {}

    def __call__(self, event: Event) -> None:
        """Log an event, or count it."""
        kind = (type(event), getattr(event, "namespace", ""), getattr(event, "answered", False))
        seen = self._seen.get(kind, 0)
        if not seen:
            self._begin(kind, 0)
        self._seen[kind] = seen + 1
        if seen < _allowed(kind):
            level = _LEVELS.get(type(event), logging.WARNING)
            log.log(level, name_of(type(event)), extra=self._facts(event))

    def flush(self) -> None:
        """Log what was only counted so far."""
        for kind in list(self._seen):
            self._tell(kind)

    def _begin(self, kind: Kind, seen: int) -> None:
        self._seen[kind] = seen
        asyncio.get_running_loop().call_later(1.0, self._tell, kind)

    def _tell(self, kind: Kind) -> None:
        """A second is over: say how often it came beyond what was logged."""
        more = self._seen.pop(kind, 0) - _allowed(kind)
        if more <= 0:
            return
        what, namespace, answered = kind
        said: dict[str, Any] = {"namespace": namespace} if namespace else {}
        if what is Degraded:
            said["answered"] = answered
        log.warning("%s, more in the last second", name_of(what), extra=facts(**said, count=more))
        self._begin(kind, _allowed(kind))  # it goes on: the next line in a second, not now

    def _facts(self, event: Event) -> dict[str, Any]:
        said = asdict(event)
        for name in _SECRET:
            if said.get(name) and not (name == "key" and self._keys):
                said[name] = "#" + self._digest(said[name])
        return facts(**said)

    def _digest(self, text: str) -> str:
        """The same for the same text in this run; of no use to who guesses."""
        return blake2b(text.encode(errors="replace"), digest_size=6, key=self._salt).hexdigest()


def _allowed(kind: Kind) -> int:
    """Return how many lines a second: of an outage one, of what is an accident of a key some."""
    return 1 if kind[0] is Degraded else _BURST


def name_of(kind: type) -> str:
    """Return an event's name in the log: `BreakerOpened` is `breaker opened`."""
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in kind.__name__).strip()
