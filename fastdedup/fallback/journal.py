"""The journal: the keys whose records a fallback made or changed, and the store's known records of these keys.

The journal decides, and has no clock and no I/O. A line stands for one key, not for one operation: the store
adopts the present record, so a thousand changes of a key are one line.

The lines are in lanes, one for each part of the store, such as the nodes of a Cluster: lines of one lane wait for
each other, lines of different lanes do not.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from ..kernel.records import Holding, Stored

_FORMER = 16
"""The most holdings that a line remembers: the first ones, which the store may know from before the outage."""
_SLACK = 1024
_NOBODY: frozenset[bytes] = frozenset()
NEW = b""
"""The lane of the lines that are not sorted yet."""


class JournalLine:
    """The work for one key when the store is back.

    Attributes:
        wire: the store's key.
        key: the caller's key.
        lane: the name of its lane.
        base: the last known holding of the store.
        former: holdings that gave way here. The store may know of them: the reply to their claim, or
            to an earlier adoption, was lost.
        unheard: owners whose claims were sent without a reply, and that met another owner here. The store may have
            given one of them the key. Their number has no limit: while the line exists, no claim of the key is sent,
            so these are at most the claims that were under way when it began.
        sent: the record's mark when it was last sent; None while the line waits.
        asked: the store was asked to adopt the record, and whether it did is unknown.
        forgotten: the key was forgotten here, and the store may have a record of it, which must be removed.
        found: for a forgotten key, our record that the store has returned.
        id_line: the line of the id that must be settled before; None if there is no such line.
        echo_ms: for how long the store must keep the record of a success that a ledger remembers; 0 for any other.
    """

    __slots__ = (
        "asked",
        "base",
        "echo_ms",
        "forgotten",
        "former",
        "found",
        "id_line",
        "key",
        "lane",
        "sent",
        "unheard",
        "wire",
    )

    def __init__(self, wire: bytes, key: str, base: Holding | None) -> None:
        self.wire = wire
        self.key = key
        self.lane = NEW
        self.base = base
        self.former: tuple[Holding, ...] = ()
        self.unheard: frozenset[bytes] | set[bytes] = _NOBODY
        self.sent: object = None
        self.asked = False
        self.forgotten = False
        self.found: Stored | None = None
        self.id_line: JournalLine | None = None
        self.echo_ms = 0

    def gave_way(self, holding: Holding) -> None:
        """Remember a holding that is over."""
        if holding not in self.former and len(self.former) < _FORMER:
            self.former = (*self.former, holding)

    def got_no_reply(self, owner: bytes) -> None:
        """Remember an owner whose claim was sent, and that met another owner here."""
        if isinstance(self.unheard, frozenset):
            self.unheard = set()
        self.unheard.add(owner)

    def knows(self, holding: Holding, *, settled: bool) -> bool:
        """True for a holding in the store that belonged to this process, and gave way here.

        An owner that got the key here may have a claim in the store under a fence that is not known here,
        because its reply was lost. A result under another fence is another process's, of the same name.
        """
        if holding == self.base or holding in self.former:
            return True
        given_here = {former.owner for former in self.former if former != self.base}
        return not settled and (holding.owner in given_here or holding.owner in self.unheard)

    def struck(self) -> None:
        """Give back the room of the line, because it was removed from the journal."""

    @property
    def may_be_stored(self) -> bool:
        """True if the store may have a record of this process under the key."""
        return self.base is not None or self.sent is not None or self.asked or bool(self.unheard)


class Lane:
    """The keys of some lines: those that wait, in order, and those that were taken for sending."""

    __slots__ = ("taken", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[bytes, None] = {}
        self.taken: set[bytes] = set()

    def __bool__(self) -> bool:
        return bool(self.waiting or self.taken)


class Journal:
    """The lines of all keys; of each lane the oldest is taken first."""

    def __init__(self) -> None:
        # Mutable: all lines; the lanes that have lines, by name; the number of lines at which to sweep again.
        self.lines: dict[bytes, JournalLine] = {}
        """Lines by the store's key; only read it."""
        self._lanes: dict[bytes, Lane] = {}
        self._sweep_at = 0

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def lanes(self) -> list[bytes]:
        """The names of the lanes that have lines."""
        return list(self._lanes)

    def get(self, wire: bytes) -> JournalLine | None:
        """Return the line of a key."""
        return self.lines.get(wire)

    def all(self) -> list[tuple[bytes, JournalLine]]:
        """Return every line."""
        return list(self.lines.items())

    def note(self, wire: bytes, key: str, base: Holding | None) -> None:
        """Begin a line for a record that was made or changed here, unless the key has a line already."""
        if wire not in self.lines:
            self.put(JournalLine(wire, key, base))

    def put(self, line: JournalLine) -> None:
        """Begin a line for a key that has none yet."""
        self.lines[line.wire] = line
        self._lane(line.lane).waiting[line.wire] = None

    def move(self, line: JournalLine, wire: bytes) -> None:
        """Move a line to another key, and let it wait in the lane of that key."""
        self._leave(line)
        del self.lines[line.wire]
        line.wire, line.lane, line.sent = wire, NEW, None
        self.put(line)

    def strike(self, wire: bytes) -> None:
        """Remove a line, because the store has the record, or the record is gone."""
        line = self.lines.pop(wire, None)
        if line is not None:
            self._leave(line)
            line.struck()

    def sweep(self, records: int, stands: Callable[[bytes], bool]) -> None:
        """Strike the lines of expired records if they are the majority: a long outage must not fill memory.

        Args:
            records: the number of records that the fallback has.
            stands: returns whether a key still has its record.
        """
        if len(self.lines) <= 2 * records + _SLACK:
            self._sweep_at = 0
            return
        if len(self.lines) < self._sweep_at:
            return  # most lines are of forgotten keys, and these lines stay
        for wire, line in self.all():
            if not line.forgotten and not stands(wire):
                self.strike(wire)
        self._sweep_at = 2 * len(self.lines)

    def sort(self, lane_of: Callable[[bytes], bytes]) -> None:
        """Move each new line that waits to the end of its lane. `lane_of` names the lane of a key."""
        new = self._lanes.get(NEW)
        for wire in list(new.waiting) if new is not None else ():
            self._wait(self.lines[wire], lane_of(wire))

    def take(self, most: int, lane: bytes = NEW) -> list[tuple[bytes, JournalLine]]:
        """Return lines of a lane to send now; `strike` or `again` ends that for each of them."""
        keys = self._lanes.get(lane)
        if keys is None:
            return []
        wires = list(islice(keys.waiting, most))
        for wire in wires:
            del keys.waiting[wire]
        keys.taken.update(wires)
        return [(wire, self.lines[wire]) for wire in wires]

    def again(self, wire: bytes, *, base: Holding | None = None, lane: bytes | None = None) -> None:
        """Let a line wait to be sent again.

        Args:
            wire: the line's key.
            base: the holding that the store has now, if it has changed.
            lane: the lane to wait in, if it has changed.
        """
        line = self.lines.get(wire)
        if line is not None:
            line.sent = None
            if base is not None:
                line.base, line.asked = base, False
            self._wait(line, line.lane if lane is None else lane)

    def _wait(self, line: JournalLine, lane: bytes) -> None:
        """Put a line at the end of a lane."""
        self._leave(line)
        line.lane = lane
        self._lane(lane).waiting[line.wire] = None

    def _leave(self, line: JournalLine) -> None:
        """Remove a line from its lane; a lane without lines is dropped."""
        lane = self._lanes[line.lane]
        lane.waiting.pop(line.wire, None)
        lane.taken.discard(line.wire)
        if not lane:
            del self._lanes[line.lane]

    def _lane(self, name: bytes) -> Lane:
        return self._lanes.setdefault(name, Lane())
