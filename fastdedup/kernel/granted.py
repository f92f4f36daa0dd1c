"""Uses of tokens, and ids of ledgers, that the store has lately confirmed as this process's own.

A use, or a first call for an id, that was sent and not answered is undone. So a process that finds a token used, or
an id remembered, cannot know for two timeouts whether that stays: see `Gate.use`. It does know that of its own ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic
from typing import Final

from .operations import SettleOp

MOST: Final = 50_000
"""Entries after which a new generation begins. If one is dropped early, the next duplicate only has to wait."""
LOOKS: Final = 8
"""Looks at a use or an id that another process may still undo, half a timeout apart. It takes half of these looks
until it is older than two timeouts; meanwhile another caller may have taken it, and lost its reply too."""
SECONDS: Final = 30.0
"""Seconds for which an entry counts, unless there are more than `MOST`. Later the place may be another process's: an
id expires, and a token or an id may be forgotten there and used again."""


class Granted:
    """The store keys of used tokens and the places of ids, in two generations; the older one is dropped whole."""

    def __init__(self) -> None:
        # Mutable: both generations, with the time of each entry, and when the next one begins, by time.monotonic().
        self._present: dict[bytes, float] = {}
        self._former: dict[bytes, float] = {}
        self._until = 0.0

    def add(self, place: bytes) -> None:
        """Remember a use or an id, because the store has confirmed it."""
        self.update((place,))

    def update(self, places: Iterable[bytes]) -> None:
        """Remember several uses or ids."""
        now = monotonic()
        if now > self._until or len(self._present) >= MOST:
            self._former, self._present = self._present, {}
            self._until = now + SECONDS
        for place in places:
            self._present[place] = now

    def discard(self, place: bytes) -> None:
        """Forget a use or an id, because it is undone or forgotten."""
        self._present.pop(place, None)
        self._former.pop(place, None)

    def clear(self) -> None:
        """Forget all entries."""
        self._present.clear()
        self._former.clear()

    def lately(self, place: bytes, seconds: float = SECONDS) -> bool:
        """True if the store has confirmed a use or an id in the last `seconds`."""
        confirmed = self._present.get(place, self._former.get(place))
        return confirmed is not None and monotonic() - confirmed < min(seconds, SECONDS)


GRANTED: Final = Granted()
"""The entries of all gates of this process."""


def may_be_undone(wire: bytes, payload: bytes) -> bool:
    """True for the use of a token, a success with this payload, that the store has not confirmed to this process.

    A use whose caller got no reply is undone. So only the store can say that the token is used.
    """
    return not payload and not GRANTED.lately(wire)


def note_use(op: SettleOp) -> None:
    """Remember a token that its owner has completed without a result: its record looks like that of a `consume`."""
    if op.succeeded and not op.payload:
        GRANTED.add(op.wire)
