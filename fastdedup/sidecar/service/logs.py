"""The sidecar's log: one line of text or JSON for each event. It never shows a token, and a key only on request.

It uses the standard library: `log.warning("what happened", extra=facts(key=value))`. Events of the gate come through
`EventLog`: an outage makes 100,000 a second, which it counts and logs once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import blake2b
from math import inf
from typing import Any, TextIO

import orjson

from ...admin.inspection import KINDS
from ...events import BreakerClosed, Degraded, Event, Replayed, name_of
from ...log_throttle import LogThrottle
from ..verbs import LISTED
from .listener import Peer

log = logging.getLogger("fastdedup.sidecar")

_LEVELS: dict[type, int] = {BreakerClosed: logging.INFO, Replayed: logging.INFO}
LOGGERS = ("fastdedup", "uvicorn", "asyncio")
_LISTED_DIGEST = re.compile("#[0-9a-f]{32}")
"""The form in which a list of records shows a token or a long key."""
_SECRET = ("key", "owner", "ours", "theirs")
AUDITED = "a key was forgotten"
AUDITED_LIST = "records were listed"
_BURST = 20
"""The lines in a second of one kind of event; one more line tells how many were left out."""

Kind = tuple[type, str, bool]
"""The properties by which events are counted together: type, namespace, whether the policy answered."""


def facts(**values: Any) -> dict[str, Any]:
    """Return `extra` for a log call: the line's facts beside its event."""
    return {"facts": values}


def set_up(level: str, format: str, stream: TextIO | None = None) -> Callable[[], None]:
    """Send the logs of fastdedup, uvicorn and asyncio to `stream` (by default stderr); return an undo function."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(Lines(as_json=format == "json"))
    handler.addFilter(Throttle())
    loggers = [logging.getLogger(name) for name in LOGGERS]
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
    """Formats a line as a JSON object, or as `time level event key=value …`.

    It shows an exception's type and place only: its text may hold a key.
    """

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        values = self._values(record)
        if self._as_json:
            return _json(values)
        begin = f"{values.pop('at')} {values.pop('level'):<7} {values.pop('event')}"
        return " ".join([begin, *(f"{name}={_shown(value)}" for name, value in values.items())])

    def _values(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return the line's facts, in order."""
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


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else _json(value)
    plain = text.isprintable() and text and not set(text) & set(' "=')
    return text if plain else _json(text)


def _json(value: Any) -> str:
    try:
        return orjson.dumps(value, default=str).decode()
    except TypeError:  # such as a path of bytes that are no UTF-8
        return json.dumps(value, default=str)


class Throttle(logging.Filter):
    """Lets at most `_BURST` lines of one kind pass in a second; the next line tells how many were left out.

    Each line of an audit passes, so that a burst hides none.
    """

    def __init__(self) -> None:
        super().__init__()
        # Mutable: by message before formatting.
        self._kinds: dict[str, LogThrottle] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the line may pass (logging calls this)."""
        if record.msg in (AUDITED, AUDITED_LIST):
            return True
        throttle = self._kinds.setdefault(f"{record.name} {record.msg}"[:80], LogThrottle(_BURST, 1.0))
        if not throttle.passes(int(record.created)):
            return False
        if left_out := throttle.take_left_out():
            record.facts = {**getattr(record, "facts", {}), "left_out": left_out}
        if len(self._kinds) > 1000:
            self._kinds.clear()
        return True


class EventLog:
    """An `on_event` that logs: the first event of a kind and namespace at once, then a line a second with a count.

    Args:
        keys: show keys instead of digests. Owners are never shown, because an owner may settle a claim.
    """

    def __init__(self, *, keys: bool = False) -> None:
        self._salt = secrets.token_bytes(16)
        # Mutable: are keys shown; the lines of each kind in its second, and what ends that second.
        self._keys = keys
        self._kinds: dict[Kind, LogThrottle] = {}
        self._timers: dict[Kind, asyncio.TimerHandle] = {}

    def show_keys(self, keys: bool) -> None:
        """Show keys from now on, or their digests."""
        self._keys = keys

    def __call__(self, event: Event) -> None:
        """Log an event, or count it."""
        if type(event) is BreakerClosed:  # the answers before it are logged before it
            self.flush(Degraded)
        kind = (type(event), getattr(event, "namespace", ""), getattr(event, "answered", False))
        throttle = self._kinds.get(kind)
        if throttle is None:
            # One line a second in an outage, `_BURST` for events of a single key.
            throttle = self._kinds[kind] = LogThrottle(1 if kind[0] is Degraded else _BURST, inf)
            self._look_later(kind)
        if throttle.passes(0.0):
            level = _LEVELS.get(type(event), logging.WARNING)
            log.log(level, name_of(type(event)), extra=self._facts(event))

    def audit(
        self,
        namespace: str,
        key: str,
        result: str,
        peer: Peer | None,
        *,
        kind: str = "claim",
        reason: str = "",
    ) -> None:
        """Log that a client forgot a key, or listed records, each time; an `audit` of `Namespaces`."""
        # A digest of a list is shown unchanged, so that the line can be found by what the list has shown.
        plain = self._keys or not key or (kind in KINDS and _LISTED_DIGEST.fullmatch(key) is not None)
        shown = key if plain else "#" + self._digest(key)
        who = {} if peer is None else {"pid": peer.pid, "uid": peer.uid}
        more = {
            name: text for name, text in (("kind", kind), ("reason", reason)) if text not in ("claim", "")
        }
        if kind == LISTED:
            log.info(
                AUDITED_LIST, extra=facts(namespace=namespace, prefix=shown, result=result, **who, **more)
            )
        else:
            log.warning(AUDITED, extra=facts(namespace=namespace, key=shown, result=result, **who, **more))

    def flush(self, of: type = object) -> None:
        """Log the events of a class that were only counted so far."""
        for kind in list(self._kinds):
            if issubclass(kind[0], of):
                self._tell(kind)

    def _look_later(self, kind: Kind) -> None:
        self._timers[kind] = asyncio.get_running_loop().call_later(1.0, self._tell, kind)

    def _tell(self, kind: Kind) -> None:
        """Log how often a kind came in its second beyond the lines that were logged. That second is over then."""
        if timer := self._timers.pop(kind, None):
            timer.cancel()
        throttle = self._kinds.get(kind)
        more = 0 if throttle is None else throttle.take_left_out()
        if not more:
            self._kinds.pop(kind, None)
            return
        what, namespace, answered = kind
        said: dict[str, Any] = {"namespace": namespace} if namespace else {}
        if what is Degraded:
            said["answered"] = answered
        log.warning("%s, more in the last second", name_of(what), extra=facts(**said, count=more))
        self._look_later(kind)  # it goes on: the next line comes in a second

    def _facts(self, event: Event) -> dict[str, Any]:
        said: dict[str, Any] = asdict(event)
        for name in _SECRET:
            if said.get(name) and not (name == "key" and self._keys):
                said[name] = "#" + self._digest(said[name])
        rounded = {name: round(fact, 3) if isinstance(fact, float) else fact for name, fact in said.items()}
        return facts(**rounded)

    def _digest(self, text: str) -> str:
        """Return a digest that is the same for the same text in this run. Its secret protects it from guesses."""
        return blake2b(text.encode(errors="replace"), digest_size=6, key=self._salt).hexdigest()
