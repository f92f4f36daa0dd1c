"""The journal: which records a fallback made or changed, and what the store is known to hold in their place.

A decider without clock or I/O. A line stands for one key. It is not a list of operations: what the
store adopts is the record as it is by then, so a thousand changes of a key are one line.
"""

from __future__ import annotations

from collections.abc import Callable

from ..protocol.operations import Stored

_FORMER = 16
"""Owners remembered in a line: the first ones, as of these the store may have heard before the breaker opened."""
_SLACK = 1024


class JournalLine:
    """One key's line.

    Attributes:
        wire: the store key.
        key: what the caller calls it.
        base: the owner (of a machine: the change) that the store last held, as far as known.
        former: owners that held the key here and gave way. The store may have heard of them: the reply to their
            claim, or to an earlier adoption, was lost.
        sent: the record's mark when it was last sent; None while it waits.
        asked: the store has been asked to adopt it, and whether it did is unknown.
        forgotten: the key was forgotten here, and the store has, or may have, a record that must go too.
        found: of a forgotten key, the record that the store was seen to have, and that is ours.
    """

    __slots__ = ("asked", "base", "forgotten", "former", "found", "key", "sent", "wire")

    def __init__(self, wire: bytes, key: str, base: bytes | None) -> None:
        self.wire = wire
        self.key = key
        self.base = base
        self.former: tuple[bytes, ...] = ()
        self.sent: object = None
        self.asked = False
        self.forgotten = False
        self.found: Stored | None = None

    def gave_way(self, owner: bytes) -> None:
        """An owner holds the key no more."""
        if owner not in self.former and len(self.former) < _FORMER:
            self.former = (*self.former, owner)

    def knows(self, owner: bytes) -> bool:
        """True for an owner that was one of this process's, and gave way here."""
        return owner == self.base or owner in self.former

    @property
    def may_be_stored(self) -> bool:
        """True where the store may have a record that this line is to replace."""
        return self.base is not None or self.sent is not None or self.asked


class Journal:
    """Lines by store key; taken the oldest first."""

    def __init__(self) -> None:
        # Mutable: all lines, and in order those that wait to be sent.
        self.lines: dict[bytes, JournalLine] = {}
        """By store key; to be read, not written."""
        self._waiting: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def waiting(self) -> int:
        """How many lines wait to be sent."""
        return len(self._waiting)

    def get(self, wire: bytes) -> JournalLine | None:
        """Return the line of a key."""
        return self.lines.get(wire)

    def all(self) -> list[tuple[bytes, JournalLine]]:
        """Return every line."""
        return list(self.lines.items())

    def note(self, wire: bytes, key: str, base: bytes | None) -> None:
        """A record was made or changed here. `base` counts only where the key has no line yet."""
        if wire not in self.lines:
            self.lines[wire] = JournalLine(wire, key, base)
            self._waiting[wire] = None

    def strike(self, wire: bytes) -> None:
        """The store has it, or it is gone."""
        self.lines.pop(wire, None)
        self._waiting.pop(wire, None)

    def sweep(self, records: int, stands: Callable[[bytes], bool]) -> None:
        """Strike lines whose record has expired, where these are the most: a long outage must not fill memory."""
        if len(self.lines) <= 2 * records + _SLACK:
            return
        for wire, line in self.all():
            if not line.forgotten and not stands(wire):
                self.strike(wire)

    def take(self, most: int) -> list[tuple[bytes, JournalLine]]:
        """Take lines to be sent; each comes back by `strike` or `again`."""
        wires = [wire for wire, _ in zip(self._waiting, range(most), strict=False)]
        for wire in wires:
            del self._waiting[wire]
        return [(wire, self.lines[wire]) for wire in wires]

    def again(self, wire: bytes, *, base: bytes | None = None) -> None:
        """A line has to be sent (again); `base` where the store by now holds something else."""
        line = self.lines.get(wire)
        if line is not None:
            line.sent = None
            if base is not None:
                line.base, line.asked = base, False
            self._waiting[wire] = None
