"""Uses of tokens that this process was told of lately.

A use that was sent and not answered is taken back. So a process that finds a token used cannot know, for two
timeouts, whether that use stays: see `Ask.use`. Of its own uses it does know.
"""

from __future__ import annotations

from time import monotonic
from typing import Final

MOST: Final = 10_000
"""Uses of a generation at most. A use that is dropped early costs the token's next duplicate a wait, and no more."""
_SECONDS: Final = 30.0
"""Seconds for which a use is remembered at least, unless there are more than `MOST`."""


class Granted:
    """The store keys of used tokens, in two generations: the older one is dropped as a whole."""

    def __init__(self) -> None:
        # Mutable: both generations, and when the next one begins, by time.monotonic().
        self._present: set[bytes] = set()
        self._former: set[bytes] = set()
        self._until = 0.0

    def add(self, wire: bytes) -> None:
        """Remember a use: this process was told of it."""
        now = monotonic()
        if now > self._until or len(self._present) >= MOST:
            self._former, self._present = self._present, set()
            self._until = now + _SECONDS
        self._present.add(wire)

    def discard(self, wire: bytes) -> None:
        """Forget a use, because it is taken back."""
        self._present.discard(wire)
        self._former.discard(wire)

    def __contains__(self, wire: object) -> bool:
        return wire in self._present or wire in self._former


GRANTED: Final = Granted()
"""Of all gates of this process."""
