"""The journal: which records a fallback made or changed, and what the store is known to hold in their place.

A decider without clock or I/O. A line stands for one key. It is not a list of operations: what the
store adopts is the record as it is by then, so a thousand changes of a key are one line.
"""

from __future__ import annotations


class Line:
    """One key's line.

    Attributes:
        key: what the caller calls the key.
        base: the owner (of a machine: the change) that the store last held, as far as known.
        sent: the record's mark when it was last sent; None while it waits.
        forgotten: the key was forgotten here, and the store has, or may have, a record that must go too.
    """

    __slots__ = ("base", "forgotten", "key", "sent")

    def __init__(self, key: str, base: bytes | None) -> None:
        self.key = key
        self.base = base
        self.sent: object = None
        self.forgotten = False


class Journal:
    """Lines by store key; taken the oldest first."""

    def __init__(self) -> None:
        # Mutable: all lines, and in order those that wait to be sent.
        self._lines: dict[bytes, Line] = {}
        self._waiting: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self._lines)

    def get(self, wire: bytes) -> Line | None:
        """Return the line of a key."""
        return self._lines.get(wire)

    def all(self) -> list[tuple[bytes, Line]]:
        """Return every line."""
        return list(self._lines.items())

    def note(self, wire: bytes, key: str, base: bytes | None) -> None:
        """A record was made or changed here. `base` counts only where the key has no line yet."""
        if wire not in self._lines:
            self._lines[wire] = Line(key, base)
            self._waiting[wire] = None

    def strike(self, wire: bytes) -> None:
        """The store has it, or it is gone."""
        self._lines.pop(wire, None)
        self._waiting.pop(wire, None)

    def take(self, most: int) -> list[tuple[bytes, Line]]:
        """Take lines to be sent; each comes back by `strike` or `again`."""
        wires = [wire for wire, _ in zip(self._waiting, range(most), strict=False)]
        for wire in wires:
            del self._waiting[wire]
        return [(wire, self._lines[wire]) for wire in wires]

    def again(self, wire: bytes, *, base: bytes | None = None) -> None:
        """A line has to be sent (again); `base` where the store by now holds something else."""
        line = self._lines.get(wire)
        if line is not None:
            line.sent = None
            line.base = line.base if base is None else base
            self._waiting[wire] = None
