"""The ledgers of the memory store. An id is an entry of a dictionary here, so it costs some 300 bytes, not 11."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ..protocol.ledgers import FirstOp, ForgetIdOp, LedgerOp, SeenOp, WeighOp
from ..protocol.operations import Code, Reply, StoredForm, Weight

BucketOp = FirstOp | SeenOp | ForgetIdOp | WeighOp
ID_BYTES = 300
"""Rough size of a remembered id."""
_SLACK = 1024


class MemoryLedgers:
    """Ids and forms of ledgers. The memory store gives the time, and the room.

    Args:
        make_room: called before something is added; raises UnavailableError.
    """

    def __init__(self, make_room: Callable[[], None]) -> None:
        self._make_room = make_room
        # Mutable: of each bucket the ids, with when they are over (ms since 1970) and the nonce that remembered them;
        # by window the order in which they are over, where forgotten ids stay for a while; the forms.
        self._buckets: dict[bytes, dict[bytes, tuple[int, bytes]]] = {}
        self._order: dict[int, deque[tuple[int, bytes, bytes]]] = {}
        self._forms: dict[bytes, tuple[int, bytes]] = {}
        self._ids = 0

    def __len__(self) -> int:
        """How many ids and forms there are."""
        return self._ids + len(self._forms)

    def clear(self) -> None:
        """Forget everything."""
        self._buckets.clear()
        self._order.clear()
        self._forms.clear()
        self._ids = 0

    def found(self, op: LedgerOp, now_ms: int) -> StoredForm | Code:
        """Found a ledger, or tell its form; ABSENT where it is only to be read, and is not there."""
        for wire in [wire for wire, (ends, _) in self._forms.items() if ends <= now_ms]:
            del self._forms[wire]
        stored = self._forms.get(op.wire)
        if not op.form:
            return Code.ABSENT if stored is None else StoredForm(stored[1], now_ms)
        if stored is None:
            self._make_room()
        form = op.form if stored is None or stored[1] == op.former else stored[1]
        self._forms[op.wire] = (now_ms + op.ttl_ms, form)
        return StoredForm(form, now_ms)

    def apply(self, op: BucketOp, now_ms: int) -> Reply:
        """Execute one operation on a bucket."""
        if isinstance(op, WeighOp):
            ids = len(self._buckets.get(op.wire, ()))
            return Weight(ids, ids, ids * ID_BYTES)
        if now_ms > (op.until_ms if isinstance(op, ForgetIdOp) else op.terms.until_ms):
            return Code.STALE
        if isinstance(op, FirstOp):
            return self._first(op, now_ms)
        width = op.terms.width
        entry = op.digest if isinstance(op, SeenOp) else op.entry
        held = self._buckets.get(op.wire, {}).get(entry[:width])
        if held is None or (len(entry) > width and held[1] != entry[width:]):
            return Code.ABSENT
        if isinstance(op, SeenOp):
            return Code.ALREADY
        self._remove(op.wire, entry[:width])
        return Code.OK

    def expire(self, now_ms: int) -> None:
        """Forget the ids that are over."""
        for order in self._order.values():
            while (
                order and order[0][0] < now_ms
            ):  # not at it, as the time of the start was cut to milliseconds
                ends, wire, digest = order.popleft()
                held = self._buckets.get(wire, {}).get(digest)
                if held is not None and held[0] == ends:
                    self._remove(wire, digest)

    def _first(self, op: FirstOp, now_ms: int) -> Code:
        terms = op.terms
        digest, nonce = op.entry[: terms.width], op.entry[terms.width :]
        bucket = self._buckets.get(op.wire)
        if bucket is not None and digest in bucket:
            return Code.OK if bucket[digest][1] == nonce else Code.ALREADY
        self._make_room()
        ends = now_ms + terms.window_ms
        bucket = self._buckets.setdefault(op.wire, {})
        bucket[digest] = (ends, nonce)
        self._ids += 1
        order = self._order.setdefault(terms.window_ms, deque())
        order.append((ends, op.wire, digest))
        if len(order) > 2 * self._ids + _SLACK:  # of ids that were forgotten
            self._order[terms.window_ms] = deque(filter(self._is_held, order))
        terms.saw_fill(len(bucket), 1)
        return Code.OK

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
