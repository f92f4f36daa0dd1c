"""The records of the memory store: held until each one expires, within bounds, on one clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from random import randrange

from ..errors import UnavailableError
from ..ledger.memory import ID_BYTES, MemoryLedgers
from .entry import Entry

RECORD_BYTES = 400
"""Rough size in bytes of an entry without its payload: dictionary slot, object, key, heap entry."""
FAR_US = 86_400_000_000
"""Microseconds by which another host's clock may be ahead; `DAY` in `adopt.lua`."""


class NoRoomError(UnavailableError):
    """The store has no room for a record. Nothing was changed, so no undo is needed."""


class BoundedRecords:
    """Records by store key, and the ids of ledgers.

    If there is no room for a new one, it is refused: no unexpired record is forgotten.

    Args:
        maxsize: the most records held.
        max_bytes: the most estimated memory of the records.
        clock: returns seconds since 1970; by default a clock that setting the system's time does not change, so
            that no lease ends early.
        make_room: called if there is no room; it drops a record that is not needed, or returns False.
    """

    def __init__(
        self,
        *,
        maxsize: int,
        max_bytes: int,
        clock: Callable[[], float] | None,
        make_room: Callable[[], bool],
    ) -> None:
        self.ledgers = MemoryLedgers(self._make_room)
        """The ids of ledgers, which expire and count like the records."""
        self._maxsize = maxsize
        self._max_bytes = max_bytes
        self._clock = steady_clock() if clock is None else clock
        self._evict = make_room
        self._entries: dict[bytes, Entry] = {}
        self.expiries: list[tuple[int, bytes]] = []
        """A heap of expiry and store key, in microseconds by its clock. A pair that is outdated is skipped later."""
        self.bytes_kept = 0
        """Estimated memory of the records, in bytes."""
        self.reserved = 0
        """Bytes that a policy needs for itself if it keeps records here; they count as taken."""
        # Microseconds, so that two processes that give a key away in the same millisecond give different fences.
        self._offset = randrange(1000)
        # One fence for all keys: so the next fence of a forgotten or expired key is higher, even if the clock is set.
        self._fence = 0
        # How far the clock of the fences is ahead of this one, in microseconds.
        self._lead_us = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[bytes, Entry]]:
        return iter(list(self._entries.items()))

    def clear(self) -> None:
        """Forget all records and ids."""
        self._entries.clear()
        self.expiries.clear()
        self.ledgers.clear()
        self.bytes_kept = 0

    # Time

    def now(self) -> int:
        """Return the time in ms since 1970, after removing the records that have expired."""
        now = round(self._clock() * 1_000_000) // 1000
        self._expire(now)
        return now

    @property
    def time_us(self) -> int:
        """The store's time, in microseconds since 1970: a fence that is given now begins with it."""
        return self._fence_time() // 1000 * 1000 + self._offset

    def hear_time(self, time_us: int) -> None:
        """Give fences by the clock of the store whose records are kept here, which shows `time_us` now."""
        self._lead_us = time_us - round(self._clock() * 1_000_000)

    def _fence_time(self) -> int:
        """Return the time for new fences, in microseconds since 1970."""
        return round(self._clock() * 1_000_000) + self._lead_us

    # Records

    def holds(self, wire: bytes) -> bool:
        """True while there is a record of this key."""
        self.now()
        return wire in self._entries

    def entry(self, wire: bytes) -> Entry | None:
        """Return the record of a key, or None."""
        return self._entries.get(wire)

    def put(self, wire: bytes, entry: Entry, expires: int) -> None:
        """Store another store's record of a key until `expires` (ms since 1970), and replace the present record.

        Raises:
            UnavailableError: there is no room.
        """
        self._put(wire, entry, expires)
        entry.payload = trimmed(entry.payload)
        if entry.state != "M" and entry.fence <= self._fence_time() + FAR_US:
            self._fence = max(self._fence, entry.fence)

    def move(self, wire: bytes, to: bytes) -> None:
        """Move a record, if there is one, to another key. It takes no more room, so it is never refused."""
        entry = self._entries.pop(wire, None)
        if entry is None:
            return
        self.drop(to)
        self._entries[to] = entry
        expires, entry.expires = entry.expires, 0
        self.keep(to, entry, expires)

    def keep(self, wire: bytes, entry: Entry, expires: int) -> None:
        """Keep a record until `expires` (ms since 1970)."""
        if entry.expires == expires:
            return
        entry.expires = expires
        heappush(self.expiries, (expires, wire))
        if len(self.expiries) > 2 * len(self._entries) + 1024:
            self.expiries = [(held.expires, key) for key, held in self._entries.items()]
            heapify(self.expiries)

    def drop(self, wire: bytes) -> None:
        """Remove the record of a key, if there is one."""
        if wire in self._entries:
            self.bytes_kept -= RECORD_BYTES + len(self._entries.pop(wire).payload)

    def _put(self, wire: bytes, entry: Entry, expires: int) -> None:
        former, size = self._entries.get(wire), len(entry.payload)
        if former is None:
            self._make_room(size)
            self.bytes_kept += RECORD_BYTES + size
        else:
            self.bytes_kept += size - len(former.payload)
        self._entries[wire] = entry
        self.keep(wire, entry, expires)

    def _expire(self, now: int) -> None:
        if self.ledgers:
            self.ledgers.expire(now)
        while self.expiries and self.expiries[0][0] <= now:
            expires, wire = heappop(self.expiries)
            entry = self._entries.get(wire)
            if entry is not None and entry.expires == expires:
                self.drop(wire)

    # Room

    def bytes_taken(self) -> int:
        """Return the bytes that are taken: by records, by ids, and by reservations."""
        return self._bytes_taken(len(self.ledgers))

    def _bytes_taken(self, ids: int) -> int:
        return self.bytes_kept + self.reserved + ids * ID_BYTES

    def reserve(self, size: int) -> None:
        """Count this many bytes as taken. Raises UnavailableError if there is no room."""
        self._make_room(size)
        self.reserved += size

    def _make_room(self, size: int = 0) -> None:
        """Make room for a new record with a payload of this size."""
        while True:
            ids = len(self.ledgers)
            records = len(self._entries) + ids
            taken = self._bytes_taken(ids)
            if records < self._maxsize and taken + RECORD_BYTES + size <= self._max_bytes:
                return
            if not self._evict():
                raise NoRoomError(
                    f"the local store is full: {records} unexpired records, {taken} bytes; "
                    "new keys are refused, because no claim may be forgotten (raise maxsize or lower ttl)"
                )

    def _set_payload(self, wire: bytes, entry: Entry, payload: bytes) -> None:
        """Give a payload to a record that has none.

        Raises:
            UnavailableError: there is no room, or the record itself was dropped to make room.
        """
        while (taken := self.bytes_taken()) + len(payload) > self._max_bytes:
            if not self._evict() or self._entries.get(wire) is not entry:
                raise NoRoomError(
                    f"the local store is full: it holds {taken} of {self._max_bytes} bytes, "
                    f"no room for a result of {len(payload)} (raise max_bytes or lower ttl)"
                )
        self.bytes_kept += len(payload)
        entry.payload = trimmed(payload)


def steady_clock() -> Callable[[], float]:
    """Return a clock that starts at the time of day and that setting the system's time does not change."""
    started = time.time() - time.monotonic()
    return lambda: started + time.monotonic()


def trimmed(payload: bytes) -> bytes:
    """Return a copy that takes only the memory of its bytes: each result of orjson holds at least 4 KiB."""
    return bytes(memoryview(payload)) if payload else payload
