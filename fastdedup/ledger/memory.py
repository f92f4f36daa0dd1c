"""The ledgers of the memory store. An id is an entry of a dictionary here, so it costs some 300 bytes, not 11."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from ..kernel.codes import Code
from ..kernel.operations import Reply
from ..kernel.replies import StoredForm, Weight
from .ids import CALL_BYTES, NONCE_BYTES, TICK_MS, same_call
from .operations import FirstOp, ForgetIdOp, IdOp, LedgerOp, SeenOp, WeighOp

BucketOp = IdOp | WeighOp
_COMPLETED = bytes(NONCE_BYTES)
"""The nonce of an id that a claim's completion has remembered, and no call of `first`."""
ID_BYTES = 300
"""Rough size of a remembered id or a form, in bytes."""
_SLACK = 1024


class MemoryLedgers:
    """Ids and forms of ledgers. The memory store gives the time, and the room.

    Args:
        make_room: called before something is added; raises UnavailableError.
    """

    def __init__(self, make_room: Callable[[], None]) -> None:
        self._make_room = make_room
        # Mutable: of each bucket the ids, with when they are over (ms since 1970) and the nonce that remembered them;
        # by window the order in which they are over, with forgotten ids for a while; the forms.
        self._buckets: dict[bytes, dict[bytes, tuple[int, bytes]]] = {}
        self._order: dict[int, deque[tuple[int, bytes, bytes]]] = {}
        self._forms: dict[bytes, tuple[int, bytes]] = {}
        self._ids = 0

    def __len__(self) -> int:
        """The number of ids and forms."""
        return self._ids + len(self._forms)

    def clear(self) -> None:
        """Forget everything."""
        self._buckets.clear()
        self._order.clear()
        self._forms.clear()
        self._ids = 0

    def create(self, op: LedgerOp, now_ms: int) -> StoredForm | Code:
        """Create a ledger, or return its form; ABSENT if it must only be read, and does not exist."""
        for wire in [wire for wire, (ends, _) in self._forms.items() if ends <= now_ms]:
            del self._forms[wire]
        stored = self._forms.get(op.wire)
        if stored is None:
            if not op.form:
                return Code.ABSENT
            self._make_room()
        if not op.ttl_ms and stored is not None:
            return StoredForm(stored[1], now_ms)
        replaces = op.form and (stored is None or stored[1] == op.former)
        if replaces and now_ms > op.until_ms:
            return Code.STALE
        ends, form = (0, op.form) if replaces or stored is None else stored
        # Never for less time than before: a client with a shorter window, which is refused, must not cut its life.
        self._forms[op.wire] = (max(ends, now_ms + op.ttl_ms), form)
        return StoredForm(form, now_ms)

    def apply(self, op: BucketOp, now_ms: int) -> Reply:
        """Execute one operation on a bucket."""
        if isinstance(op, WeighOp):
            return self.answer(op, now_ms)
        if now_ms > (op.until_ms if isinstance(op, ForgetIdOp) else op.terms.until_ms):
            return Code.STALE
        if isinstance(op, SeenOp) and now_ms < op.terms.from_ms:
            return Code.STALE
        return self.answer(op, now_ms)

    def answer(self, op: BucketOp, now_ms: int) -> Reply:
        """Execute one operation on a bucket, with any form of the ledger."""
        if isinstance(op, WeighOp):
            ids = len(self._buckets.get(op.wire, ()))
            return Weight(ids, ids, ids * ID_BYTES)
        if isinstance(op, FirstOp):
            return self._first(op, now_ms)
        width = op.terms.width
        entry = op.entry
        held = self._buckets.get(op.wire, {}).get(entry[:width])
        if held is None:
            return Code.ABSENT
        if isinstance(op, SeenOp):
            return Code.OK if len(entry) > width and same_call(held[1], entry[width:]) else Code.ALREADY
        if len(entry) > width and not same_call(held[1], entry[width:]):
            return Code.ABSENT
        self._remove(op.wire, entry[:width])
        return Code.OK

    def expire(self, now_ms: int) -> None:
        """Forget the ids whose time is over."""
        for order in self._order.values():
            # Not yet in the millisecond itself, because the time of the start was cut to milliseconds.
            while order and order[0][0] < now_ms:
                ends, wire, digest = order.popleft()
                held = self._buckets.get(wire, {}).get(digest)
                if held is not None and held[0] == ends:
                    self._remove(wire, digest)

    def _first(self, op: FirstOp, now_ms: int) -> Code:
        terms = op.terms
        digest, nonce = op.entry[: terms.width], op.entry[terms.width :]
        bucket = self._buckets.get(op.wire)
        if bucket is not None and digest in bucket:
            ends, former = bucket[digest]
            if same_call(former, nonce):
                return Code.OK
            age_ms = now_ms - (ends - terms.window_ms)
            pending = age_ms < nonce[CALL_BYTES] * TICK_MS and not same_call(former, _COMPLETED)
            return Code.PENDING if pending else Code.ALREADY
        self.put(op.wire, digest, nonce, now_ms, terms.window_ms)
        terms.saw_fill(len(self._buckets[op.wire]), 1)
        return Code.OK

    # For `fallback/local_ids.py`, which keeps ids of another store here; `apply` first removes ids whose time is over

    def held(self, wire: bytes, digest: bytes) -> tuple[int, bytes] | None:
        """Return when an id is over (ms since 1970), and the nonce that remembered it; None if it is not held."""
        return self._buckets.get(wire, {}).get(digest)

    def put(self, wire: bytes, digest: bytes, nonce: bytes, now_ms: int, keep_ms: int) -> None:
        """Remember an id for the given time, in place of its present entry. A new one raises `make_room`'s error."""
        if self.held(wire, digest) is None:
            self._make_room()
            self._ids += 1
        ends = now_ms + keep_ms
        self._buckets.setdefault(wire, {})[digest] = (ends, nonce)
        order = self._order.setdefault(keep_ms, deque())
        order.append((ends, wire, digest))
        # Of ids that were forgotten, some of them within one millisecond.
        if len(order) > 2 * self._ids + _SLACK:
            self._order[keep_ms] = deque(dict.fromkeys(filter(self._is_held, order)))

    def drop(self, wire: bytes, digest: bytes) -> None:
        """Forget an id, if it is held."""
        if self.held(wire, digest) is not None:
            self._remove(wire, digest)

    def move(self, moves: Iterable[tuple[bytes, bytes, bytes, bytes]], keep_ms: int) -> None:
        """Move held ids from a bucket and a digest to others. At first all of them end together."""
        order = self._order.setdefault(keep_ms, deque())
        for wire, digest, to_wire, to_digest in moves:
            held = self.held(wire, digest)
            if held is not None:
                self._remove(wire, digest)
                self._ids += self.held(to_wire, to_digest) is None
                self._buckets.setdefault(to_wire, {})[to_digest] = held
                order.append((held[0], to_wire, to_digest))
        self._order[keep_ms] = deque(sorted(filter(self._is_held, order)))

    def _is_held(self, line: tuple[int, bytes, bytes]) -> bool:
        ends, wire, digest = line
        held = self._buckets.get(wire, {}).get(digest)
        return held is not None and held[0] == ends

    def _remove(self, wire: bytes, digest: bytes) -> None:
        bucket = self._buckets[wire]
        del bucket[digest]
        self._ids -= 1
        if not bucket:
            del self._buckets[wire]
